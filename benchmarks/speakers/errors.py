"""Diarization error rate: missed speech, false alarms and speaker confusion, over all speech.

Speakers are matched to those of the reference for the longest agreement. A collar around every reference edge
is excluded, because edges are not exact. Times are seconds.

Source: NIST, The Rich Transcription 2009 evaluation plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise

from sottovoce.types import Turn

COLLAR_S = 0.25


@dataclass(frozen=True, slots=True)
class DiarizationErrors:
    """Seconds of speech (overlaps count once per speaker), and of each kind of error."""

    speech: float = 0.0
    missed: float = 0.0
    false_alarm: float = 0.0
    confused: float = 0.0

    @property
    def rate(self) -> float:
        wrong = self.missed + self.false_alarm + self.confused
        return wrong / self.speech if self.speech else float(wrong > 0)

    def __add__(self, other: DiarizationErrors) -> DiarizationErrors:
        return DiarizationErrors(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def diarization_errors(
    truth: Sequence[Turn], result: Sequence[Turn], *, collar_s: float = COLLAR_S, with_overlap: bool = True
) -> DiarizationErrors:
    """Compare the turns of one recording with the reference.

    collar_s: excluded on both sides of every reference edge. with_overlap: False excludes overlapped speech
    of the reference.
    """
    pieces = list(_pieces(truth, result, collar_s))
    if not with_overlap:
        pieces = [piece for piece in pieces if len(piece[1]) <= 1]
    together: dict[tuple[str, str], float] = {}
    for seconds, true, predicted in pieces:
        for pair in ((item, other) for item in true for other in predicted):
            together[pair] = together.get(pair, 0.0) + seconds
    partner = best_pairs(together)
    errors = DiarizationErrors()
    for seconds, true, predicted in pieces:
        n_right = sum(partner.get(item) in predicted for item in true)
        n_true, n_predicted = len(true), len(predicted)
        errors += DiarizationErrors(
            speech=seconds * n_true,
            missed=seconds * max(0, n_true - n_predicted),
            false_alarm=seconds * max(0, n_predicted - n_true),
            confused=seconds * (min(n_true, n_predicted) - n_right),
        )
    return errors


def _pieces(
    truth: Sequence[Turn], result: Sequence[Turn], collar_s: float
) -> Iterable[tuple[float, frozenset[str], frozenset[str]]]:
    edges = sorted(edge for turn in truth for edge in (turn.start, turn.end))
    left_out = [(edge - collar_s, edge + collar_s) for edge in edges] if collar_s else []
    cuts = {edge for turn in (*truth, *result) for edge in (turn.start, turn.end)}
    cuts |= {edge for span in left_out for edge in span}
    for start, end in pairwise(sorted(cuts)):
        middle = (start + end) / 2
        if any(first < middle < last for first, last in left_out):
            continue
        yield end - start, _speaking(truth, middle), _speaking(result, middle)


def _speaking(turns: Sequence[Turn], at: float) -> frozenset[str]:
    return frozenset(turn.speaker for turn in turns if turn.start < at < turn.end)


def n_right_speakers(pairs: Sequence[tuple[str, str]]) -> int:
    """Count words whose speaker is right, of (true, found) speakers, under the best pairing of the names.

    A found speaker of "" is none, and wrong.
    """
    counts: dict[tuple[str, str], float] = {}
    for pair in pairs:
        if pair[1]:
            counts[pair] = counts.get(pair, 0.0) + 1.0
    partner = best_pairs(counts)
    return sum(partner.get(true, "-") == result for true, result in pairs)


def best_pairs(weights: Mapping[tuple[str, str], float]) -> dict[str, str]:
    """Match first with second names, one to one, for the greatest sum of weights.

    Exact; the time grows exponentially with the smaller number of names.
    """
    first, second = ({pair[side] for pair in weights} for side in (0, 1))
    if len(second) > len(first):
        turned = best_pairs({(other, item): weight for (item, other), weight in weights.items()})
        return {item: other for other, item in turned.items()}
    few = sorted(second)
    best: dict[int, tuple[float, tuple[tuple[str, str], ...]]] = {0: (0.0, ())}
    for item in sorted(first):
        for taken, (total, pairs) in sorted(best.items()):
            for place, other in enumerate(few):
                bits = taken | 1 << place
                reached = total + weights.get((item, other), 0.0)
                if bits != taken and reached > best.get(bits, (-1.0, ()))[0]:
                    best[bits] = (reached, (*pairs, (item, other)))
    return dict(max(best.values(), key=lambda entry: entry[0])[1])
