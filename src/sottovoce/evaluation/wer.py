"""Word, character and mixed error rates over utterances, per language, with confidence intervals.

Mixed units are a character of a script without spaces or a word of any other. Rates divide all errors of a
set by all reference units, and may exceed 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from sottovoce.errors import MissingExtraError, OptionError
from sottovoce.evaluation.latency import ReferenceSegment, resegment
from sottovoce.evaluation.manifest import LabelledSpan
from sottovoce.text.languages import UNSPACED_LETTERS
from sottovoce.text.normalize import Normalization, composed, normalizer_for

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
    try:
        import jiwer
    except ImportError as error:
        raise MissingExtraError("jiwer", "eval", "scoring") from error
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
