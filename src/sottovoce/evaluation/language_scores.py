"""Scores of language detection and of switches. Times are seconds of the recording."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from itertools import pairwise
from statistics import median


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


def match(
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
    pairs = match(detected, true, tolerance_s)
    delays = tuple(candidate.confirmed_s - wanted.to_s for candidate, wanted in pairs)
    return SwitchScores(len(true), len(detected), len(pairs), count_flaps(detected), duration_s, delays)
