"""Do the same weights give the same text, languages, segments and word times as openai-whisper?

    python -m benchmarks files parity ../shared                                  # Whisper base, 120 clips
    python -m benchmarks files parity ../shared --model tiny.en --clips 30
    python -m benchmarks files parity ../shared --model path/to/base.pt

Clips of people (`harness.clips`, those that report), evenly from every set, in float32. Each clip goes
greedily through the whole of `transcribe` with words; its first 30 s are decoded with beam search, and
the language is found there. Log-mel, detection, decoding, segments and words are each program's own. Two
long recordings are joined of clips of one language and of pauses, the second is timed word by word.
Prints a table by set, every difference with its reason, and one JSON line.

The reason of a difference: both read the same tokens up to the first one. Two networks that add the same
numbers in another order differ by some 1e-5 in their logits; where the two readings are no further apart
than that noise, it is a tie, and either of them is right. For beam search, whose choice is between whole
texts, the texts' mean log-probabilities count.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from benchmarks.harness.clips import Clip, clips, joined, spread
from benchmarks.harness.programs import openai_model
from benchmarks.harness.report import add_shared, benchmark_parser, show_json
from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, normalize, pad_or_trim
from sottovoce.decoding.decode import DecodingResult, decode, detect_language
from sottovoce.models.backend import Backend, EncoderOutput
from sottovoce.models.load import load_checkpoint
from sottovoce.options.decoding import DecodingOptions, FallbackOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.torch import TorchBackend
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import (
    SAMPLE_RATE,
    Features,
    Samples,
    Segment,
    Word,
)

if TYPE_CHECKING:
    import whisper


LARGEST_NOISE = 1e-3
"""Above this the two networks are not the same, whatever the margin."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The two networks, and the window as each encoded it: states (1, n_frames, d)."""

    backend: Backend
    reference: whisper.model.Whisper
    encoded: EncoderOutput
    states: Tensor

    def logits(self, tokens: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Logits (n_tokens, n_vocab) after every token, by each network."""
        row = torch.tensor([tokens])
        with torch.inference_mode():
            rows = self.backend.rows()
            rows.admit(self.encoded)
            ours = torch.from_numpy(rows.step([tokens], [range(len(tokens))]).logits)
            theirs = self.reference.logits(row, self.states)[0].float()
        return ours, theirs


class Decoded(NamedTuple):
    """The tokens that each program wrote; greedy: token by token, not whole texts."""

    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    greedy: bool


def explain(sides: Sides, tokenizer: Tokenizer, decoded: Decoded) -> str:
    """A tie with its margin, or "unexplained" with it."""
    start = tuple(tokenizer.sot_sequence)
    if decoded.greedy:
        margins, noise = _choice_margins(sides, tokenizer, start, decoded)
    else:
        margins, noise = _text_margins(sides, tokenizer, start, decoded)
    is_tie = noise < LARGEST_NOISE and min(map(abs, margins)) <= 2 * noise
    shown = f"ours is ahead by {margins[0]:.1e} to us and {margins[1]:.1e} to them, noise {noise:.1e}"
    return f"{'tie' if is_tie else 'unexplained'}: {shown}"


def _choice_margins(
    sides: Sides, tokenizer: Tokenizer, start: tuple[int, ...], decoded: Decoded
) -> tuple[tuple[float, float], float]:
    """How much more our token weighs than theirs where they part, and the networks' difference there.

    Between text and timestamps Whisper compares the sum of all timestamps with the likeliest text token.
    """
    ours, theirs = ((*side, tokenizer.eot) for side in decoded[:2])
    parting = next(at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    pair = [side[-1] for side in sides.logits((*start, *ours[:parting]))]
    logprobs = [side.log_softmax(dim=0) for side in pair]
    tokens = ours[parting], theirs[parting]
    mixed = tokenizer.is_timestamp(tokens[0]) != tokenizer.is_timestamp(tokens[1])

    def weight(side: Tensor, token: int) -> float:
        if mixed and tokenizer.is_timestamp(token):
            return float(side[tokenizer.timestamp_begin :].logsumexp(dim=0))
        return float(side[token])

    ahead = [weight(side, tokens[0]) - weight(side, tokens[1]) for side in logprobs]
    noise = max(abs(weight(logprobs[0], token) - weight(logprobs[1], token)) for token in tokens)
    return (ahead[0], ahead[1]), noise


def _text_margins(
    sides: Sides, tokenizer: Tokenizer, start: tuple[int, ...], decoded: Decoded
) -> tuple[tuple[float, float], float]:
    """How much more our text weighs than theirs, each by its mean log-probability, and the noise."""
    means: list[list[float]] = []
    for text in decoded[:2]:
        written = (*text, tokenizer.eot)
        chosen = torch.tensor(written)[:, None]
        means.append(
            [
                float(side[len(start) - 1 :].log_softmax(dim=1).gather(1, chosen).mean())
                for side in sides.logits((*start, *text))
            ]
        )
    ahead = means[0][0] - means[1][0], means[0][1] - means[1][1]
    return ahead, max(abs(item[0] - item[1]) for item in means)


WINDOW_S, WINDOW_FRAMES = 30, 3000
BEAM_SIZE = 5
TOLERANCE_S = 0.02
REST_S = 0.1
"""Less than this at the end of a recording is not read by us, on purpose."""
LONG_S = 600.0
LONG_LANGUAGES = ("en", "de")
Encoded: TypeAlias = "tuple[EncoderOutput, torch.Tensor]"
"""A window as we and as they hear it."""
Timed: TypeAlias = "Word | Segment"


@dataclass(slots=True)
class Tally:
    clips: int = 0
    language: int = 0
    greedy: int = 0
    beam: int = 0
    segments: int = 0
    segments_within: int = 0
    words: int = 0
    words_within: int = 0
    worst_s: float = 0.0

    def add(self, other: Tally) -> None:
        worst = max(self.worst_s, other.worst_s)
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
        self.worst_s = worst


@dataclass(frozen=True, slots=True)
class Difference:
    """Something on which the two programs disagree. reason: why, as far as was found."""

    clip: str
    what: str
    reason: str
    ours: str
    theirs: str


@dataclass(slots=True)
class Report:
    sets: dict[str, Tally] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Engines:
    """The two programs with the same weights."""

    model: Model
    reference: whisper.model.Whisper

    @property
    def is_multilingual(self) -> bool:
        return self.model.tokenizer.is_multilingual

    def encoded(self, samples: Samples) -> Encoded:
        """The first window as each program hears it: states (1, 1500, d) both."""
        from whisper.audio import log_mel_spectrogram

        padding, n_mels = WINDOW_S * SAMPLE_RATE, self.model.backend.dims.n_mels
        ours = pad_or_trim(normalize(log_mel(samples, n_mels, padding_samples=padding)))[None]
        theirs = log_mel_spectrogram(samples, n_mels, padding=padding)[:, :WINDOW_FRAMES]
        with torch.inference_mode():
            states = self.reference.embed_audio(theirs[None])
        return self.model.backend.encode(Features(ours, (WINDOW_FRAMES,))), states

    def detect(self, encoded: Encoded) -> tuple[dict[str, float], dict[str, float]]:
        """Probabilities of all languages in the first window."""
        ours = detect_language(self.model.backend, self.model.tokenizer, encoded[0])[0]
        return dict(ours.probabilities), self.reference.detect_language(encoded[1][0])[1]

    def decode(
        self, encoded: Encoded, language: str, beam_size: int | None
    ) -> tuple[DecodingResult, whisper.DecodingResult]:
        import whisper

        wish: dict[str, Any] = {"language": language, "beam_size": beam_size}
        options = DecodingOptions(**wish)
        ours = decode(self.model.backend, self.model.tokenizer, encoded[0], [options])[0]
        return ours, self.reference.decode(encoded[1][0], whisper.DecodingOptions(fp16=False, **wish))

    def transcribe(
        self, samples: Samples, language: str, *, words: bool
    ) -> tuple[list[Segment], list[Segment]]:
        """The segments of a whole recording, by us and by them, as far as the recording goes."""
        # Draws at higher temperatures are chance: no two programs draw the same.
        options = TranscribeOptions(read_again=False, fallback=FallbackOptions(temperatures=(0.0,)))
        ours = self.model.transcribe(samples, language=language, word_timestamps=words, options=options)
        theirs = self.reference.transcribe(
            samples, language=language, temperature=0.0, fp16=False, word_timestamps=words
        )
        duration_s = len(samples) / SAMPLE_RATE
        sides = list(ours), [_segment(item) for item in theirs["segments"]]
        return _inside(sides[0], duration_s), _inside(sides[1], duration_s)


def compare_clip(engines: Engines, clip: Clip, report: Report) -> None:
    """Language and beam search of the first window; text, segments and words of the whole clip."""
    tally = report.sets.setdefault(clip.group, Tally())
    tally.clips += 1
    samples = load_audio(clip.file)
    encoded = engines.encoded(samples[: WINDOW_S * SAMPLE_RATE])
    tally.language += not engines.is_multilingual or _same_language(engines, clip, encoded, report)
    language = clip.language if clip.language in engines.model.languages else "en"
    tally.beam += _same_window(engines, clip, encoded, engines.decode(encoded, language, BEAM_SIZE), report)
    segments = engines.transcribe(samples, language, words=True)
    same = _text(segments[0]) == _text(segments[1])
    tally.greedy += same
    if same:
        compare_times(clip.name, segments, tally, report)
    elif _same_window(engines, clip, encoded, engines.decode(encoded, language, None), report, "greedy"):
        texts = _text(segments[0]), _text(segments[1])
        report.differences.append(Difference(clip.name, "greedy", "unexplained", *texts))


def _same_language(engines: Engines, clip: Clip, encoded: Encoded, report: Report) -> bool:
    tables = engines.detect(encoded)
    ours, theirs = (max(table, key=lambda code: table[code]) for table in tables)
    if ours == theirs:
        return True
    margins = [table[ours] - table[theirs] for table in tables]
    noise = max(abs(tables[0][code] - tables[1][code]) for code in (ours, theirs))
    reason = "tie" if min(map(abs, margins)) <= 2 * noise < LARGEST_NOISE else "unexplained"
    report.differences.append(Difference(clip.name, "language", f"{reason}: {margins}", ours, theirs))
    return False


def _same_window(
    engines: Engines,
    clip: Clip,
    encoded: Encoded,
    results: tuple[DecodingResult, whisper.DecodingResult],
    report: Report,
    mode: str = "beam",
) -> bool:
    ours, theirs = results
    if ours.text == theirs.text:
        return True
    sides = Sides(engines.model.backend, engines.reference, *encoded)
    tokenizer = engines.model.tokenizer.with_language(ours.language)
    reason = explain(sides, tokenizer, Decoded(ours.tokens, tuple(theirs.tokens), mode == "greedy"))
    report.differences.append(Difference(clip.name, mode, reason, ours.text, theirs.text))
    return False


def compare_long(
    engines: Engines, data: Path, language: str, words: bool, report: Report, *, seconds: float = LONG_S
) -> None:
    """A long recording, joined of clips: text, segment times and, if asked for, word times."""
    samples = joined(clips(data, "test", language=language), seconds)
    name = f"{len(samples) / SAMPLE_RATE:.0f} s joined, {language}"
    tally = report.sets.setdefault(name, Tally())
    tally.clips += 1
    ours, theirs = engines.transcribe(samples, language, words=words)
    if _text(ours) == _text(theirs):
        tally.greedy += 1
        compare_times(name, (ours, theirs), tally, report)
        return
    pairs = zip_longest(ours, theirs)
    first = next(pair for pair in pairs if pair[0] is None or pair[1] is None or pair[0].text != pair[1].text)
    texts = [f"{item.start:.2f} {item.text}" if item else "no segment" for item in first]
    report.differences.append(Difference(name, "greedy", "unexplained", *texts))


def compare_times(
    name: str, segments: tuple[list[Segment], list[Segment]], tally: Tally, report: Report
) -> None:
    if len(segments[0]) != len(segments[1]):
        counts = str(len(segments[0])), str(len(segments[1]))
        report.differences.append(Difference(name, "segments", "unexplained", *counts))
        return
    for mine, other in zip(*segments, strict=True):
        tally.segments += 1
        tally.segments_within += _is_near(name, "segment", mine, other, report)
        _compare_words(name, mine.words or (), other.words or (), tally, report)


def _compare_words(
    name: str, ours: Sequence[Word], theirs: Sequence[Word], tally: Tally, report: Report
) -> None:
    if [word.word for word in ours] != [word.word for word in theirs]:
        cuts = ["|".join(word.word for word in words) for words in (ours, theirs)]
        reason = "broken UTF-8, which openai-whisper loses" if "\ufffd" in cuts[0] else "unexplained"
        report.differences.append(Difference(name, "words", reason, *cuts))
        return
    for mine, other in zip(ours, theirs, strict=True):
        tally.words += 1
        tally.words_within += _is_near(name, "word", mine, other, report)
        tally.worst_s = max(tally.worst_s, _apart(mine, other))


def _is_near(name: str, what: str, mine: Timed, other: Timed, report: Report) -> bool:
    if _apart(mine, other) <= TOLERANCE_S + 1e-6:
        return True
    texts = [item.word if isinstance(item, Word) else item.text for item in (mine, other)]
    shown = [f"{item.start:.2f}-{item.end:.2f} {t}" for item, t in zip((mine, other), texts, strict=True)]
    report.differences.append(Difference(name, what, "unexplained", *shown))
    return False


def _apart(mine: Timed, other: Timed) -> float:
    return max(abs(mine.start - other.start), abs(mine.end - other.end))


def _text(segments: Sequence[Segment]) -> str:
    return "".join(item.text for item in segments)


def _segment(result: dict[str, Any]) -> Segment:
    words = tuple(
        Word(str(word["word"]), float(word["start"]), float(word["end"]), float(word["probability"]))
        for word in result.get("words", ())
    )
    start, end = float(result["start"]), float(result["end"])
    return Segment(result["id"], start, end, result["text"], language="", words=words)


def _inside(segments: Sequence[Segment], duration_s: float) -> list[Segment]:
    """What is said within the recording: openai-whisper writes on behind its end, and reads its very rest."""
    return [
        replace(
            item,
            end=min(item.end, duration_s),
            words=tuple(replace(word, end=min(word.end, duration_s)) for word in item.words or ()),
        )
        for item in segments
        if item.text.strip() and item.start < duration_s - REST_S
    ]


def rows(report: Report) -> Iterator[tuple[str, Tally]]:
    """The sets, and their sum."""
    total = Tally()
    for name, tally in report.sets.items():
        total.add(tally)
        yield name, tally
    yield "all", total


def show(report: Report, model: str, line: dict[str, Any]) -> None:
    columns = ("clips", "language", "greedy", "beam", "segments", "<=20 ms", "words", "<=20 ms", "worst s")
    print(f"{'set':24}" + "".join(f"{column:>10}" for column in columns))
    for name, item in rows(report):
        cells = "".join(f"{value:>10}" for value in list(asdict(item).values())[:-1])
        print(f"{name:24}{cells}{item.worst_s:10.2f}")
    for difference in report.differences:
        print(f"{difference.clip} {difference.what}: {difference.reason}")
        print(f"  ours   {difference.ours}\n  theirs {difference.theirs}")
    reasons = [{"clip": d.clip, "what": d.what, "reason": d.reason} for d in report.differences]
    figures = {"model": model, **asdict(list(rows(report))[-1][1])}
    show_json("files parity", figures | line | {"differences": reasons, "torch": torch.__version__})


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base", help="name or path; English-only ones hear English clips")
    parser.add_argument("--clips", type=int, default=120)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    checkpoint = load_checkpoint(arguments.model)
    backend = TorchBackend.from_checkpoint(checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        engines = Engines(Model(checkpoint, backend), openai_model(checkpoint, Path(folder)))
    report, began = Report(), time.perf_counter()
    data, language = arguments.shared / "data", None if engines.is_multilingual else "en"
    chosen = [c for c in clips(data, "test", language=language) if len(c.languages) == 1]
    try:
        for number, clip in enumerate(spread(chosen, arguments.clips), 1):
            compare_clip(engines, clip, report)
            print(f"{number} clips, {len(report.differences)} differences", file=sys.stderr, flush=True)
        for words, code in enumerate(LONG_LANGUAGES):
            if engines.is_multilingual or code == "en":
                compare_long(engines, data, code, bool(words), report)
    except KeyboardInterrupt:
        print("interrupted: what follows is what was done", file=sys.stderr)
    line = {"wall_s": round(time.perf_counter() - began), "threads": torch.get_num_threads()}
    show(report, engines.model.name, line)
