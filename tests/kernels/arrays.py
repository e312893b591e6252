"""Arrays handed to the kernels, and what float64 says of the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

kernels = pytest.importorskip("sottovoce_kernels", reason="sottovoce-kernels is not installed")

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
HERE = [name for name in kernels.built() if kernels.runs_here(name)]
"""Instruction sets of this processor, the portable one first."""
BFLOAT16 = 2.0**-8
"""Relative rounding of bfloat16, twice: of a key or value, and of what it is multiplied with."""


@contextmanager
def using(name: str) -> Iterator[None]:
    """Compute with an instruction set for a while."""
    before = kernels.in_use()
    kernels.use(name)
    try:
        yield
    finally:
        kernels.use(before)


def normal(seed: int, *shape: int, scale: float = 1.0) -> Array:
    """Random numbers, a few of them far out, as activations of trained networks have them."""
    generator = np.random.default_rng(seed)
    numbers = generator.standard_normal(shape) * scale
    numbers[generator.random(shape) < 0.01] *= 20
    return numbers.astype(np.float32)


class Layer:
    """A linear layer of the kernels, with its numbers."""

    def __init__(self, weight: Array, bias: Array | None = None) -> None:
        self.weight, self.bias = np.ascontiguousarray(weight), bias
        self.n_out, self.n_in = weight.shape
        self.linear = kernels.Linear(
            self.weight.ctypes.data, 0 if bias is None else bias.ctypes.data, self.n_out, self.n_in
        )

    def __call__(
        self, x: Array, *, epilogue: int = kernels.STORE, onto: Array | None = None, n_threads: int = 1
    ) -> Array:
        out = np.zeros((len(x), self.n_out), np.float32) if onto is None else onto.copy()
        self.linear.apply(np.ascontiguousarray(x).ctypes.data, len(x), out.ctypes.data, epilogue, n_threads)
        return out

    def table(self) -> Array:
        """The rows as the kernels prefix_of them."""
        rows = np.empty((self.n_out, self.n_in), np.float32)
        for row in range(self.n_out):
            self.linear.row(row, rows[row].ctypes.data)
        return rows

    def exact(self, x: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """What no rounding gives."""
        product = x.astype(np.float64) @ self.weight.astype(np.float64).T
        return product if self.bias is None else product + self.bias

    def bound(self, x: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """The most that eight bits on both sides can be wrong.

        Half a step of each number times the other's size; for activations the zero point's as well.
        """
        rows, weight = np.abs(x.astype(np.float64)), np.abs(self.weight.astype(np.float64))
        span = np.maximum(x.max(1, initial=0), 0) - np.minimum(x.min(1, initial=0), 0)
        of_x = (span / 255)[:, None]
        of_weight = weight.max(1)[None] / 127 / 2
        sums = weight.sum(1)[None] * of_x + (rows.sum(1)[:, None] + of_x * self.n_in) * of_weight
        size = rows @ weight.T + (0 if self.bias is None else np.abs(self.bias))
        return sums * (1 + 1e-4) + (size + 1) * 1e-5
