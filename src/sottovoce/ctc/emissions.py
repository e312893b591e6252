"""Checks, averaging and scaling of emissions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.ctc.align import are_plausible
from sottovoce.ctc.labels import Labels
from sottovoce.ctc.options import CtcOptions
from sottovoce.errors import InputError, OptionError

Emitted = (
    Tensor
    | npt.NDArray[np.float16 | np.float32 | np.float64]
    | Sequence[Sequence[float]]
    | Sequence[Sequence[Sequence[float]]]
)
"""Emissions (B, T, V) or (T, V)."""
Emissions = Emitted | Sequence[Tensor] | Sequence[npt.NDArray[np.float16 | np.float32 | np.float64]]
"""Emissions, or a list of those of several networks."""
Lengths = Tensor | npt.NDArray[np.int32 | np.int64] | Sequence[int]
_SUM_TOLERANCE = 0.6
"""Of the log of a frame's sum: allows emissions rounded to whole nats, not logits."""


class EmissionScaling:
    """Scores are scale * (emissions - offset). Raises: OptionError: not one prior per label."""

    def __init__(self, labels: Labels, options: CtcOptions) -> None:
        self._scale, self._is_normalised = options.acoustic_scale, options.is_normalised
        self._offset: Tensor | None = None
        priors = options.label_priors
        if priors is not None and len(priors) != len(labels):
            raise OptionError(f"label_priors: expected {len(labels)}, one a label, got {len(priors)}")
        if priors is not None or options.blank_penalty:
            self._offset = torch.zeros(len(labels))
            if priors is not None:
                self._offset += options.prior_scale * torch.tensor(priors).log()
            self._offset[labels.blank] += options.blank_penalty

    def scores(self, emissions: Tensor) -> Tensor:
        if self._offset is not None:
            emissions = emissions - self._offset
        return emissions if self._scale == 1 else emissions * self._scale

    def probabilities(self, emissions: Tensor) -> Tensor:
        """Return log-probabilities (B, T, V) for confidences, times and blanks."""
        return emissions if self._is_normalised else emissions.log_softmax(dim=-1)


def networks_of(emissions: Emissions) -> list[Emitted]:
    """Split a list of the emissions of several networks."""
    if isinstance(emissions, list | tuple):
        parts = [each for each in emissions if isinstance(each, Tensor | np.ndarray) and each.ndim >= 2]
        if parts and len(parts) == len(emissions):
            return list(parts)
    return [emissions]  # type: ignore[list-item]


def network_weights(weights: tuple[float, ...] | None, n_networks: int) -> list[float]:
    """Return shares that sum to 1. Raises: OptionError: another number of weights."""
    if weights is None:
        weights = (1.0,) * n_networks
    if len(weights) != n_networks:
        raise OptionError(f"network_weights: expected {n_networks}, one a network, got {len(weights)}")
    return [weight / sum(weights) for weight in weights]


def mean_log_probs(networks: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Average the probabilities of networks (B, T, V). Raises: InputError: different shapes."""
    first = networks[0].shape
    for number, each in enumerate(networks[1:], 2):
        if each.shape != first:
            raise InputError(
                f"networks: expected the same utterances, frames and labels, got {tuple(first)} and, from "
                f"network {number}, {tuple(each.shape)} (utterances of a batch are one padded array)"
            )
    shares = torch.tensor(weights).log()
    return (torch.stack(list(networks)) + shares.view(-1, 1, 1, 1)).logsumexp(dim=0)


def likely_blank(log_probs: Tensor) -> int | None:
    """Return the label that is the likeliest one in most frames of emissions (T, V); None: no label is."""
    counts = log_probs.argmax(dim=1).bincount()
    return int(counts.argmax()) if len(counts) and 2 * int(counts.max()) > len(log_probs) else None


def as_tensors(emissions: Emitted, lengths: Lengths | None) -> tuple[Tensor, Tensor | None]:
    """Convert to tensors on the CPU, from any byte order. Raises: InputError: no numbers, or ragged rows."""
    try:
        if isinstance(emissions, np.ndarray):
            emissions = emissions.astype(emissions.dtype.newbyteorder("="), copy=False)
        values = torch.as_tensor(emissions, device="cpu")
        return values, None if lengths is None else torch.as_tensor(lengths, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"emissions: expected numbers (B, T, V), got {error}") from error


def checked(
    log_probs: Tensor,
    lengths: Tensor | None,
    n_labels: int,
    *,
    is_normalised: bool = True,
) -> tuple[Tensor, Tensor]:
    """Check emissions (B, T, V) or (T, V); return (B, T, V) float32 and lengths (B,) int64.

    lengths: None: all frames. is_normalised: False: any scores.

    Raises:
        InputError: a wrong shape or size, or values that are no log-probabilities or scores.
    """
    log_probs = log_probs.detach()
    if log_probs.ndim == 2:
        log_probs = log_probs[None]
    if log_probs.ndim != 3 or not log_probs.is_floating_point():
        raise InputError(
            f"emissions: expected floats (B, T, V), got {log_probs.dtype} of shape {tuple(log_probs.shape)}"
        )
    if log_probs.shape[2] != n_labels:
        raise InputError(f"emissions: expected {n_labels} labels in the last place, got {log_probs.shape[2]}")
    lengths = _checked_lengths(lengths, log_probs)
    log_probs = log_probs.float()
    if is_normalised and are_plausible(log_probs, lengths):
        return log_probs, lengths
    frames = log_probs[torch.arange(log_probs.shape[1]) < lengths[:, None]]
    (_check_values if is_normalised else _check_scores)(frames)
    return log_probs, lengths


def _checked_lengths(lengths: Tensor | None, log_probs: Tensor) -> Tensor:
    n_batch, n_frames, _ = log_probs.shape
    if lengths is None:
        return torch.full((n_batch,), n_frames, dtype=torch.int64)
    lengths = lengths.long()
    if lengths.shape != (n_batch,):
        raise InputError(f"lengths: expected shape ({n_batch},), got {tuple(lengths.shape)}")
    if n_batch and not bool(((lengths >= 0) & (lengths <= n_frames)).all()):
        raise InputError(f"lengths: expected 0 to {n_frames} frames, got {lengths.tolist()}")
    return lengths


def _check_values(frames: Tensor) -> None:
    if not len(frames):
        return
    if bool(frames.isnan().any()):
        raise InputError("emissions: expected log-probabilities, got NaN")
    highest = float(frames.max())
    if highest > 1e-2:  # of half precision
        raise InputError(
            f"emissions: expected log-probabilities (at most 0), got {highest:.3g}: "
            "these look like logits, apply log_softmax over the labels (or say is_normalised=False)"
        )
    sums = frames.logsumexp(dim=1)
    if bool((sums.abs() <= _SUM_TOLERANCE).all()):
        return
    sums = sums.exp()
    lowest, top = float(sums.min()), float(sums.max())
    raise InputError(
        f"emissions: expected frames whose probabilities sum to 1, got sums from {lowest:.3g} to {top:.3g}: "
        "apply log_softmax over the labels (or say is_normalised=False)"
    )


def _check_scores(frames: Tensor) -> None:
    if not bool(frames.logsumexp(dim=1).isfinite().all()):
        raise InputError("emissions: expected scores, got NaN, infinity or a frame where nothing is possible")
