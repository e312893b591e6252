"""Files in several languages: what is lost, what is told of languages, and what it costs.

    python -m benchmarks language followed ../shared/data run --log followed.jsonl
    python -m benchmarks language followed ../shared/data show --log followed.jsonl

Recordings joined from people's clips (`mixed_recordings`): those of kind "text" count words, those of kind
"all" have eight languages and count changes. Systems: `parts` reads every part as a file of its own with
its language given; `list` and `auto` read the recording whole, `list` with the recording's languages,
`auto` with none; `live` is the live session with the same list; `given` reads it in its first language (for
the cost alone); the other programs follow languages as far as they can. A recording's words are those of
its whole text; their twins "untimed" write no word times, as the command does by default, and "vad" and
"batched" (last word) find speech first, as `--vad` and `--batch-size 8`. `--condition` is what was done to
the recordings (`conditions`). `wrong s` are seconds of parts that were read in another language, `told` those
of speech that the transcription says has no words. PIER (arXiv 2501.09512) counts errors of the words beside
a change of language: the last of the part before it and the first of the part after. `unread` are seconds of
speech, by the detector, in stretches of a second or more that no word covers. Processor seconds are those of
one process with one thread, without loading. Needs `make test`'s environment.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.arguments import add_part, benchmark_parser
from benchmarks.harness.clips import Part
from benchmarks.harness.log import add_row, read_rows
from benchmarks.harness.programs import faster_model
from benchmarks.harness.tables import show_json
from benchmarks.language.conditions import CONDITIONS
from benchmarks.language.mixed_recordings import MixedRecording, described, mixed_recordings
from sottovoce.api import Model, load_model
from sottovoce.audio.vad import speech_segments
from sottovoce.evaluation.language_scores import NO_SCORES, FoundSwitch, score_switches
from sottovoce.evaluation.wer import ScoredUtterance, ScoreOptions, compare, score
from sottovoce.models.checkpoint.convert import write_checkpoint
from sottovoce.models.load import load_checkpoint
from sottovoce.offline.packing import Piece
from sottovoce.offline.pieces import PIECE_VAD
from sottovoce.offline.unread import covered_by_word, uncovered
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.normalize import normalizer_for
from sottovoce.types import HOP_SAMPLES, SAMPLE_RATE, Samples, Word

BEAM_SIZE = 5
N_RECORDINGS = 20
KINDS = "text", "all"
PARTS = "parts"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a system made of a recording. words: (start, end, word). spans: (start, end, language). told:
    (start, end) of speech that it says has no words.
    """

    text: str
    words: list[tuple[float, float, str]]
    spans: list[tuple[float, float, str]]
    cpu_s: float
    told: list[tuple[float, float]] = field(default_factory=list)


System = Callable[[MixedRecording, Samples], Outcome]


WAYS = {"": {}, " vad": {"mode": "vad"}, " batched": {"mode": "vad", "batch_size": 8}}


def ours(
    model: Model, languages: Callable[[MixedRecording], str | None], *, words: bool = True, **options: Any
) -> System:
    """The file as `transcribe` reads it. words: with their times, for what they show. options: others."""

    def read(recording: MixedRecording, samples: Samples) -> Outcome:
        started = time.process_time()
        found = model.transcribe(
            samples,
            language=languages(recording),
            beam_size=BEAM_SIZE,
            word_timestamps=words,
            options=TranscribeOptions(**options),
        )
        segments = list(found)
        spent = time.process_time() - started
        timed = [(word.start, word.end, word.word) for one in segments for word in one.words or ()]
        spans = [(one.start, one.end, one.language) for one in segments]
        told = list(found.unread or ())
        return Outcome(" ".join(one.text for one in segments), timed, spans, spent, told)

    return read


def parts_alone(model: Model) -> System:
    """Every part as a file of its own, its language given."""

    def read(recording: MixedRecording, samples: Samples) -> Outcome:
        outcome = Outcome("", [], [], 0.0)
        for part in recording.parts:
            sound = recording.audio_of(part, samples)
            started = time.process_time()
            segments = list(
                model.transcribe(sound, language=part.language, beam_size=BEAM_SIZE, word_timestamps=True)
            )
            spent = outcome.cpu_s + time.process_time() - started
            words = [
                (word.start + part.start_s, word.end + part.start_s, word.word)
                for one in segments
                for word in one.words or ()
            ]
            text = " ".join([outcome.text, *(one.text for one in segments)])
            span = (part.start_s, part.end_s, part.language)
            outcome = Outcome(text, outcome.words + words, [*outcome.spans, span], spent)
        return outcome

    return read


def live(model: Model) -> System:
    """The live session with the recording's languages, half a second at a time."""

    def read(recording: MixedRecording, samples: Samples) -> Outcome:
        started = time.process_time()
        session = model.session(languages=recording.languages)
        events = []
        for start in range(0, len(samples), SAMPLE_RATE // 2):
            events += session.push(samples[start : start + SAMPLE_RATE // 2])
        events += session.close()
        spent = time.process_time() - started
        finals = [event for event in events if type(event).__name__ == "Final"]
        words = [(word.start, word.end, word.word) for one in finals for word in one.words]
        spans = [
            (word.start, word.end, word.language or one.language) for one in finals for word in one.words
        ]
        return Outcome(" ".join(one.text for one in finals), words, spans, spent)

    return read


def faster_whisper(*, batched: bool = False) -> System:
    """faster-whisper, int8, asked for the language of every window; batched: over speech found first, which
    is what WhisperX does too."""
    folder = Path(tempfile.mkdtemp())
    program = faster_model(load_checkpoint("base"), folder, "int8", 1)

    def read(recording: MixedRecording, samples: Samples) -> Outcome:
        started = time.process_time()
        options: dict[str, Any] = {"multilingual": True, "beam_size": BEAM_SIZE, "word_timestamps": True}
        if batched:
            from faster_whisper import BatchedInferencePipeline

            segments, _ = BatchedInferencePipeline(program).transcribe(samples, batch_size=8, **options)
        else:
            segments, _ = program.transcribe(samples, **options)
        found = list(segments)
        spent = time.process_time() - started
        words = [(word.start, word.end, word.word) for one in found for word in one.words or ()]
        return Outcome(" ".join(one.text for one in found), words, [], spent)

    return read


def whisper_cpp() -> System:
    """whisper.cpp, f16 weights, language found by itself (once, which is all it can)."""
    from pywhispercpp.model import Model as Program

    file = Path(tempfile.mkdtemp()) / "ggml-base.bin"
    write_checkpoint(load_checkpoint("base"), file, "ggml", "f16")
    program = Program(
        str(file),
        n_threads=1,
        print_progress=False,
        print_realtime=False,
        redirect_whispercpp_logs_to=None,
        params_sampling_strategy=1,
        beam_search={"beam_size": BEAM_SIZE, "patience": -1.0},
    )

    def read(recording: MixedRecording, samples: Samples) -> Outcome:
        started = time.process_time()
        found = program.transcribe(samples, language="auto")
        spent = time.process_time() - started
        words = [(one.t0 / 100, one.t1 / 100, one.text) for one in found]
        return Outcome(" ".join(one.text for one in found), words, [], spent)

    return read


@cache
def systems() -> dict[str, Callable[[], System]]:
    """By name, made when they are needed."""
    model = load_model("base", device="cpu")
    return {
        **_own_ways(model, "list", lambda recording: ",".join(recording.languages)),
        **_own_ways(model, "auto", lambda recording: None),
        "given": lambda: ours(model, lambda recording: recording.parts[0].language),
        PARTS: lambda: parts_alone(model),
        "live": lambda: live(model),
        "faster-whisper": lambda: faster_whisper(),
        "faster-whisper batched": lambda: faster_whisper(batched=True),
        "whisper.cpp": lambda: whisper_cpp(),
    }


def _own_ways(
    model: Model, name: str, languages: Callable[[MixedRecording], str | None]
) -> dict[str, Callable[[], System]]:
    """All ways of reading a file, with times of words and without."""
    return {
        f"{name}{suffix}{way}": partial(ours, model, languages, words=not suffix, **options)
        for suffix in ("", " untimed")
        for way, options in WAYS.items()
    }


def chosen_recordings(
    data: Path, part: Part, n_recordings: int, condition: str, kinds: Sequence[str] = KINDS
) -> list[MixedRecording]:
    """Of each kind so many: "text" counts words, "all" changes."""
    some = [
        mixed_recordings(data, part, n_recordings, with_text=kind == "text", condition=condition)
        for kind in kinds
    ]
    return [one for found in some for one in found]


def run(recordings: Sequence[MixedRecording], names: Sequence[str], log: Path) -> None:
    """Let systems read recordings; what the log has is not read again."""
    done = set(outcomes(log))
    for name in names:
        todo = [one for one in recordings if (name, one.name) not in done]
        if not todo:
            continue
        read = systems()[name]()
        read(recordings[0], recordings[0].audio())  # warm
        for recording in todo:
            outcome = read(recording, recording.audio())
            add_row(log, {"system": name, "recording": recording.name, **asdict(outcome)})
            print(name, recording.name, f"{outcome.cpu_s:.1f} s", flush=True)


def outcomes(log: Path) -> dict[tuple[str, str], Outcome]:
    """What the log has, by system and recording."""
    found: dict[tuple[str, str], Outcome] = {}
    for row in read_rows(log):
        key = row.pop("system"), row.pop("recording")
        found[key] = Outcome(**row)
    return found


def unread_s(recording: MixedRecording, outcome: Outcome) -> list[tuple[float, float]]:
    """Stretches of speech that no word covers."""
    found = speech_segments(recording.audio(), PIECE_VAD)
    pieces = [Piece(one.start_sample // HOP_SAMPLES, -(-one.end_sample // HOP_SAMPLES)) for one in found]
    words = [Word(text, start, end, 1.0) for start, end, text in outcome.words]
    left = uncovered(pieces, map(covered_by_word, words))
    return [(stretch[0].start / 100, stretch[-1].end / 100) for stretch in left]


def changes(outcome: Outcome) -> list[FoundSwitch]:
    """Where its language changes."""
    spans = outcome.spans
    pairs = [(a, b) for a, b in pairwise(spans) if a[2] != b[2]]
    return [FoundSwitch((a[1] + b[0]) / 2, b[0], a[2], b[2]) for a, b in pairs]


def wrong_s(recording: MixedRecording, outcome: Outcome) -> float:
    """Seconds of parts that were read in another language than theirs."""
    return sum(
        max(0.0, min(end, part.end_s) - max(start, part.start_s))
        for part in recording.parts
        for start, end, language in outcome.spans
        if language != part.language
    )


def beside_changes(recording: MixedRecording) -> Iterator[int]:
    """Places, among all words of the reference, of those beside a change of language."""
    n_words = 0
    before = ""
    for part in recording.parts:
        n_of_part = len(normalizer_for(part.language)(part.text or "").split())
        if before and before != part.language:
            yield n_words - 1
            yield n_words
        n_words, before = n_words + n_of_part, part.language


def pier(recording: MixedRecording, outcome: Outcome) -> tuple[int, int]:
    """Words beside a change that are not written as they were said, and how many there are."""
    from difflib import SequenceMatcher

    normalize = normalizer_for(None)
    reference = " ".join(part.text or "" for part in recording.parts)
    said, written = normalize(reference).split(), normalize(outcome.text).split()
    blocks = SequenceMatcher(None, said, written, autojunk=False).get_matching_blocks()
    right = {place for block in blocks for place in range(block.a, block.a + block.size)}
    places = [place for place in beside_changes(recording) if place < len(said)]
    return sum(place not in right for place in places), len(places)


def show(recordings: Sequence[MixedRecording], log: Path) -> None:
    """A table, and one JSON line."""
    found = outcomes(log)
    rows = []
    print(described([one for one in recordings if one.name.startswith("text")]), "| text")
    print(described([one for one in recordings if one.name.startswith("all")]), "| all")
    for name in dict.fromkeys(system for system, _ in found):
        rows.append(summary(name, recordings, found))
        print(" | ".join(f"{key} {value}" for key, value in rows[-1].items()))
    show_json("language followed", {"rows": rows})


def scored(recording: MixedRecording, outcome: Outcome) -> ScoredUtterance:
    """A recording as one utterance, with all that was said in it."""
    said = " ".join(part.text or "" for part in recording.parts)
    return ScoredUtterance(said, outcome.text, recording.languages)


def summary(
    name: str, recordings: Sequence[MixedRecording], found: dict[tuple[str, str], Outcome]
) -> dict[str, Any]:
    """One row: errors of words with their interval, PIER, changes, unread speech, processor seconds."""
    own = [(one, found[name, one.name]) for one in recordings if (name, one.name) in found]
    texts = [(one, outcome) for one, outcome in own if one.name.startswith("text")]
    utterances = [scored(*pair) for pair in texts]
    row: dict[str, Any] = {"system": name, "recordings": len(own)}
    if utterances:
        rate = score(utterances, ScoreOptions()).overall.wer
        row |= {"words wrong %": _percent(rate.rate), "low": _percent(rate.low), "high": _percent(rate.high)}
        wrong, n_places = map(sum, zip(*(pier(*one) for one in texts), strict=True))
        row["PIER %"] = _percent(wrong / max(1, n_places))
        alone = [scored(one, found[PARTS, one.name]) for one, _ in texts if (PARTS, one.name) in found]
        if name != PARTS and len(alone) == len(texts):
            beside = compare(alone, utterances)
            low, high = 100 * beside.low, 100 * beside.high
            row["beside parts"] = f"{100 * beside.difference:+.1f} ({low:+.1f} to {high:+.1f})"
    for kind in ("text", "all"):
        some = [(one, outcome) for one, outcome in own if one.name.startswith(kind)]
        if any(outcome.spans for _, outcome in some):
            total = NO_SCORES
            for one, outcome in some:
                total += score_switches(changes(outcome), one.spans, duration_s=one.duration_s)
            wrong = sum(wrong_s(one, outcome) for one, outcome in some)
            row |= {f"F1 {kind}": round(total.f1, 3), f"changes {kind}": total.n_true}
            row[f"wrong s {kind}"] = round(wrong, 1)
        left = [stretch for pair in some for stretch in unread_s(*pair)]
        row[f"unread {kind}"] = f"{len(left)} / {sum(end - start for start, end in left):.1f} s"
        told = sum(end - start for _, outcome in some for start, end in outcome.told)
        row[f"told {kind}"] = round(told, 1)
        row[f"cpu s {kind}"] = round(sum(outcome.cpu_s for _, outcome in some), 1)
    return row


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("action", choices=("run", "show"))
    add_part(parser)
    parser.add_argument("--recordings", type=int, default=N_RECORDINGS, help="of each kind")
    parser.add_argument("--systems", default="list,auto,given,parts,live")
    parser.add_argument("--kind", choices=KINDS, help="only these recordings")
    parser.add_argument(
        "--condition", choices=tuple(CONDITIONS), default="clean", help="what was done to them"
    )
    parser.add_argument("--log", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    kinds = KINDS if given.kind is None else (given.kind,)
    recordings = chosen_recordings(given.data, given.part, given.recordings, given.condition, kinds)
    if given.action == "run":
        run(recordings, given.systems.split(","), given.log)
    show(recordings, given.log)
