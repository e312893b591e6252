"""Scores of transcripts and live sessions: error rates, latency, languages and their switches.

Error rates are over words, characters or mixed units (a character of a script without spaces or a word of any
other), per language, with confidence intervals. Rates divide all errors of a set by all reference units, and
may exceed 1.

Latency is LAAL, StreamLAAL, word latency and the lines of SimulEval's log. Delays are seconds of received
audio, or of the clock (computation-aware). Normalise words first.

Times of switches are seconds of the recording.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from itertools import pairwise
from statistics import median
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from sottovoce.errors import InputError, OptionError, needs
from sottovoce.evaluation.manifest import LabelledSpan
from sottovoce.text.languages import UNSPACED_LETTERS
from sottovoce.text.normalize import Normalization, composed, normalizer_for
from sottovoce.text.word_edits import align_words
from sottovoce.types import SAMPLE_RATE, Event, Final, LanguageChanged, Partial, Samples, Word

Unit: TypeAlias = Literal["word", "character", "mixed"]
UNITS: tuple[Unit, ...] = get_args(Unit)
Number: TypeAlias = "int | float | None"

_MIXED = re.compile(rf"[{UNSPACED_LETTERS}]|[^\s{UNSPACED_LETTERS}]+")
_NEEDLESS_SPACE = re.compile(rf"(?<=[{UNSPACED_LETTERS}])\s+|\s+(?=[{UNSPACED_LETTERS}])")


@dataclass(frozen=True, slots=True)
class ScoredUtterance:
    """A reference, its hypothesis, and the spoken language or languages."""

    reference: str
    hypothesis: str
    language: str | tuple[str, ...] | None = None

    @property
    def label(self) -> str:
        """Group in a report: "de", "en+zh", or "unknown"."""
        if self.language is None:
            return "unknown"
        return self.language if isinstance(self.language, str) else "+".join(self.language)


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """How utterances are scored.

    normalization: see `normalizer_for`. n_resamples: of the bootstrap, 0 for no intervals.
    Raises: OptionError for values out of range.
    """

    normalization: Normalization = "whisper"
    n_resamples: int = 1000
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_resamples < 0:
            raise OptionError(f"n_resamples: expected at least 0, got {self.n_resamples}")
        if not 0 < self.confidence < 1:
            raise OptionError(f"confidence: expected between 0 and 1, got {self.confidence}")


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def n_reference(self) -> int:
        return self.hits + self.substitutions + self.deletions

    @property
    def n_errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float | None:
        return self.n_errors / self.n_reference if self.n_reference else None


@dataclass(frozen=True, slots=True)
class ErrorRate:
    counts: ErrorCounts
    low: float | None = None
    high: float | None = None

    @property
    def rate(self) -> float | None:
        return self.counts.rate

    def to_dict(self) -> dict[str, Number]:
        return {
            "rate": _rounded(self.rate),
            "low": _rounded(self.low),
            "high": _rounded(self.high),
            "n_reference": self.counts.n_reference,
            **asdict(self.counts),
        }


@dataclass(frozen=True, slots=True)
class ErrorRates:
    n_utterances: int
    wer: ErrorRate
    cer: ErrorRate
    mer: ErrorRate

    def to_dict(self) -> dict[str, int | dict[str, Number]]:
        rates = {"wer": self.wer.to_dict(), "cer": self.cer.to_dict(), "mer": self.mer.to_dict()}
        return {"n_utterances": self.n_utterances, **rates}


@dataclass(frozen=True, slots=True)
class ScoreReport:
    overall: ErrorRates
    by_language: Mapping[str, ErrorRates] = field(default_factory=lambda: MappingProxyType({}))
    options: ScoreOptions = field(default_factory=ScoreOptions)

    def to_dict(self) -> dict[str, object]:
        return {
            "overall": self.overall.to_dict(),
            "by_language": {label: rates.to_dict() for label, rates in self.by_language.items()},
            "options": asdict(self.options),
        }


def score(utterances: Sequence[ScoredUtterance], options: ScoreOptions | None = None) -> ScoreReport:
    """Score utterances, together and by language.

    Raises: MissingExtraError; OptionError for an unknown language.
    """
    options = options or ScoreOptions()
    counts = [count_errors(utterance, options.normalization) for utterance in utterances]
    groups: dict[str, list[UtteranceErrors]] = {}
    for utterance, errors in zip(utterances, counts, strict=True):
        groups.setdefault(utterance.label, []).append(errors)
    by_language = {label: _rates(groups[label], options) for label in sorted(groups)}
    return ScoreReport(_rates(counts, options), MappingProxyType(by_language), options)


class UtteranceErrors(NamedTuple):
    word: ErrorCounts
    character: ErrorCounts
    mixed: ErrorCounts


def count_errors(utterance: ScoredUtterance, normalization: Normalization = "whisper") -> UtteranceErrors:
    """Count the errors of one utterance after normalising both texts.

    Raises: MissingExtraError.
    """
    language = utterance.language if isinstance(utterance.language, str) else None
    normalize = normalizer_for(language, normalization)
    texts = normalize(composed(utterance.reference)), normalize(composed(utterance.hypothesis))
    return UtteranceErrors(*(count_edits(*(split_units(text, unit) for text in texts)) for unit in UNITS))


def split_units(text: str, unit: Unit) -> list[str]:
    if unit == "word":
        return text.split()
    if unit == "mixed":
        return _MIXED.findall(text)
    return list(_NEEDLESS_SPACE.sub("", " ".join(text.split())))


def by_span(spans: Sequence[LabelledSpan], text: str) -> list[ScoredUtterance]:
    """Split a transcript by the spans of a recording, by the aligned reference units.

    Empty if the text of a span is unknown.
    """
    if not all(span.text for span in spans):
        return []
    normalize = normalizer_for(None)
    units = split_units(normalize(text), "mixed")
    segments = [
        ReferenceSegment(tuple(split_units(normalize(span.text), "mixed")), span.start_s, span.end_s)
        for span in spans
    ]
    pieces = resegment(units, segments)
    return [
        ScoredUtterance(span.text, " ".join(units[piece.start : piece.stop]), span.language)
        for span, piece in zip(spans, pieces, strict=True)
    ]


def count_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> ErrorCounts:
    """Count the errors of the minimum-edit (Levenshtein) alignment.

    Raises: MissingExtraError.
    """
    if not reference or not hypothesis:  # jiwer before 4 refuses an empty reference
        return ErrorCounts(deletions=len(reference), insertions=len(hypothesis))
    with needs("jiwer", "eval", "scoring"):
        import jiwer
    names = {unit: str(i) for i, unit in enumerate(dict.fromkeys([*reference, *hypothesis]))}
    edits = jiwer.process_words(
        " ".join([names[unit] for unit in reference]), " ".join([names[unit] for unit in hypothesis])
    )
    return ErrorCounts(edits.hits, edits.substitutions, edits.deletions, edits.insertions)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Second error rate minus the first, its interval, and the probability that the second is lower."""

    difference: float
    low: float
    high: float
    probability: float


def compare(
    first: Sequence[ScoredUtterance],
    second: Sequence[ScoredUtterance],
    unit: Unit = "mixed",
    options: ScoreOptions | None = None,
) -> Comparison:
    """Compare two systems on the same references.

    Raises: OptionError when the references differ or are all empty, or when n_resamples is 0.
    Source: Bisani and Ney 2004, "probability of improvement".
    """
    options = options or ScoreOptions()
    if [u.reference for u in first] != [u.reference for u in second]:
        raise OptionError("compare: both systems need the same references in the same order")
    at = UNITS.index(unit)
    systems = [[count_errors(u, options.normalization)[at] for u in s] for s in (first, second)]
    a, b = (sum(counts, ErrorCounts()).rate for counts in systems)
    if a is None or b is None or options.n_resamples == 0:
        raise OptionError("compare: expected references with words and n_resamples above 0")
    # One seed draws the same utterances for both systems.
    rates = [_resampled_rates(counts, options) for counts in systems]
    differences = rates[1] - rates[0]
    low, high = _bounds(differences, options)
    return Comparison(b - a, low, high, float((differences < 0).mean()))


def _bounds(values: npt.NDArray[np.float64], options: ScoreOptions) -> tuple[float, float]:
    tail = (1 - options.confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def _rates(errors: Sequence[UtteranceErrors], options: ScoreOptions) -> ErrorRates:
    return ErrorRates(
        len(errors), *(error_rate([each[at] for each in errors], options) for at in range(len(UNITS)))
    )


def error_rate(counts: Sequence[ErrorCounts], options: ScoreOptions) -> ErrorRate:
    """Compute the rate of all utterances together, and its bootstrap interval."""
    total = sum(counts, ErrorCounts())
    if options.n_resamples == 0 or total.n_reference == 0:
        return ErrorRate(total)
    return ErrorRate(total, *_bounds(_resampled_rates(counts, options), options))


def _resampled_rates(counts: Sequence[ErrorCounts], options: ScoreOptions) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(options.seed)
    table = np.array([(c.n_errors, c.n_reference) for c in counts], dtype=np.float64)
    draws = max(1, 1_000_000 // len(table))  # at once, to bound the memory
    sizes = [min(draws, options.n_resamples - done) for done in range(0, options.n_resamples, draws)]
    picks = (rng.integers(0, len(table), (size, len(table))) for size in sizes)
    sums = np.concatenate([table[pick].sum(axis=1) for pick in picks])
    sums = sums[sums[:, 1] > 0]
    rates: npt.NDArray[np.float64] = sums[:, 0] / sums[:, 1]
    return rates


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def laal(delays_s: Sequence[float], source_s: float, n_reference: int) -> float:
    """Compute the length-adaptive average lagging of one utterance, in seconds; nan without words.

    delays_s: of each word. source_s: length of the audio.
    Source: Papi et al., Over-Generation Cannot Be Rewarded (2022), equation 4, and SimulEval.
    """
    if not delays_s or source_s <= 0.0:
        return math.nan
    if delays_s[0] > source_s:
        return delays_s[0]
    pace = source_s / max(len(delays_s), n_reference)
    lags = []
    for i, delay in enumerate(delays_s):
        lags.append(delay - i * pace)
        if delay >= source_s:
            break
    return sum(lags) / len(lags)


@dataclass(frozen=True, slots=True)
class ReferenceSegment:
    words: tuple[str, ...]
    start_s: float
    end_s: float


def resegment(hypothesis: Sequence[str], segments: Sequence[ReferenceSegment]) -> list[range]:
    """Cut a hypothesis into an adjoining range for each reference segment, by the aligned reference words.

    Source: Matusov et al. (2005), on which StreamLAAL is defined.
    """
    reference = [word for segment in segments for word in segment.words]
    owner = [i for i, segment in enumerate(segments) for _ in segment.words]
    starts = [0] * (len(segments) + 1)
    starts[-1] = len(hypothesis)
    current = 0
    for i, j in align_words(hypothesis, reference):
        if i is not None and j is not None and owner[j] > current:
            for segment in range(current + 1, owner[j] + 1):
                starts[segment] = i
            current = owner[j]
    for segment in range(current + 1, len(segments)):
        starts[segment] = len(hypothesis)
    return [range(starts[k], starts[k + 1]) for k in range(len(segments))]


def stream_laal(
    words: Sequence[str], delays_s: Sequence[float], segments: Sequence[ReferenceSegment]
) -> float:
    """Compute the mean LAAL of the segments of a long recording; nan when none got a word.

    Raises: InputError unless there is one delay a word.
    Source: Papi et al., StreamAtt (2024), section 4.
    """
    if len(words) != len(delays_s):
        raise InputError(f"stream_laal: expected a delay for each of {len(words)} words, got {len(delays_s)}")
    lags = []
    for segment, piece in zip(segments, resegment(words, segments), strict=True):
        delays = [delays_s[i] - segment.start_s for i in piece]
        lag = laal(delays, segment.end_s - segment.start_s, len(segment.words))
        if not math.isnan(lag):
            lags.append(lag)
    return sum(lags) / len(lags) if lags else math.nan


def word_latencies(
    words: Sequence[str],
    delays_s: Sequence[float],
    reference: Sequence[str],
    reference_ends_s: Sequence[float],
) -> list[float]:
    """Return emission minus true end, in seconds, of each correct word.

    Raises: InputError unless there is one delay a word and one end a reference word.
    """
    if len(words) != len(delays_s) or len(reference) != len(reference_ends_s):
        raise InputError(
            f"word_latencies: expected {len(words)} delays and {len(reference)} ends, "
            f"got {len(delays_s)} and {len(reference_ends_s)}"
        )
    return [
        delays_s[i] - reference_ends_s[j]
        for i, j in align_words(words, reference)
        if i is not None and j is not None and words[i] == reference[j]
    ]


@dataclass(frozen=True, slots=True)
class LogLine:
    """One recording in the log format of SimulEval and OmniSTEval."""

    index: int
    words: tuple[str, ...]
    delays_s: tuple[float, ...]
    elapsed_s: tuple[float, ...]
    source_s: float
    source: str
    reference: str = ""

    def to_json(self) -> str:
        document = {
            "index": self.index,
            "prediction": " ".join(self.words),
            "delays": [round(1000.0 * delay, 3) for delay in self.delays_s],
            "elapsed": [round(1000.0 * elapsed, 3) for elapsed in self.elapsed_s],
            "prediction_length": len(self.words),
            "reference": self.reference,
            "source": [self.source],
            "source_length": round(1000.0 * self.source_s, 3),
        }
        return json.dumps(document, ensure_ascii=False)


class EventSource(Protocol):
    def push(self, pcm: Samples) -> Sequence[Event]: ...

    def close(self) -> Sequence[Event]: ...


@dataclass(frozen=True, slots=True)
class LiveRun:
    """The result of a session over one recording.

    delays_s, elapsed_s: audio received and the clock when each word came. compute_s, cpu_s: time inside the
    session. late_updates: share of updates that were unfinished when the next audio arrived. final_words: of
    the finals, which differ from the words after a second pass.
    """

    words: tuple[Word, ...]
    delays_s: tuple[float, ...]
    elapsed_s: tuple[float, ...]
    switches: tuple[FoundSwitch, ...]
    duration_s: float
    compute_s: float
    cpu_s: float
    late_updates: float = 0.0
    final_words: tuple[Word, ...] = ()

    @property
    def text(self) -> str:
        return "".join(word.word for word in self.words).strip()

    @property
    def final_text(self) -> str:
        return "".join(word.word for word in self.final_words).strip()


def run_live(session: EventSource, audio: Samples, *, chunk_s: float) -> LiveRun:
    """Push a recording, samples (n,) at 16 kHz, into a new session in pieces of chunk_s, and close it.

    The clock is simulated: a piece is pushed once its last sample is there and the previous piece is done.
    """
    step = max(1, round(chunk_s * SAMPLE_RATE))
    words: list[tuple[Word, float, float]] = []
    final_words: list[Word] = []
    switches: list[FoundSwitch] = []
    clock = compute = cpu = 0.0
    late: list[bool] = []
    for start in range(0, len(audio) + step, step):
        piece = audio[start : start + step]
        clock = max(clock, min(start + step, len(audio)) / SAMPLE_RATE)
        began, began_cpu = time.perf_counter(), time.process_time()
        events = session.push(piece) if start < len(audio) else session.close()
        spent, spent_cpu = time.perf_counter() - began, time.process_time() - began_cpu
        clock, compute, cpu = clock + spent, compute + spent, cpu + spent_cpu
        late.append(clock > min(start + step, len(audio)) / SAMPLE_RATE + chunk_s)
        for event in events:
            if isinstance(event, Partial):
                words += [(word, event.emission_time, clock) for word in event.words]
            elif isinstance(event, Final):
                final_words += event.words
            elif isinstance(event, LanguageChanged) and event.previous is not None:
                switches.append(FoundSwitch(event.at, event.confirmed_at, event.previous, event.target))
    return LiveRun(
        words=tuple(word for word, _, _ in words),
        delays_s=tuple(delay for _, delay, _ in words),
        elapsed_s=tuple(elapsed for _, _, elapsed in words),
        switches=tuple(switches),
        duration_s=len(audio) / SAMPLE_RATE,
        compute_s=compute,
        cpu_s=cpu,
        late_updates=sum(late) / len(late),
        final_words=tuple(final_words),
    )


@dataclass(slots=True)
class LanguageScores:
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, true: str, predicted: str) -> None:
        self.pairs[true, predicted] += 1

    @property
    def n(self) -> int:
        return sum(self.pairs.values())

    @property
    def accuracy(self) -> float:
        right = sum(count for (true, predicted), count in self.pairs.items() if true == predicted)
        return right / self.n if self.n else math.nan

    @property
    def by_language(self) -> dict[str, float]:
        totals: Counter[str] = Counter()
        for (true, _), count in self.pairs.items():
            totals[true] += count
        return {code: self.pairs[code, code] / totals[code] for code in sorted(totals)}

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """Compute Wilson's score interval of the accuracy (1927), as if windows were independent."""
        if not self.n:
            return (0.0, 1.0)
        p, n = self.accuracy, self.n
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (max(0.0, centre - half), min(1.0, centre + half))


@dataclass(frozen=True, slots=True)
class FoundSwitch:
    at_s: float
    confirmed_s: float
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class TrueSwitch:
    """A change of language in the reference: the pause between the languages."""

    from_s: float
    to_s: float
    source: str
    target: str

    def distance(self, at_s: float) -> float:
        return max(self.from_s - at_s, at_s - self.to_s, 0.0)


@dataclass(frozen=True, slots=True)
class SwitchScores:
    n_true: int
    n_found: int
    n_matched: int
    n_flaps: int
    duration_s: float
    delays_s: tuple[float, ...]

    @property
    def precision(self) -> float:
        return self.n_matched / self.n_found if self.n_found else 1.0

    @property
    def recall(self) -> float:
        return self.n_matched / self.n_true if self.n_true else 1.0

    @property
    def f1(self) -> float:
        n = self.n_found + self.n_true
        return 2 * self.n_matched / n if n else 1.0

    @property
    def median_delay_s(self) -> float | None:
        return median(self.delays_s) if self.delays_s else None

    @property
    def false_switches_per_hour(self) -> float:
        return 3600.0 * (self.n_found - self.n_matched) / self.duration_s if self.duration_s else 0.0

    def __add__(self, other: SwitchScores) -> SwitchScores:
        return SwitchScores(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


NO_SCORES = SwitchScores(0, 0, 0, 0, 0.0, ())


def true_switches(spans: Sequence[tuple[float, float, str]]) -> list[TrueSwitch]:
    ordered = sorted(spans)
    pairs = pairwise(ordered)
    return [TrueSwitch(min(a[1], b[0]), max(a[1], b[0]), a[2], b[2]) for a, b in pairs if a[2] != b[2]]


def matched(
    detected: Sequence[FoundSwitch], true: Sequence[TrueSwitch], tolerance_s: float
) -> list[tuple[FoundSwitch, TrueSwitch]]:
    """Find the largest set of one-to-one pairs with equal target language within the tolerance."""
    best: list[list[list[tuple[FoundSwitch, TrueSwitch]]]] = [[[] for _ in range(len(true) + 1)]]
    for i, candidate in enumerate(detected):
        row: list[list[tuple[FoundSwitch, TrueSwitch]]] = [[]]
        for j, wanted in enumerate(true):
            option = max(best[i][j + 1], row[j], key=len)
            near = wanted.distance(candidate.at_s) <= tolerance_s + 1e-9
            if near and candidate.target == wanted.target and len(best[i][j]) + 1 > len(option):
                option = [*best[i][j], (candidate, wanted)]
            row.append(option)
        best.append(row)
    return best[-1][-1]


def count_flaps(detected: Sequence[FoundSwitch], within_s: float = 2.0) -> int:
    """Count switches that are reverted within `within_s` of confirmation."""
    pairs = pairwise(detected)
    return sum(b.target == a.source and b.confirmed_s - a.confirmed_s <= within_s for a, b in pairs)


def score_switches(
    detected: Sequence[FoundSwitch],
    spans: Sequence[tuple[float, float, str]],
    *,
    duration_s: float,
    tolerance_s: float = 1.0,
) -> SwitchScores:
    """Score one recording; scores of several can be added.

    found: in order of time. spans: (start, end, language) of the reference. A delay is the confirmation minus
    the start of the new language's speech.
    """
    true = true_switches(spans)
    pairs = matched(detected, true, tolerance_s)
    delays = tuple(candidate.confirmed_s - wanted.to_s for candidate, wanted in pairs)
    return SwitchScores(len(true), len(detected), len(pairs), count_flaps(detected), duration_s, delays)
