"""Latency of live transcripts: LAAL, StreamLAAL, word-emission latency, and SimulEval's log lines.

Delays are seconds of audio received when a word came out (computation-unaware) or seconds on the clock
since the audio began (computation-aware); the caller gives one or the other. Not known here: models,
sessions, and text normalisation (compare words that are normalised already).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sottovoce.errors import InputError


def laal(delays_s: Sequence[float], source_s: float, n_reference: int) -> float:
    """Length-adaptive average lagging of one utterance, in seconds.

    delays_s: of each emitted word, in order. source_s: length of the audio. n_reference: words of the
    reference. Words up to the first that came when all audio was in are counted; nan without words.
    Source: Papi et al., Over-Generation Cannot Be Rewarded (2022), equation 4; as in SimulEval, an
    utterance whose first word comes only after its end has that word's delay.
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


def align(hypothesis: Sequence[str], reference: Sequence[str]) -> list[tuple[int | None, int | None]]:
    """Pairs (hypothesis index, reference index) of a least-edit alignment; None stands for a gap.

    Of equally cheap alignments the one with the most matches is taken, so that words are paired with
    their own kind rather than by place. Costs are kept for one in some words of the hypothesis, and those
    between are computed again on the way back: an hour of speech takes some megabytes.
    """
    ids = {word: i for i, word in enumerate({*hypothesis, *reference})}
    said = [ids[word] for word in hypothesis]
    wanted = np.array([ids[word] for word in reference], dtype=np.int64)
    block = max(1, math.isqrt(len(said)))
    firsts = range(0, len(said), block)
    kept = [_GAP * np.arange(len(wanted) + 1)]  # costs before the first word of each block
    for first in firsts[:-1]:
        kept.append(_costs(kept[-1], first, said[first : first + block], wanted)[-1].copy())
    back: list[tuple[int | None, int | None]] = []
    end = len(wanted)
    for first, before in zip(reversed(firsts), reversed(kept), strict=True) if said else ():
        part = said[first : first + block]
        costs = _costs(before[: end + 1], first, part, wanted[:end])
        pairs, end = _trace(costs, part, wanted[:end])
        back += [(None if i is None else first + i, j) for i, j in pairs]
    back += [(None, j) for j in range(end - 1, -1, -1)]
    return back[::-1]


_GAP, _SWAP = 1.0, 1.0 + 1e-6
"""A substitution costs a whisker less than two gaps would at equal edits, a match nothing."""
Costs: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def _costs(before: Costs, first: int, said: Sequence[int], wanted: npt.NDArray[np.int64]) -> Costs:
    """Edit costs (n + 1, m + 1) before and after each of n words of the hypothesis.

    first: number of the first of them. before: the row (m + 1,) before it."""
    steps = _GAP * np.arange(len(wanted) + 1)
    cost = np.empty((len(said) + 1, len(wanted) + 1))
    cost[0] = before
    for i, word in enumerate(said, 1):
        diagonal = cost[i - 1, :-1] + np.where(wanted == word, 0.0, _SWAP)
        best = np.concatenate(([(first + i) * _GAP], np.minimum(diagonal, cost[i - 1, 1:] + _GAP)))
        # Insertions run along the row: cost[i, j] = min over k <= j of best[k] + gap * (j - k).
        cost[i] = np.minimum.accumulate(best - steps) + steps
    return cost


def _trace(
    cost: Costs, said: Sequence[int], wanted: npt.NDArray[np.int64]
) -> tuple[list[tuple[int | None, int | None]], int]:
    """The way back through the words of a block, last pair first, and how many of the reference are left."""
    i, j = len(said), len(wanted)
    pairs: list[tuple[int | None, int | None]] = []
    while i:
        step = 0.0 if j and said[i - 1] == wanted[j - 1] else _SWAP
        if j and math.isclose(cost[i, j], cost[i - 1, j - 1] + step, abs_tol=1e-9):
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif math.isclose(cost[i, j], cost[i - 1, j] + _GAP, abs_tol=1e-9):
            i -= 1
            pairs.append((i, None))
        else:
            j -= 1
            pairs.append((None, j))
    return pairs, j


@dataclass(frozen=True, slots=True)
class ReferenceSegment:
    """A stretch of the reference: its words (normalised) and where it lies in the recording."""

    words: tuple[str, ...]
    start_s: float
    end_s: float


def resegment(hypothesis: Sequence[str], segments: Sequence[ReferenceSegment]) -> list[range]:
    """Cut a running hypothesis into as many pieces as the reference has segments.

    A word goes to the segment of the reference word it is aligned with; a word aligned with none goes
    with the word before it. Returns index ranges of `hypothesis` that join without gap or overlap.
    Source: the least-edit segmentation of Matusov et al. (2005), on which StreamLAAL is defined.
    """
    reference = [word for segment in segments for word in segment.words]
    owner = [i for i, segment in enumerate(segments) for _ in segment.words]
    starts = [0] * (len(segments) + 1)
    starts[-1] = len(hypothesis)
    current = 0
    for i, j in align(hypothesis, reference):
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
    """LAAL of a long recording: resegmented by the reference, each segment on its own clock; the mean.

    nan when no segment got a word. Raises: InputError unless there is one delay a word.
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
    """Emission minus true end, in seconds, of each word that was recognised right.

    Raises: InputError unless there is one delay a word and one end a reference word.
    """
    if len(words) != len(delays_s) or len(reference) != len(reference_ends_s):
        raise InputError(
            f"word_latencies: expected {len(words)} delays and {len(reference)} ends, "
            f"got {len(delays_s)} and {len(reference_ends_s)}"
        )
    return [
        delays_s[i] - reference_ends_s[j]
        for i, j in align(words, reference)
        if i is not None and j is not None and words[i] == reference[j]
    ]


@dataclass(frozen=True, slots=True)
class LogLine:
    """One recording in the form that SimulEval, OmniSTEval and others read.

    delays_s: audio received at each word's emission. elapsed_s: clock at the same moments, from the
    beginning of the audio. source_s: length of the recording.
    """

    index: int
    words: tuple[str, ...]
    delays_s: tuple[float, ...]
    elapsed_s: tuple[float, ...]
    source_s: float
    source: str
    reference: str = ""

    def to_json(self) -> str:
        """One JSON line: milliseconds, `prediction` as words joined by single spaces."""
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
