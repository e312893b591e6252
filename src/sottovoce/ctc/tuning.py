"""Choice of a decoder's weights on a development set by CMA-ES, with cross-validation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sottovoce.errors import OptionError, needs

Counts = npt.NDArray[np.int64]
Weights = Mapping[str, float]
CountErrors = Callable[[Weights], Counts]
"""Returns the errors (n,) of each utterance, decoded with these weights."""


@dataclass(frozen=True, slots=True)
class Range:
    """Where a weight is searched. is_log: by factors. is_whole: whole numbers.

    Raises:
        OptionError: the ends are not finite and ascending, or not above 0 for factors.
    """

    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf or (self.is_log and self.low <= 0):
            wanted = "finite numbers above 0" if self.is_log else "finite numbers"
            raise OptionError(f"range: expected two ascending {wanted}, got {self.low:g} and {self.high:g}")

    def at(self, share: float) -> float:
        """Return the value at a share of the range from 0 to 1."""
        if self.is_log:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + (self.high - self.low) * share
        return round(value) if self.is_whole else float(f"{value:.3g}")

    def share_of(self, value: float) -> float:
        """Return the share of the range at a value, from 0 to 1."""
        inside = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(inside / self.low) / math.log(self.high / self.low)
        return (inside - self.low) / (self.high - self.low)


RANGES: Mapping[str, Range] = {
    "acoustic_scale": Range(0.3, 3.0, is_log=True),
    "blank_penalty": Range(-2.0, 4.0),
    "lm_weight": Range(0.0, 2.0),
    "label_lm_weight": Range(0.0, 2.0),
    "word_score": Range(-3.0, 5.0),
    "unknown_score": Range(-20.0, 0.0),
    "neural_weight": Range(0.0, 2.0),
    "lm_kept": Range(0.0, 1.0),
    "hotword_weight": Range(0.0, 5.0),
    "beam_size": Range(4, 256, is_log=True, is_whole=True),
}
"""What can be tuned, and where it is searched."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """errors: (n,) of each utterance with the chosen weights. held_out: (n,) with those chosen on the other
    folds; None with fewer than two folds. n_decodings: of the whole set.
    """

    weights: dict[str, float]
    errors: Counts
    held_out: Counts | None
    n_decodings: int


def folds_of(groups: Sequence[str], n_folds: int) -> list[int]:
    """Return the fold of each utterance; a group, such as a speaker, has one."""
    sizes = [0] * max(1, min(n_folds, len(set(groups))))
    fold_of: dict[str, int] = {}
    for group, size in Counter(groups).most_common():
        fold_of[group] = sizes.index(min(sizes))
        sizes[fold_of[group]] += size
    return [fold_of[group] for group in groups]


def tune(
    count_errors: CountErrors,
    start: Weights,
    ranges: Mapping[str, Range],
    folds: Sequence[int],
    *,
    n_decodings: int = 64,
    seed: int = 0,
) -> Tuned:
    """Choose weights that make the fewest errors; of equal ones the narrower beam, then the first found.

    The start stays unless the gain exceeds its standard error over utterances.

    start: weights to begin with. folds: of each utterance, as from `folds_of`. n_decodings: of each search.

    Raises:
        OptionError: nothing to tune.
        MissingExtraError: without the extra `tune`.
    Source: Hansen and Ostermeier 2001, in the package `cmaes`.
    """
    if not ranges:
        raise OptionError("tune: expected at least one weight to tune, got none")
    known: dict[tuple[float, ...], Counts] = {}

    def errors_at(weights: Weights) -> Counts:
        key = tuple(weights.values())
        if key not in known:
            known[key] = count_errors(weights)
        return known[key]

    def searched(is_used: npt.NDArray[np.bool_]) -> dict[str, float]:
        def cost(weights: Weights) -> tuple[int, float]:
            return int(errors_at(weights)[is_used].sum()), weights.get("beam_size", 0.0)

        tuned = _search(cost, start, ranges, n_decodings, seed)
        gains = (errors_at(start) - errors_at(tuned))[is_used]
        is_sure = gains.sum() ** 2 > (gains**2).sum()  # of n: sum > sqrt(n) * gains.std(ddof=1)
        return tuned if is_sure or not gains.any() else dict(start)

    fold = np.asarray(folds)
    best = searched(np.ones(len(fold), np.bool_))
    held_out = None
    if len(set(folds)) > 1:
        held_out = np.zeros(len(fold), np.int64)
        for each in set(folds):
            chosen = searched(fold != each)
            held_out[fold == each] = errors_at(chosen)[fold == each]
    return Tuned(best, errors_at(best), held_out, len(known))


def _search(
    cost: Callable[[Weights], tuple[int, float]],
    start: Weights,
    ranges: Mapping[str, Range],
    n_tries: int,
    seed: int,
) -> dict[str, float]:
    with needs("cmaes", "tune", "tuning"):
        from cmaes import CMA
    shares = [each.share_of(start[name]) for name, each in ranges.items()]
    shares += [0.5] * (len(shares) == 1)  # CMA wants two dimensions; the second one moves nothing
    limits = np.array([[0.0, 1.0]] * len(shares))
    # sigma: of the first tries, as a share of the ranges.
    optimizer = CMA(mean=np.array(shares), sigma=0.2, bounds=limits, seed=seed)
    best, lowest = dict(start), cost(start)
    n_tried = 1
    while n_tried < n_tries:
        sampled = []
        for _ in range(optimizer.population_size):
            point = optimizer.ask()
            tried = {
                name: each.at(share)
                for (name, each), share in zip(ranges.items(), point.tolist(), strict=False)
            }
            value = cost({**start, **tried})
            n_tried += 1
            sampled.append((point, float(value[0])))
            if value < lowest:
                best, lowest = {**start, **tried}, value
        optimizer.tell(sampled)
    return best
