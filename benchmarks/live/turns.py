"""When a pause ends a turn: false ends and delay of a fixed pause and of the fitted rule.

    python -m benchmarks live turns fit ../shared --log dev.jsonl
    python -m benchmarks live turns show ../shared --log held-out.jsonl
    python -m benchmarks live turns score FOLDER --layout eot-bench|smart-turn --log scores.jsonl

`fit` and `show` cut clips of people where a sentence ends, at pauses inside sentences and at the end of a
word inside one, let quiet follow, and keep how a session's decoder goes on there. No speaker is in both.
`fit` prints the numbers of `sottovoce/streaming/options.py`. Where the speaker goes on, a pause lasts as long
as in conversation: that of a cut is drawn from eot-bench's pauses (`survival`), as those of read speech are
short. So a false end is counted by its probability.

`score` reads the Parquet files of livekit/eot-bench-data (id, language, audio, silence_spans) or of Smart
Turn's data (id, language, audio, endpoint_bool) from a folder: conversation, of which the figures above say
nothing. It needs pyarrow.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

import matplotlib as mpl
import numpy as np

from benchmarks.harness.clips import VOXLINGUA, Clip, Part, clips
from benchmarks.harness.report import (
    Log,
    add_shared,
    benchmark_parser,
    percent,
    seconds,
    show_json,
    show_table,
)
from benchmarks.live.runs import Bench, counted
from sottovoce.audio.io import load_audio
from sottovoce.audio.vad import SpeechWindows, load_silero
from sottovoce.options.decoding import WINDOW_SAMPLES
from sottovoce.streaming.options import EAGERNESS, PAUSE_MS, FittedTurnRule, StreamOptions, TextEnd
from sottovoce.text.languages import SENTENCE_ENDS
from sottovoce.types import SAMPLE_RATE, Samples, Word

mpl.use("Agg")

Kind: TypeAlias = Literal["end", "pause", "word"]
"""The end of a sentence; a pause inside one; the end of a word inside one."""
PARTS: dict[Part, tuple[str, ...]] = {
    "dev": ("kathleen-en",),
    "test": ("commonvoice-en-mini", "kerstin-de", "dona-es"),
}
"""Sets of whole sentences that are all of one part; no speaker is in both."""
BY_SPEAKER: dict[str, frozenset[str]] = {
    "nemo-pl": frozenset({"nemoEB0", "nemoIC0", "nemoKD0", "nemoKS0", "nemoMK0"}),
    "hindi-hsc": frozenset({"hi00C"}),
}
"""The development speakers of sets of whole sentences; the others report."""
BY_FILE: dict[Part, tuple[str, ...]] = {"dev": ("de", "es", "fr", "it"), "test": ("fr",)}
"""Languages whose ends of sentences are where the transcript of the whole file has their marks."""
MOST_CLIPS = 45
LEAST_SPEECH_S = 0.8
SHORTEST_PAUSE_S = 0.096
QUIET_S, FADE_S = 3.2, 0.005


@dataclass(frozen=True, slots=True)
class Cut:
    """Speech up to a sample, after which it is quiet. kind: what lies there."""

    clip: Clip
    kind: Kind
    sample: int

    @property
    def name(self) -> str:
        return f"{self.clip.name} {self.kind} {self.sample}"


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause and what the decoder said of it.

    late_s: from the true end of speech to where voice activity ends.
    """

    is_end: bool
    kind: str
    language: str
    group: str
    text_end: TextEnd
    late_s: float


@dataclass(slots=True)
class Recorder:
    """A rule that ends no turn and keeps what it was asked."""

    asked: list[TextEnd] = field(default_factory=list)

    def pause_s(self, text_end: TextEnd) -> float:
        self.asked.append(text_end)
        return QUIET_S + 1.0

    def probability(self, text_end: TextEnd, pause_s: float) -> float:
        return 0.0


def chosen_clips(data: Path, part: Part) -> list[Clip]:
    found: list[Clip] = []
    for name in PARTS[part]:
        whole = [*clips(data, "dev", sets=(name,)), *clips(data, "test", sets=(name,))]
        found += whole[:: max(1, len(whole) // MOST_CLIPS)][:MOST_CLIPS]
    for name, speakers in BY_SPEAKER.items():
        whole = [*clips(data, "dev", sets=(name,)), *clips(data, "test", sets=(name,))]
        found += [clip for clip in whole if (clip.speaker in speakers) == (part == "dev")]
    spoken = clips(data, part, sets=(VOXLINGUA,))
    return found + [clip for clip in spoken if clip.languages[0] in BY_FILE[part]]


def cuts(clip: Clip, words: Sequence[Word], samples: Samples) -> Iterator[Cut]:
    """Yield the cuts of a clip: ends of sentences, pauses inside them, and the end of one word inside one.

    words: of the whole file; used where nobody wrote down the sentences.
    """
    pauses, end = voice_pauses(samples)
    pauses = [one for one in pauses if one[0] > LEAST_SPEECH_S * SAMPLE_RATE]
    if clip.group != VOXLINGUA:
        yield Cut(clip, "end", end)
        for first, last in pauses:
            yield Cut(clip, "pause", within(first, last))
        middle = quietest(samples, end / 2 / SAMPLE_RATE, 0.2 * end / SAMPLE_RATE)
        if middle > LEAST_SPEECH_S * SAMPLE_RATE and not any(a <= middle <= b for a, b in pauses):
            yield Cut(clip, "word", middle)
        return
    inside = []
    for word, after in pairwise(words):
        middle_s = (word.end + after.start) / 2
        if middle_s < LEAST_SPEECH_S:
            continue
        near = [one for one in pauses if abs((one[0] + one[1]) / 2 / SAMPLE_RATE - middle_s) < 0.25]
        at = within(*near[0]) if near else quietest(samples, middle_s, 0.08)
        if word.word.rstrip().endswith(SENTENCE_ENDS):
            yield Cut(clip, "end", at)
        elif near:
            yield Cut(clip, "pause", at)
        else:
            inside.append(at)
    if inside:
        yield Cut(clip, "word", inside[len(inside) // 2])


def within(first: int, last: int) -> int:
    """Return the middle of a pause, or of its first 0.28 s: voice activity is to end near the cut."""
    return first + min((last - first) // 2, round(0.14 * SAMPLE_RATE))


def voice_pauses(samples: Samples) -> tuple[list[tuple[int, int]], int]:
    """Return pauses (first and last sample) in which voice activity is low, and where it ends."""
    windows = SpeechWindows(load_silero())
    found: list[tuple[int, int]] = []
    quiet, is_speech = None, False
    for number, probability in enumerate([*windows.push(samples), *windows.finish()]):
        at = number * WINDOW_SAMPLES
        if probability >= 0.5:
            if quiet is not None and at - quiet >= SHORTEST_PAUSE_S * SAMPLE_RATE:
                found.append((quiet, at))
            quiet, is_speech = None, True
        elif probability < 0.35 and quiet is None and is_speech:
            quiet = at
    return found, len(samples) if quiet is None else quiet


def quietest(samples: Samples, near_s: float, reach_s: float) -> int:
    """Return the middle of the quietest 30 ms within a reach of a time."""
    step = SAMPLE_RATE // 100
    first = max(0, round((near_s - reach_s) * SAMPLE_RATE))
    part = samples[first : round((near_s + reach_s) * SAMPLE_RATE)]
    power = (part[: len(part) // step * step].reshape(-1, step) ** 2).mean(axis=1)
    smooth = np.convolve(power, np.ones(3), mode="valid")
    return first + (int(smooth.argmin()) + 1) * step + step // 2


def with_quiet(samples: Samples, cut: int) -> Samples:
    """Speech up to a cut, faded out, and noise as loud as the quietest tenth of the recording."""
    spoken = samples[:cut].copy()
    n_fade = min(len(spoken), round(FADE_S * SAMPLE_RATE))
    spoken[len(spoken) - n_fade :] *= np.linspace(1, 0, n_fade, dtype=np.float32)
    blocks = samples[: len(samples) // 320 * 320].reshape(-1, 320)
    level = max(1e-5, float(np.quantile(np.sqrt((blocks**2).mean(axis=1)), 0.1)))
    rng = np.random.default_rng(cut)
    quiet = level * rng.standard_normal(round(QUIET_S * SAMPLE_RATE))
    return np.concatenate([spoken, quiet.astype(np.float32)])


def asked(bench: Bench, model: str, cut: Cut, samples: Samples) -> tuple[TextEnd, float] | None:
    """Return what the rule of a session was asked in the pause after a cut, and the seconds from the cut to
    where voice activity ends; None: no pause was found there.

    One update is read before the pause, as of a session that is late.
    """
    rule = Recorder()
    session = bench.model(model, "auto").session(
        cut.clip.languages,
        switching="off",
        stream=StreamOptions(turns=rule),  # type: ignore[arg-type]
    )
    audio = with_quiet(samples, cut.sample)
    first = max(0, cut.sample // WINDOW_SAMPLES - 8) * WINDOW_SAMPLES
    session.push(audio[:first], newest_only=True)
    n_asked = 0
    for start in range(first, len(audio), WINDOW_SAMPLES):
        session.push(audio[start : start + WINDOW_SAMPLES], newest_only=True)
        end_s = min(len(audio), start + WINDOW_SAMPLES) / SAMPLE_RATE
        late_s = end_s - PAUSE_MS / 1000 - cut.sample / SAMPLE_RATE
        if len(rule.asked) > n_asked and late_s > -0.15:
            return rule.asked[-1], late_s
        n_asked = len(rule.asked)
    return None


def file_words(bench: Bench, model: str, clip: Clip) -> list[Word]:
    """Return the words of the whole file with their times, read greedily."""
    key = f"words {model}"
    found = bench.log.get(key, clip.name)
    if found is None:
        segments = bench.model(model, "auto").transcribe(
            clip.file, language=clip.language, word_timestamps=True, beam_size=1
        )
        found = {"words": [asdict(word) for segment in segments for word in segment.words or ()]}
        bench.log.add(key, clip.name, found)
    return [Word(**word) for word in found["words"]]


def pauses_of(bench: Bench, data: Path, part: Part, model: str) -> list[Pause]:
    chosen: list[Cut] = []
    for clip in chosen_clips(data, part):
        words = file_words(bench, model, clip) if clip.group == VOXLINGUA else ()
        chosen += cuts(clip, words, load_audio(clip.file))
    found = []
    for cut in counted(chosen, f"{part}, cuts"):
        key = f"turns {model}"
        value = bench.log.get(key, cut.name)
        samples = load_audio(cut.clip.file)
        if value is None:
            answer = asked(bench, model, cut, samples)
            value = {} if answer is None else {"text_end": asdict(answer[0]), "late_s": answer[1]}
            bench.log.add(key, cut.name, value)
        if value:
            trailing_s = (cut.sample - loud_until(samples[: cut.sample])) / SAMPLE_RATE
            found.append(
                Pause(
                    cut.kind == "end",
                    cut.kind,
                    cut.clip.language,
                    cut.clip.group,
                    TextEnd(**value["text_end"]),
                    value["late_s"] + trailing_s,
                )
            )
    return found


def loud_until(samples: Samples) -> int:
    """Return the end of the last 20 ms that are at most 30 dB below the loud twentieth."""
    step = SAMPLE_RATE // 50
    power = (samples[: len(samples) // step * step].reshape(-1, step) ** 2).mean(axis=1)
    loud = np.flatnonzero(power > 1e-3 * np.quantile(power, 0.95))
    return (int(loud[-1]) + 1) * step if len(loud) else len(samples)


PAUSES_FROM_S, PAUSE_EXPONENT = 0.2, 1.44
"""Of the pauses of 0.2 s or more inside turns of eot-bench's English conversations, the share that lasts t
seconds or longer is (t / 0.2) ** -1.44: 0.56 for 0.3 s, 0.21 for 0.6 s, 0.10 for 1 s, 0.05 for 1.6 s.
Source: the silence-only baseline of https://github.com/livekit/eot-bench, 55.6, 21.7, 10 and 5 %.
"""
FIXED_S = {"high": 0.5, "medium": 0.9, "low": 1.5}
"""An eagerness has the false ends of a fixed pause of so many seconds."""
MOST_S = (1.0, 1.5, 2.0, 3.0, 4.0)
RIDGE = 1e-2


def survival(pause_s: float) -> float:
    """Return the probability that a pause inside a turn lasts so long."""
    return min(1.0, (pause_s / PAUSES_FROM_S) ** -PAUSE_EXPONENT)


def by_language(pauses: Sequence[Pause], of: Callable[[Pause], float]) -> float:
    """Return the mean over languages of the mean over their pauses."""
    values: dict[str, list[float]] = {}
    for one in pauses:
        values.setdefault(one.language, []).append(of(one))
    return float(np.mean([np.mean(some) for some in values.values()]))


def false_ends(rule: FittedTurnRule, pauses: Sequence[Pause]) -> float:
    inside = [one for one in pauses if not one.is_end]
    return by_language(inside, lambda one: survival(rule.pause_s(one.text_end)))


def delays(rule: FittedTurnRule, pauses: Sequence[Pause]) -> list[float]:
    return [rule.pause_s(one.text_end) + one.late_s for one in pauses if one.is_end]


def at_false_ends(rule: FittedTurnRule, pauses: Sequence[Pause], share: float) -> FittedTurnRule:
    """Return the rule with the threshold at which this share of pauses are false ends."""
    low, high = -20.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        rule = replace(rule, threshold=1 / (1 + math.exp(-middle)))
        low, high = (middle, high) if false_ends(rule, pauses) > share else (low, middle)
    return rule


def fitted(pauses: Sequence[Pause]) -> FittedTurnRule:
    """Return the rule of greatest likelihood: ends and pauses, and all languages, count the same."""
    features = np.array([[1.0, *one.text_end.features] for one in pauses])
    ends = np.array([one.is_end for one in pauses], float)
    groups = [(one.is_end, one.language) for one in pauses]
    weights = np.array([1 / groups.count(group) for group in groups])
    weights *= len(pauses) / weights.sum()
    found = np.zeros(features.shape[1])
    for _ in range(50):
        probs = 1 / (1 + np.exp(-features @ found))
        gradient = features.T @ (weights * (ends - probs)) - RIDGE * found
        curvature = (features * (weights * probs * (1 - probs))[:, None]).T @ features
        found += np.linalg.solve(curvature + RIDGE * np.eye(len(found)), gradient)
    bias, *rest = map(float, found)
    return FittedTurnRule(
        0.5,
        bias=bias - PAUSE_EXPONENT * math.log(PAUSES_FROM_S),
        weights=(rest[0], rest[1]),
        pause_weight=PAUSE_EXPONENT,
    )


def fit(pauses: Sequence[Pause]) -> None:
    """Print the rules of streaming/options.py."""
    rule = fitted(pauses)
    ends = [one for one in pauses if one.is_end]

    def delay_s(most_s: float, share: float) -> float:
        chosen = at_false_ends(replace(rule, most_s=most_s), pauses, share)
        return by_language(ends, lambda one: chosen.pause_s(one.text_end) + one.late_s)

    rows, figures = [], {}
    for name, fixed_s in FIXED_S.items():
        share = survival(fixed_s)
        most_s = min((one for one in MOST_S if one > fixed_s), key=lambda one: delay_s(one, share))
        chosen = at_false_ends(replace(rule, most_s=most_s), pauses, share)
        figures[name] = asdict(chosen)
        rows.append([name, f"{chosen.threshold:.3f}", f"{most_s:g} s", percent(share)])
    show_table(["eagerness", "threshold", "longest pause", "false ends"], rows)
    show_json("live turns fit", {"n": len(pauses), "rules": figures})


def interval(values: Sequence[float]) -> str:
    """Return the median with its 95 % interval by bootstrap."""
    rng = np.random.default_rng(0)
    some = np.array(values)
    drawn = np.median(rng.choice(some, (1000, len(some))), axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return f"{np.median(some):.2f} s ({low:.2f} to {high:.2f})"


def auc(pauses: Sequence[Pause], rule: FittedTurnRule) -> float:
    """Return how often an end has a higher probability than a pause."""
    scores = [
        [rule.probability(one.text_end, 1.0) for one in pauses if one.is_end == end] for end in (True, False)
    ]
    ends, others = map(np.array, scores)
    above = (ends[:, None] > others[None]).mean() + 0.5 * (ends[:, None] == others[None]).mean()
    return float(above)


def medium() -> FittedTurnRule:
    return EAGERNESS["medium"]


def show(pauses: Sequence[Pause]) -> None:
    """Print false ends and delays of held-out speech."""
    languages = sorted({one.language for one in pauses})
    rows: list[list[str]] = []
    figures: dict[str, Any] = {}
    for language in (*languages, ""):
        some = [one for one in pauses if language in ("", one.language)]
        rows_of = figures[language or "all"] = {}
        ends = [one for one in some if one.is_end]
        for name, fixed_s in FIXED_S.items():
            shipped = EAGERNESS[name]  # type: ignore[index]
            equal = at_false_ends(shipped, some, survival(fixed_s))
            fixed = [fixed_s + one.late_s for one in ends]
            rows_of[name] = {
                "false_ends": false_ends(shipped, some),
                "delay_s": float(np.median(delays(shipped, some))),
                "mean_delay_s": float(np.mean(delays(shipped, some))),
                "equal_delay_s": float(np.median(delays(equal, some))),
                "equal_mean_delay_s": float(np.mean(delays(equal, some))),
                "fixed_false_ends": survival(fixed_s),
                "fixed_delay_s": float(np.median(fixed)),
            }
            if name == "medium":
                one = rows_of[name]
                rows.append(
                    [
                        language or "all",
                        f"{len(ends)}, {len(some) - len(ends)}",
                        f"{auc(some, shipped):.2f}",
                        seconds(one["fixed_delay_s"]),
                        interval(delays(equal, some)),
                        seconds(one["equal_mean_delay_s"]),
                        percent(one["false_ends"]),
                        seconds(one["delay_s"]),
                    ]
                )
    heads = ["language", "ends, pauses", "AUC", "fixed 0.9 s", "equal false ends, median", "mean"]
    show_table([*heads, "`medium`: false ends", "median"], rows)
    show_json("live turns", {"n": len(pauses), "found": figures})


@dataclass(frozen=True, slots=True)
class Turn:
    """A recorded turn. pauses_s: start and end of each silence, the last of which ends the turn; or none."""

    name: str
    language: str
    samples: Samples
    pauses_s: tuple[tuple[float, float], ...] = ()
    is_complete: bool = True


def turns_of(folder: Path) -> Iterator[Turn]:
    """Read the Parquet files of a folder, in the layout of eot-bench or of Smart Turn's data."""
    import pyarrow.parquet as pq

    files = sorted(folder.rglob("*.parquet"))
    if not files:
        raise SystemExit(f"{folder}: expected Parquet files, got none")
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=16):
            for row in batch.to_pylist():
                spans = tuple((span["start"], span["end"]) for span in row.get("silence_spans") or ())
                samples = load_audio(io.BytesIO(row["audio"]["bytes"]))
                yield Turn(row["id"], row["language"], samples, spans, bool(row.get("endpoint_bool", True)))


def answers_of(bench: Bench, model: str, turn: Turn) -> list[tuple[float, TextEnd]]:
    """Return where each pause of a turn begins (s), by voice activity, and what the decoder said of it."""
    found = bench.log.get(f"answers {model}", turn.name)
    if found is None:
        rule = Recorder()
        session = bench.model(model, "auto").session(
            turn.language,
            switching="off",
            stream=StreamOptions(turns=rule),  # type: ignore[arg-type]
        )
        audio = with_quiet(turn.samples, len(turn.samples))
        at_s: list[float] = []
        for start in range(0, len(audio), WINDOW_SAMPLES):
            session.push(audio[start : start + WINDOW_SAMPLES])
            end_s = min(len(audio), start + WINDOW_SAMPLES) / SAMPLE_RATE
            at_s += [end_s - PAUSE_MS / 1000] * (len(rule.asked) - len(at_s))
        found = {"answers": [[at, asdict(one)] for at, one in zip(at_s, rule.asked, strict=True)]}
        bench.log.add(f"answers {model}", turn.name, found)
    return [(at, TextEnd(**one)) for at, one in found["answers"]]


HOLDS_S = (0.2, 5.0)
"""Pauses inside turns that count, as eot-bench's report has them by default."""
APART_S = 0.3
"""Voice activity and the silence of the data may begin so far apart."""
ALLOWED = (0.05, 0.1)
THRESHOLDS = tuple(1 / (1 + math.exp(-x / 4)) for x in range(-16, 25))


def score_pauses(turns: Sequence[tuple[Turn, list[tuple[float, TextEnd]]]]) -> None:
    """Print, by language, the mean time after the end of turns at 5 and 10 % of false ends."""
    rows, figures = [], {}
    for language in sorted({turn.language for turn, _ in turns}):
        some = [(turn, answers) for turn, answers in turns if turn.language == language]
        holds_s = [
            b - a for turn, _ in some for a, b in turn.pauses_s[:-1] if HOLDS_S[0] <= b - a <= HOLDS_S[1]
        ]
        silence = [
            (sum(one > s for one in holds_s) / max(1, len(holds_s)), s) for s in np.arange(0.2, 4.0, 0.05)
        ]
        semantic = [
            outcome(some, replace(medium(), threshold=one, most_s=most_s))
            for one in THRESHOLDS
            for most_s in MOST_S
        ]
        cells, found = [], {}
        for allowed in ALLOWED:
            for name, points in (("silence", silence), ("semantic", semantic)):
                best = min((delay for share, delay in points if share <= allowed), default=math.nan)
                found[f"{name} {allowed:g}"] = best
                cells.append(seconds(best))
        figures[language] = found
        rows.append([language, f"{len(some)}, {len(holds_s)}", *cells])
    heads = [f"{name} at {allowed:.0%}" for allowed in ALLOWED for name in ("silence", "semantic")]
    show_table(["language", "turns, pauses", *heads], rows)
    show_json("live turns score", {"found": figures})


def outcome(
    turns: Sequence[tuple[Turn, list[tuple[float, TextEnd]]]], rule: FittedTurnRule
) -> tuple[float, float]:
    """Return the share of pauses inside turns that a rule ends, and the mean time after turns (s)."""
    n_holds, n_false, delays_s = 0, 0, []
    for turn, answers in turns:
        for number, (start_s, end_s) in enumerate(turn.pauses_s, 1):
            ends_s = [
                max(0.0, at - start_s) + rule.pause_s(text_end)
                for at, text_end in answers
                if start_s - APART_S < at < end_s
            ]
            if number == len(turn.pauses_s):
                delays_s.append(min(ends_s, default=rule.most_s))
            elif HOLDS_S[0] <= end_s - start_s <= HOLDS_S[1]:
                n_holds += 1
                n_false += min(ends_s, default=math.inf) < end_s - start_s
    return n_false / max(1, n_holds), float(np.mean(delays_s))


def score_clips(turns: Sequence[tuple[Turn, list[tuple[float, TextEnd]]]]) -> None:
    """Print, by language, how well the last pause tells complete clips from incomplete ones."""
    rows, figures = [], {}
    for language in sorted({turn.language for turn, _ in turns}):
        pauses = [
            Pause(turn.is_complete, "", language, "", answers[-1][1], 0.0)
            for turn, answers in turns
            if turn.language == language and answers
        ]
        right = [(medium().probability(one.text_end, 0.2) >= 0.5) == one.is_end for one in pauses]
        figures[language] = {"n": len(pauses), "auc": auc(pauses, medium()), "right": float(np.mean(right))}
        rows.append(
            [language, str(len(pauses)), f"{figures[language]['auc']:.3f}", percent(float(np.mean(right)))]
        )
    show_table(["language", "clips", "AUC", "right"], rows)
    show_json("live turns score", {"found": figures})


def main() -> None:
    parser = benchmark_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("fit", "show", "score"):
        one = commands.add_parser(name)
        if name == "score":
            one.add_argument("folder", type=Path, help="of Parquet files")
            one.add_argument("--layout", choices=("eot-bench", "smart-turn"), required=True)
            one.add_argument("--most", type=int, help="turns")
        else:
            add_shared(one)
        one.add_argument("--log", type=Path, help="what was done so far: JSON lines that are added to")
        one.add_argument("--model", default="base")
    given = parser.parse_args()
    bench = Bench(Log(given.log))
    if given.command == "score":
        turns = islice(turns_of(given.folder), given.most)
        nothing = np.zeros(0, np.float32)
        answered = [(replace(turn, samples=nothing), answers_of(bench, given.model, turn)) for turn in turns]
        (score_pauses if given.layout == "eot-bench" else score_clips)(answered)
        return
    part: Part = "dev" if given.command == "fit" else "test"
    found = pauses_of(bench, given.shared / "data", part, given.model)
    if given.command == "fit":
        fit(found)
    else:
        show(found)


if __name__ == "__main__":
    main()
