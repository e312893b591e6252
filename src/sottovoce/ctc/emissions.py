"""Emissions of CTC networks: checks, averaging, scaling, and forced alignment.

Forced alignment is the most probable path that spells given tokens (Graves et al. 2006, section 4.1, with the
maximum instead of the sum).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from sottovoce.ctc.labels import Labels
from sottovoce.ctc.options import CtcOptions
from sottovoce.errors import InputError, OptionError, expecting
from sottovoce.kernels import load_kernels
from sottovoce.lm.base import Floats, Ints, Records
from sottovoce.threads import n_threads

if TYPE_CHECKING:
    import sottovoce_kernels.ctc


class ForeignArray(Protocol):
    """An array of another library that NumPy converts: of PyTorch, JAX, TensorFlow, CuPy."""

    @property
    def ndim(self) -> int: ...

    def __dlpack__(self, *, stream: Any = ...) -> object: ...


Emitted = (
    npt.NDArray[np.float16 | np.float32 | np.float64]
    | ForeignArray
    | Sequence[Sequence[float]]
    | Sequence[Sequence[Sequence[float]]]
)
"""Emissions (B, T, V) or (T, V)."""
Emissions = Emitted | Sequence[ForeignArray] | Sequence[npt.NDArray[np.float16 | np.float32 | np.float64]]
"""Emissions, or a list of those of several networks."""
Lengths = npt.NDArray[np.int32 | np.int64] | ForeignArray | Sequence[int]
_SUM_TOLERANCE = 0.6
"""Of the log of a frame's sum: allows emissions rounded to whole nats, not logits."""


class EmissionScaling:
    """Scores are scale * (emissions - offset). Raises: OptionError: not one prior per label."""

    def __init__(self, labels: Labels, options: CtcOptions) -> None:
        self._scale, self._is_normalised = options.acoustic_scale, options.is_normalised
        self._offset: Floats | None = None
        priors = options.label_priors
        if priors is not None and len(priors) != len(labels):
            raise OptionError(f"label_priors: expected {len(labels)}, one a label, got {len(priors)}")
        if priors is not None or options.blank_penalty:
            self._offset = np.zeros(len(labels), np.float32)
            if priors is not None:
                with np.errstate(divide="ignore"):
                    self._offset += options.prior_scale * np.log(np.array(priors, np.float32))
            self._offset[labels.blank] += options.blank_penalty

    def scores(self, emissions: Floats) -> Floats:
        if self._offset is not None:
            emissions = emissions - self._offset
        return emissions if self._scale == 1 else emissions * self._scale

    def probabilities(self, emissions: Floats) -> Floats:
        """Return log-probabilities (B, T, V) for confidences, times and blanks."""
        return emissions if self._is_normalised else log_softmax(emissions)


def networks_of(emissions: Emissions) -> list[Emitted]:
    """Split a list of the emissions of several networks."""
    if isinstance(emissions, list | tuple):
        parts = [each for each in emissions if getattr(each, "ndim", 0) >= 2]
        if parts and len(parts) == len(emissions):
            return cast("list[Emitted]", parts)
    return [cast(Emitted, emissions)]


def network_weights(weights: tuple[float, ...] | None, n_networks: int) -> list[float]:
    """Return shares that sum to 1. Raises: OptionError: another number of weights."""
    if weights is None:
        weights = (1.0,) * n_networks
    if len(weights) != n_networks:
        raise OptionError(f"network_weights: expected {n_networks}, one a network, got {len(weights)}")
    return [weight / sum(weights) for weight in weights]


def batch_of(rows: Sequence[Floats]) -> tuple[Floats, Ints]:
    """Pad the emissions (T, V) of utterances to (B, T, V); also return their lengths (B,)."""
    lengths = np.array([len(row) for row in rows])
    batch = np.zeros((len(rows), lengths.max(initial=0), rows[0].shape[1]), np.float32)
    for padded, row in zip(batch, rows, strict=True):
        padded[: len(row)] = row
    return batch, lengths


def mean_log_probs(networks: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """Average the probabilities of networks (B, T, V). Raises: InputError: different shapes."""
    first = networks[0].shape
    for number, each in enumerate(networks[1:], 2):
        if each.shape != first:
            raise InputError(
                f"networks: expected the same utterances, frames and labels, got {first} and, from "
                f"network {number}, {each.shape} (utterances of a batch are one padded array)"
            )
    with np.errstate(divide="ignore"):
        shares = np.log(np.array(weights, np.float32))
    mean: Floats = log_sum_exp(np.stack(networks) + shares[:, None, None, None], axis=0)[0]
    return mean


def log_sum_exp(values: Floats, axis: int = -1) -> Floats:
    """Return the log of summed exponentials along an axis, which stays with length 1."""
    highest = values.max(axis=axis, keepdims=True, initial=-np.inf)
    highest[np.isneginf(highest)] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        total: Floats = np.log(np.exp(values - highest).sum(axis=axis, keepdims=True)) + highest
    return total


def log_softmax(logits: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        shifted = logits - logits.max(axis=-1, keepdims=True)
    total: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return total


def likely_blank(log_probs: Floats) -> int | None:
    """Return the label that is the likeliest one in most frames of emissions (T, V); None: no label is."""
    counts = np.bincount(log_probs.argmax(axis=1)) if len(log_probs) else ()
    return int(np.argmax(counts)) if len(counts) and 2 * int(max(counts)) > len(log_probs) else None


def as_arrays(emissions: Emitted, lengths: Lengths | None) -> tuple[Records, Records | None]:
    """Convert numbers of NumPy, PyTorch, JAX and others, on any device, or lists, to arrays of the host.

    Raises:
        InputError: no numbers, or ragged rows.
    """
    causes = (TypeError, ValueError, RuntimeError, BufferError)
    with expecting("emissions", "numbers (B, T, V)", InputError, causes):
        return _array(emissions), None if lengths is None else _array(lengths)


def _array(values: Any) -> Records:
    if hasattr(values, "detach"):  # of PyTorch, maybe with gradients, on a device, or in bfloat16
        values = values.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()
    is_dlpack = hasattr(values, "__dlpack__") and not hasattr(values, "__array__")
    array: Records = np.from_dlpack(values) if is_dlpack else np.asarray(values)
    array = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{type(values).__name__} of {array.dtype}")
    return array


def checked(
    log_probs: Records, lengths: Records | None, n_labels: int, *, is_normalised: bool = True
) -> tuple[Floats, Ints]:
    """Check emissions (B, T, V) or (T, V); return (B, T, V) float32 and lengths (B,) int64.

    lengths: None: all frames. is_normalised: False: any scores.

    Raises:
        InputError: a wrong shape or size, or values that are no log-probabilities or scores.
    """
    if log_probs.ndim == 2:
        log_probs = log_probs[None]
    if log_probs.ndim != 3 or log_probs.dtype.kind != "f":
        raise InputError(
            f"emissions: expected floats (B, T, V), got {log_probs.dtype} of shape {log_probs.shape}"
        )
    if log_probs.shape[2] != n_labels:
        raise InputError(f"emissions: expected {n_labels} labels in the last place, got {log_probs.shape[2]}")
    lengths = _checked_lengths(lengths, log_probs)
    log_probs = np.ascontiguousarray(log_probs, np.float32)
    if is_normalised and are_plausible(log_probs, lengths):
        return log_probs, lengths
    frames = log_probs[np.arange(log_probs.shape[1]) < lengths[:, None]]
    (_check_values if is_normalised else _check_scores)(frames)
    return log_probs, lengths


def _checked_lengths(lengths: Records | None, log_probs: Records) -> Ints:
    n_batch, n_frames, _ = log_probs.shape
    if lengths is None:
        return np.full(n_batch, n_frames, np.int64)
    if lengths.shape != (n_batch,):
        raise InputError(f"lengths: expected shape ({n_batch},), got {lengths.shape}")
    if n_batch and (lengths.dtype.kind not in "iu" or lengths.min() < 0 or lengths.max() > n_frames):
        raise InputError(f"lengths: expected 0 to {n_frames} frames, got {lengths.tolist()}")
    return lengths.astype(np.int64)


_NORMALISING = (
    "apply log_softmax over the labels (decode_logits, --logits), or say is_normalised=False (--unnormalised)"
)


def _check_values(frames: Floats) -> None:
    if not len(frames):
        return
    if np.isnan(frames).any():
        raise InputError("emissions: expected log-probabilities, got NaN")
    highest = float(frames.max())
    if highest > 1e-2:  # of half precision
        are_probabilities = frames.min() >= 0 and (np.abs(frames.sum(-1) - 1) <= _SUM_TOLERANCE).all()
        raise InputError(
            f"emissions: expected log-probabilities (at most 0), got {highest:.3g}: these look like "
            + ("probabilities, take their logarithm" if are_probabilities else f"logits, {_NORMALISING}")
        )
    sums = log_sum_exp(frames)
    if (np.abs(sums) <= _SUM_TOLERANCE).all():
        return
    sums = np.exp(sums)
    lowest, top = float(sums.min()), float(sums.max())
    raise InputError(
        f"emissions: expected frames whose probabilities sum to 1, got sums from {lowest:.3g} to {top:.3g}: "
        + _NORMALISING
    )


def _check_scores(frames: Floats) -> None:
    if not np.isfinite(log_sum_exp(frames)).all():
        raise InputError("emissions: expected scores, got NaN, infinity or a frame where nothing is possible")


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
