"""CTC forced alignment: the most probable path that spells given tokens (Graves et al. 2006, section 4.1,
with the maximum instead of the sum).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sottovoce.kernels import load_kernels
from sottovoce.lm.base import Floats, Ints
from sottovoce.threads import n_threads

if TYPE_CHECKING:
    import sottovoce_kernels.ctc

NEVER = float("-inf")
CUT_MARGIN = 40.0
"""Nats by which a state may be behind the best and still win."""
_LEAST_FRAMES = 1000
"""Fewer frames are faster without threads."""


class TokenSpans(NamedTuple):
    """First frame, last frame (inclusive) and highest log-probability of every token: (N, L) each.

    Padding is 0. score: (N,) float32, log-probability of the path.
    """

    first: Ints
    last: Ints
    peak: Floats
    score: Floats


class TokenTimes(NamedTuple):
    """`TokenSpans` of one hypothesis."""

    first: Sequence[int]
    last: Sequence[int]
    peak: Sequence[float]


def token_times(spans: TokenSpans, n_tokens: Sequence[int]) -> list[TokenTimes]:
    parts = (part.tolist() for part in (spans.first, spans.last, spans.peak))
    rows = zip(*parts, n_tokens, strict=True)
    return [TokenTimes(first[:n], last[:n], peak[:n]) for first, last, peak, n in rows]


class Cut(NamedTuple):
    """The frames and tokens before the place where paths meet."""

    n_frames: int
    n_tokens: int


NO_CUT = Cut(0, 0)


class NativeEmissions:
    """Emissions (B, T, V) of lengths (B,) for the native kernels."""

    def __init__(self, kernels: ModuleType, values: Floats, lengths: Ints) -> None:
        self._kept = np.ascontiguousarray(values, np.float32), np.ascontiguousarray(lengths, np.int64)
        addresses = (part.ctypes.data for part in self._kept)
        self.view: sottovoce_kernels.ctc.Emissions = kernels.Emissions(*values.shape[1:], *addresses)


class NativeTexts:
    """Tokens (N, L) int64, of which n_tokens (N,) count, for the native kernels.

    of_alignment: utterances (N,) and blanks (N, L + 1).
    """

    def __init__(self, kernels: ModuleType, tokens: Ints, n_tokens: Ints, *of_alignment: Ints) -> None:
        self._kept = tuple(np.ascontiguousarray(part, np.int64) for part in (tokens, n_tokens, *of_alignment))
        addresses = (part.ctypes.data for part in self._kept)
        self.view: sottovoce_kernels.ctc.Texts = kernels.Texts(*tokens.shape, *addresses)


def threads_for(n_rows: int, n_frames: int) -> int:
    return 1 if n_rows * n_frames < _LEAST_FRAMES else min(n_threads(), n_rows)


def are_plausible(log_probs: Floats, lengths: Ints) -> bool:
    """Return whether a fast check proves log-probabilities (B, T, V); False without kernels."""
    try:
        kernels = load_kernels("ctc").ctc
    except ImportError:
        return False
    return bool(kernels.are_plausible(NativeEmissions(kernels, log_probs, lengths).view, len(lengths)))


def align(
    log_probs: Floats, lengths: Ints, tokens: Ints, n_tokens: Ints, *, rows: Ints, blank: int | Ints
) -> TokenSpans:
    """Align tokens (N, L) int64, of which n_tokens (N,) count, to utterances `rows` (N,) of the emissions.
    Tokens that outnumber the frames score -inf.

    log_probs: (B, T, V) float32. lengths: (B,) int64. blank: its label, or the labels (N, L + 1) of the
    blanks before each token and after the last.
    """
    first, last = np.zeros(tokens.shape, np.int64), np.zeros(tokens.shape, np.int64)
    spans = TokenSpans(first, last, np.zeros(tokens.shape, np.float32), np.empty(len(tokens), np.float32))
    blanks = _blanks(tokens, blank)
    try:
        kernels = load_kernels("ctc").ctc
    except ImportError:
        for i, (row, labels, n, around) in enumerate(zip(rows, tokens, n_tokens, blanks, strict=True)):
            frames = log_probs[row, : int(lengths[row])]
            spans.score[i] = _aligned(frames, labels[:n], around[: n + 1], *(part[i] for part in spans[:3]))
        return spans
    given = NativeEmissions(kernels, log_probs, lengths), NativeTexts(kernels, tokens, n_tokens, rows, blanks)
    addresses = (part.ctypes.data for part in spans)
    kernels.align(*(each.view for each in given), *addresses, threads_for(len(tokens), log_probs.shape[1]))
    return spans


def _aligned(frames: Floats, labels: Ints, blanks: Ints, first: Ints, last: Ints, peak: Floats) -> float:
    """Fill in the spans of one text; return the score of its path."""
    path = np.empty(2 * len(labels) + 1, np.int64)
    path[::2], path[1::2] = blanks, labels
    may_skip = np.zeros(len(path), np.bool_)
    may_skip[3::2] = labels[1:] != labels[:-1]
    ways = np.full((3, len(path)), NEVER, np.float32)  # 0, 1 or 2 states a frame
    score, steps = ways[0].copy(), np.zeros((len(frames), len(path)), np.int64)
    score[0] = 0.0  # before the first frame: in the first blank, one step from the first token
    for t, frame in enumerate(frames):
        ways[0], ways[1, 1:], ways[2, 2:] = (
            score,
            score[:-1],
            np.where(may_skip, np.roll(score, 2), NEVER)[2:],
        )
        steps[t] = ways.argmax(axis=0)
        score = ways.max(axis=0) + frame[path]
    state = int(len(path) - 1 - score[::-1][:2].argmax())
    total = float(score[state])
    newest = -1
    for t in reversed(range(len(frames) if total > NEVER else 0)):
        label = state // 2
        if state % 2:
            now = max(float(frames[t, path[state]]), -1e30)
            if label != newest:
                newest, last[label], peak[label] = label, t, now
            first[label], peak[label] = t, max(float(peak[label]), now)
        state -= int(steps[t, state])
    return total


def common_cut(
    log_probs: Floats,
    tokens: Ints,
    n_tokens: Ints,
    *,
    n_shared: int,
    blank: int | Ints,
    is_late: bool = False,
) -> Cut:
    """Find the latest blank that all paths pass after at most n_shared tokens; `NO_CUT` without one.

    log_probs: (T, V). tokens, n_tokens, blank: of all beams, see `align`. is_late: only count paths that have
    passed all of their tokens.
    """
    kernels = load_kernels("ctc").ctc
    emissions = NativeEmissions(kernels, log_probs[None], np.array([len(log_probs)]))
    texts = NativeTexts(kernels, tokens, n_tokens, np.zeros_like(n_tokens), _blanks(tokens, blank))
    return Cut(*kernels.common_cut(emissions.view, texts.view, n_shared, CUT_MARGIN, is_late=is_late))


def _blanks(tokens: Ints, blank: int | Ints) -> Ints:
    return np.broadcast_to(blank, (tokens.shape[0], tokens.shape[1] + 1))


@dataclass(frozen=True, slots=True)
class IdleSeparators:
    """The blanks of an alignment. separator: of the scorer, which appends nothing when repeated; or None."""

    blank: int
    separator: int | None

    def emissions(self, log_probs: Floats) -> Floats:
        """Append "blank or idle separator" to emissions (B, T, V)."""
        if self.separator is None:
            return log_probs
        # Nats by which a separator of the hypothesis is preferred.
        idle = np.maximum(log_probs[:, :, self.blank], log_probs[:, :, self.separator] - 1e-3)
        return np.concatenate((log_probs, idle[:, :, None]), axis=2)

    def blanks(self, tokens: Ints, before: Ints, n_labels: int) -> int | Ints:
        """Return the label (N, L + 1) of the blanks around tokens (N, L), or one for all. before: (N,)
        tokens.
        """
        if self.separator is None:
            return self.blank
        after_separator = np.column_stack((before, tokens)) == self.separator
        return np.where(after_separator, n_labels, self.blank)
