"""Quantisation loss: how far quantised weights are from the originals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TensorLoss:
    """One tensor: the sums of its squared weights and of their squared errors, and the largest error.

    bytes_before, bytes_after: of the tensor as it was and as it is written. is_packed: weights share blocks
    and scales; a tensor that keeps a number each counts in the bytes only.
    """

    name: str
    bytes_before: int
    bytes_after: int
    is_packed: bool = False
    squared: float = 0.0
    squared_error: float = 0.0
    largest_error: float = 0.0

    @property
    def relative_rms(self) -> float:
        """Root of the squared errors over the squared weights; 0 for a tensor of zeros."""
        return math.sqrt(self.squared_error / self.squared) if self.squared else 0.0


@dataclass(frozen=True, slots=True)
class QuantizationLoss:
    """The loss of quantising a model.

    n_tensors: quantised ones, over which the errors are taken. relative_rms: root of the squared errors of
    all their weights over the squared weights. largest_error: of any weight, absolute. worst: the tensor
    whose own relative_rms is the largest, worst_relative_rms. bytes_before, bytes_after: of all weights,
    as the checkpoint held them and as they are written.
    """

    n_tensors: int
    relative_rms: float
    largest_error: float
    worst: str
    worst_relative_rms: float
    bytes_before: int
    bytes_after: int

    @classmethod
    def of(cls, tensors: Sequence[TensorLoss]) -> QuantizationLoss | None:
        """Sum up all tensors of a model; None where none of them is quantised."""
        packed = [one for one in tensors if one.is_packed]
        if not packed:
            return None
        worst = max(packed, key=lambda one: one.relative_rms)
        squared = sum(one.squared for one in packed)
        errors = sum(one.squared_error for one in packed)
        return cls(
            n_tensors=len(packed),
            relative_rms=math.sqrt(errors / squared) if squared else 0.0,
            largest_error=max(one.largest_error for one in packed),
            worst=worst.name,
            worst_relative_rms=worst.relative_rms,
            bytes_before=sum(one.bytes_before for one in tensors),
            bytes_after=sum(one.bytes_after for one in tensors),
        )


def tensor_loss(
    name: str, weights: Floats, packed: Floats, *, bytes_before: int, bytes_after: int
) -> TensorLoss:
    """Measure the loss of a quantised tensor. weights, packed: of the same shape (...,), before and after."""
    exact = weights.astype(np.float64)
    errors = packed.reshape(weights.shape) - exact
    return TensorLoss(
        name,
        bytes_before,
        bytes_after,
        is_packed=True,
        squared=float(np.square(exact).sum()),
        squared_error=float(np.square(errors).sum()),
        largest_error=float(np.abs(errors).max()),
    )
