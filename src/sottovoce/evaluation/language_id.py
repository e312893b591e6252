"""How often the language is right: accuracy over labelled windows, and where it goes wrong.

Not known here: models and audio.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class LanguageScores:
    """Counts of (true, said) language pairs."""

    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, true: str, said: str) -> None:
        self.pairs[true, said] += 1

    def update(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Add (true, said) pairs."""
        self.pairs.update(pairs)

    @property
    def n(self) -> int:
        return sum(self.pairs.values())

    @property
    def accuracy(self) -> float:
        """Fraction said right; nan of nothing."""
        right = sum(count for (true, said), count in self.pairs.items() if true == said)
        return right / self.n if self.n else math.nan

    @property
    def by_language(self) -> dict[str, float]:
        """Accuracy of each true language, codes in order."""
        totals: Counter[str] = Counter()
        for (true, _), count in self.pairs.items():
            totals[true] += count
        return {code: self.pairs[code, code] / totals[code] for code in sorted(totals)}

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """Wilson's score interval of the accuracy, 95 % by default; (0, 1) of nothing.

        Source: Wilson (1927). Windows of one clip are not independent: read it as a lower bound on doubt.
        """
        if not self.n:
            return (0.0, 1.0)
        p, n = self.accuracy, self.n
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (max(0.0, centre - half), min(1.0, centre + half))
