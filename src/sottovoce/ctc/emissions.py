"""Checks, averaging and scaling of emissions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from sottovoce.ctc.align import are_plausible
from sottovoce.ctc.labels import Labels
from sottovoce.ctc.options import CtcOptions
from sottovoce.errors import InputError, OptionError
from sottovoce.lm.base import Floats, Ints, Records


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
    try:
        return _array(emissions), None if lengths is None else _array(lengths)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(f"emissions: expected numbers (B, T, V), got {error}") from error


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


def _check_values(frames: Floats) -> None:
    if not len(frames):
        return
    if np.isnan(frames).any():
        raise InputError("emissions: expected log-probabilities, got NaN")
    highest = float(frames.max())
    if highest > 1e-2:  # of half precision
        raise InputError(
            f"emissions: expected log-probabilities (at most 0), got {highest:.3g}: "
            "these look like logits, apply log_softmax over the labels (or say is_normalised=False)"
        )
    sums = log_sum_exp(frames)
    if (np.abs(sums) <= _SUM_TOLERANCE).all():
        return
    sums = np.exp(sums)
    lowest, top = float(sums.min()), float(sums.max())
    raise InputError(
        f"emissions: expected frames whose probabilities sum to 1, got sums from {lowest:.3g} to {top:.3g}: "
        "apply log_softmax over the labels (or say is_normalised=False)"
    )


def _check_scores(frames: Floats) -> None:
    if not np.isfinite(log_sum_exp(frames)).all():
        raise InputError("emissions: expected scores, got NaN, infinity or a frame where nothing is possible")
