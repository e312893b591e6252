"""What a CTC search is given: checks of emissions, and leaving out runs of blank frames."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sottovoce.decoding.ctc.state import NEVER, PrefixState
from sottovoce.errors import InputError

_SUM_TOLERANCE = 0.6
"""How far the log of a frame's summed probability may be from 0: emissions rounded to whole nats are
allowed, logits are not."""
_POSITIVE_TOLERANCE = 1e-2


def checked(
    log_probs: Tensor,
    lengths: Tensor | None,
    n_labels: int,
    *,
    is_normalised: bool = True,
    trusted: Callable[[Tensor, Tensor], bool] | None = None,
) -> tuple[Tensor, Tensor]:
    """Emissions (B, T, V) float32 and lengths (B,) int64, fit for a search.

    log_probs: (B, T, V) or (T, V) of any float type. lengths: frames of each utterance, None for all.
    is_normalised: they are log-probabilities; else any scores.
    trusted: says of what is returned whether it is beyond doubt; else it is looked at closely.
    Raises InputError: wrong shape or size, NaN; for log-probabilities positive values, or frames that do not
    sum to 1; for scores frames without a finite sum.
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
    if is_normalised and trusted is not None and trusted(log_probs, lengths):
        return log_probs, lengths
    places = torch.arange(log_probs.shape[1], device=log_probs.device)
    frames = log_probs[places < lengths[:, None]]
    (_check_values if is_normalised else _check_scores)(frames)
    return log_probs, lengths


def _checked_lengths(lengths: Tensor | None, log_probs: Tensor) -> Tensor:
    n_batch, n_frames, _ = log_probs.shape
    if lengths is None:
        return torch.full((n_batch,), n_frames, dtype=torch.int64, device=log_probs.device)
    lengths = lengths.to(log_probs.device, torch.int64)
    if lengths.shape != (n_batch,):
        raise InputError(f"lengths: expected shape ({n_batch},), got {tuple(lengths.shape)}")
    if n_batch and not bool(((lengths >= 0) & (lengths <= n_frames)).all()):
        raise InputError(f"lengths: expected 0 to {n_frames} frames, got {lengths.tolist()}")
    return lengths


def _check_values(frames: Tensor) -> None:
    """frames: (n, V) float32."""
    if not len(frames):
        return
    if bool(frames.isnan().any()):
        raise InputError("emissions: expected log-probabilities, got NaN")
    highest = float(frames.max())
    if highest > _POSITIVE_TOLERANCE:
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
    """frames: (n, V) float32."""
    if not bool(frames.logsumexp(dim=1).isfinite().all()):
        raise InputError("emissions: expected scores, got NaN, infinity or a frame where nothing is possible")


def without_blank_runs(
    state: PrefixState, scores: Tensor, lengths: Tensor, *, blank: int, is_likely: Tensor
) -> tuple[Tensor, Tensor]:
    """Drop all but the first frame of every run of frames that are likely to be blank, (B, T) bool.

    The scores of the blanks that are dropped go to `state.skipped`, so that those of hypotheses remain
    comparable. Runs go on over chunks.
    """
    n_batch, n_frames, n_labels = scores.shape
    if not n_frames:
        return scores, lengths
    valid = torch.arange(n_frames, device=scores.device) < lengths[:, None]
    is_blank = is_likely & valid
    dropped = is_blank & torch.cat((state.in_blank[:, None], is_blank[:, :-1]), dim=1)
    state.skipped = state.skipped + scores[:, :, blank].masked_fill(~dropped, 0.0).sum(dim=1)
    last = (lengths - 1).clamp_min(0)[:, None]
    state.in_blank = torch.where(lengths > 0, is_blank.gather(1, last)[:, 0], state.in_blank)
    kept = valid & ~dropped
    order = (~kept).to(torch.uint8).argsort(dim=1, stable=True)
    n_kept = kept.sum(dim=1)
    longest = int(n_kept.max()) if n_batch else 0
    index = order[:, :longest, None].expand(-1, -1, n_labels)
    return scores.gather(1, index), n_kept


def joined(state: PrefixState) -> tuple[Tensor, Tensor]:
    """All emissions (B, T, V) that a state has seen and not settled, and their lengths (B,)."""
    if len(state.emissions) == 1:
        return state.emissions[0]
    lengths = state.n_frames - torch.tensor([past.n_frames for past in state.past]).to(state.n_frames)
    n_frames = int(lengths.max()) if len(lengths) else 0
    n_labels = state.emissions[0][0].shape[2]
    whole = state.blank.new_full((len(lengths), n_frames, n_labels), NEVER)
    for row in range(len(lengths)):
        parts = [chunk[row, : int(n_valid[row])] for chunk, n_valid in state.emissions]
        whole[row, : int(lengths[row])] = torch.cat(parts)
    return whole, lengths
