"""Smooth language posteriors over time: hidden Markov model, change point.

Posteriors come one frame (probed stretch) after another, as vectors over a fixed set of L languages. The live
side is causal and keeps O(L) state; the change point looks back over what was kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sottovoce.errors import OptionError

Posterior = npt.NDArray[np.float64]
"""(L,) probabilities that sum to 1."""

OTHERS = 0.03
"""Weight of a third language's probability as evidence that the old one has ended."""
_TINY = 1e-6
"""Least probability given to a language: one frame must not be able to rule it out for ever."""


@dataclass(frozen=True, slots=True)
class SmoothingOptions:
    """How posteriors are smoothed.

    stay: probability that the language stays the same from one stretch to the next, within an utterance.
    renewal: probability that it is another after a pause.
    evidence: exponent on each frame's posterior in `smoothed`. Frames overlap, so neighbours tell the same
        story: hop / width counts every second of audio once.

    Raises: OptionError for values out of range.
    """

    stay: float = 0.9
    renewal: float = 0.4
    evidence: float = 0.4

    def __post_init__(self) -> None:
        for name, value in (("stay", self.stay), ("renewal", self.renewal)):
            if not 0.0 < value < 1.0:
                raise OptionError(f"{name}: expected a probability between 0 and 1, got {value}")
        if not 0.0 < self.evidence <= 1.0:
            raise OptionError(f"evidence: expected an exponent in (0, 1], got {self.evidence}")


def transition_matrix(n_languages: int, stay: float) -> npt.NDArray[np.float64]:
    """Return probabilities (L, L) of going from row to column: `stay` on the diagonal, the rest even."""
    if n_languages == 1:
        return np.ones((1, 1))
    matrix = np.full((n_languages, n_languages), (1.0 - stay) / (n_languages - 1))
    np.fill_diagonal(matrix, stay)
    return matrix


def log_evidence(posteriors: npt.NDArray[np.float64], evidence: float = 1.0) -> npt.NDArray[np.float64]:
    """Return scaled log-likelihoods of posteriors (..., L) under an even prior, floored and tempered."""
    floored = np.maximum(posteriors, _TINY)
    scaled: npt.NDArray[np.float64] = evidence * np.log(floored / floored.sum(-1, keepdims=True))
    return scaled


def carried_on(belief: Posterior, stay: float) -> Posterior:
    """Return what a belief (L,) about one stretch says of the next one: its language stays by `stay`."""
    moved: Posterior = belief @ transition_matrix(len(belief), stay)
    return moved


def smoothed(posteriors: npt.NDArray[np.float64], options: SmoothingOptions) -> npt.NDArray[np.float64]:
    """Return P(language at each frame | all frames) (T, L) of posteriors (T, L); even prior at the start.

    Source: Rabiner (1989), the scaled forward-backward recursion.
    """
    transitions = transition_matrix(posteriors.shape[1], options.stay)
    likelihoods = np.exp(log_evidence(posteriors, options.evidence))
    forward, backward = np.empty_like(likelihoods), np.ones_like(likelihoods)
    for t, likelihood in enumerate(likelihoods):
        joint = likelihood * (forward[t - 1] @ transitions if t else 1.0)
        forward[t] = joint / joint.sum()
    for t in reversed(range(len(likelihoods) - 1)):
        back = transitions @ (likelihoods[t + 1] * backward[t + 1])
        backward[t] = back / back.sum()
    joint = forward * backward
    found: npt.NDArray[np.float64] = joint / joint.sum(axis=1, keepdims=True)
    return found


def change_point(
    posteriors: npt.NDArray[np.float64], source: int, target: int, *, start_bonus: float = 0.0
) -> int:
    """Return the first frame of `target` in the best split of posteriors (T, L) into source frames, then
    others.

    This is Viterbi over a model of two states that may only go from source to target; it can be 0 (no source)
    or T (none but the source). What is neither, as the first words after a change often are, speaks for the
    target by `OTHERS` of its probability. start_bonus: log-odds in favour of 0. Of equally good splits the
    latest is taken: it keeps more of the old language.
    """
    evidence = log_evidence(posteriors)
    stays = evidence[:, source]
    others = np.log(np.maximum(OTHERS * (1.0 - np.exp(stays)), _TINY))
    gain = stays - np.maximum(evidence[:, target], others)  # for keeping a frame in the source
    totals = np.concatenate(([0.0], np.cumsum(gain)))
    totals[0] += start_bonus
    return int(len(totals) - 1 - np.argmax(totals[::-1]))
