"""`FirstToken` as machine code for one CPU thread (numba, extra `fast`): imported only where it is installed.

A probe reads every weight once and computes little with it, so what counts is the speed of reading and
the number of calls: here it is one call. Activations are float32; tables are read where they lie, in
float32, or in bfloat16 as oneDNN's blocks (`packed.blocks`).

Arrays: tables, of each layer V, O (self-attention), Q, C (cross-attention), first and second of the
perceptron, each (n_out, n_in) float32 or (n_out / 64, n_in / 2, 64) uint32; norms (L, 3, 2, d) weight, bias
of the norms before self-attention, cross-attention and perceptron; biases (L, 5, d) of V, O, Q, C and the
second of the perceptron; inner_biases (L, 4 d) of its first. Rows are always (R, n).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types
from numba.extending import overload

from sottovoce.jit import compiled_any_order

Rows = npt.NDArray[np.float32]
Table = npt.NDArray[Any]
LANES = 64
"""Rows of a table in one block."""
EPSILON = np.float32(1e-5)
Function = TypeVar("Function", bound=Callable[..., object])
_LOG2_E, _LN_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))


def pasted(function: Function) -> Function:
    """Written into its compiled callers."""
    return cast(Function, numba.njit(inline="always")(function))


def widened(value: Any) -> np.float32:
    """A float32, or the upper half of one (bfloat16, as uint16), as float32. Only in compiled code."""
    raise NotImplementedError


@overload(widened, inline="always")
def _widened(value: Any) -> Any:
    def same(value: Any) -> Any:
        return value

    def upper_half(value: Any) -> Any:
        return np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)

    return same if isinstance(value, types.Float) else upper_half


@compiled_any_order
def exponential(x: np.float32) -> np.float32:
    """e**x for x <= 80, to 3e-7 of it: 2**n times a polynomial, no branches, so that loops become vectors."""
    x = max(x, np.float32(-87.0))
    n = np.floor(x * _LOG2_E + np.float32(0.5))
    r = x - n * _LN_2
    p = np.float32(1 / 720)
    for c in (1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        p = p * r + np.float32(c)
    return p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@compiled_any_order
def add(x: Rows, other: Rows) -> None:
    """Add rows, or one row (n,) to each, in place."""
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            if other.ndim == 2:
                x[r, i] += other[r, i]
            else:
                x[r, i] += other[i]


@compiled_any_order
def copies(row: Rows, n: int) -> Rows:
    """A row (1, d) n times: (n, d)."""
    found = np.empty((n, row.shape[1]), np.float32)
    for r in range(n):
        for i in range(row.shape[1]):
            found[r, i] = row[0, i]
    return found


@compiled_any_order
def gelu(x: Rows) -> None:
    """x * (1 + erf(x / sqrt 2)) / 2 in place. Source: Abramowitz and Stegun 7.1.26, error at most 1.5e-7."""
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            z = abs(x[r, i]) * np.float32(math.sqrt(0.5))
            t = np.float32(1.0) / (np.float32(1.0) + np.float32(0.3275911) * z)
            p = np.float32(1.061405429)
            for c in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
                p = p * t + np.float32(c)
            tail = np.float32(0.5) * p * t * exponential(-z * z)  # of the normal distribution beyond |x|
            x[r, i] *= tail if x[r, i] < 0 else np.float32(1.0) - tail


@compiled_any_order
def normed(x: Rows, norm: Rows) -> Rows:
    """Layer normalisation with norm (2, d): weight, bias."""
    found = np.empty_like(x)
    n = np.float32(x.shape[1])
    for r in range(x.shape[0]):
        mean = np.float32(0.0)
        for i in range(x.shape[1]):
            mean += x[r, i]
        mean /= n
        variance = np.float32(0.0)
        for i in range(x.shape[1]):
            variance += (x[r, i] - mean) * (x[r, i] - mean)
        scale = np.float32(1.0) / np.sqrt(variance / n + EPSILON)
        for i in range(x.shape[1]):
            found[r, i] = (x[r, i] - mean) * scale * norm[0, i] + norm[1, i]
    return found


@compiled_any_order
def product(x: Rows, table: Table) -> Rows:
    """x (R, n_in) times a table transposed: (R, n_out)."""
    if table.ndim == 3:
        return _blocks_product(x, table)
    return _rows_product(x, table)


@compiled_any_order
def _rows_product(x: Rows, table: Table) -> Rows:
    n_rows, n_in = x.shape
    found = np.empty((n_rows, table.shape[0]), np.float32)
    for i in range(table.shape[0]):
        for r in range(0, n_rows - 1, 2):  # two at a time: a table's row is read once for both
            one, two = np.float32(0.0), np.float32(0.0)
            for k in range(n_in):
                one += table[i, k] * x[r, k]
                two += table[i, k] * x[r + 1, k]
            found[r, i], found[r + 1, i] = one, two
        if n_rows % 2:
            one = np.float32(0.0)
            for k in range(n_in):
                one += table[i, k] * x[n_rows - 1, k]
            found[n_rows - 1, i] = one
    return found


@pasted
def _low(pair: np.uint32) -> np.float32:
    return np.uint32(np.uint32(pair) << np.uint32(16)).view(np.float32)


@pasted
def _high(pair: np.uint32) -> np.float32:
    return np.uint32(np.uint32(pair) & np.uint32(0xFFFF0000)).view(np.float32)


@compiled_any_order
def _blocks_product(x: Rows, table: Table) -> Rows:
    n_rows = x.shape[0]
    found = np.empty((n_rows, table.shape[0] * LANES), np.float32)
    one, two = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    for b in range(table.shape[0]):
        for r in range(0, n_rows - 1, 2):
            _add_block_twice(x[r], x[r + 1], table[b], one, two)
            for o in range(LANES):
                found[r, b * LANES + o], found[r + 1, b * LANES + o] = one[o], two[o]
        if n_rows % 2:
            _add_block(x[n_rows - 1], table[b], one)
            for o in range(LANES):
                found[n_rows - 1, b * LANES + o] = one[o]
    return found


@compiled_any_order
def _add_block(x: Rows, block: Table, into: Rows) -> None:
    for o in range(LANES):
        into[o] = np.float32(0.0)
    for k in range(0, block.shape[0], 2):
        a, b, c, d = x[2 * k], x[2 * k + 1], x[2 * k + 2], x[2 * k + 3]
        for o in range(LANES):
            first, second = block[k, o], block[k + 1, o]
            into[o] += _low(first) * a + _high(first) * b + _low(second) * c + _high(second) * d


@compiled_any_order
def _add_block_twice(x: Rows, y: Rows, block: Table, into: Rows, into_too: Rows) -> None:
    for o in range(LANES):
        into[o] = into_too[o] = np.float32(0.0)
    for k in range(0, block.shape[0], 2):
        a, b, c, d = x[2 * k], x[2 * k + 1], x[2 * k + 2], x[2 * k + 3]
        e, f, g, h = y[2 * k], y[2 * k + 1], y[2 * k + 2], y[2 * k + 3]
        for o in range(LANES):
            first, second = block[k, o], block[k + 1, o]
            into[o] += _low(first) * a + _high(first) * b + _low(second) * c + _high(second) * d
            into_too[o] += _low(first) * e + _high(first) * f + _low(second) * g + _high(second) * h


@compiled_any_order
def listened(queries: Rows, keys: Table, values: Table, spans: npt.NDArray[np.int64]) -> Rows:
    """Attention of row r to frames spans[r] = [start, end) of keys, values (H, n_frames, d_head): (R, d)."""
    n_heads, _, d_head = keys.shape
    scale = np.float32(1.0) / np.sqrt(np.float32(d_head))
    found = np.zeros_like(queries)
    for r in range(len(queries)):
        start, end = spans[r]
        weights = np.empty(end - start, np.float32)
        for h in range(n_heads):
            own = slice(h * d_head, (h + 1) * d_head)
            _weigh(queries[r, own], keys[h, start:end], scale, weights)
            _mix(weights, values[h, start:end], found[r, own])
    return found


@compiled_any_order
def _weigh(query: Rows, keys: Table, scale: np.float32, into: Rows) -> None:
    """Softmax of the scaled products of one query with keys (n, d_head)."""
    for f in range(len(keys)):
        logit = np.float32(0.0)
        for i in range(len(query)):
            logit += query[i] * widened(keys[f, i])
        into[f] = logit * scale
    peak, total = into.max(), np.float32(0.0)
    for f in range(len(into)):
        into[f] = exponential(into[f] - peak)
        total += into[f]
    for f in range(len(into)):
        into[f] /= total


@compiled_any_order
def _mix(weights: Rows, values: Table, into: Rows) -> None:
    for f in range(len(weights)):
        for i in range(len(into)):
            into[i] += weights[f] * widened(values[f, i])


@compiled_any_order
def read(x: Rows, tables: Any, norms: Rows, biases: Rows, layer: int) -> Rows:
    """Self-attention of tokens that each stand alone: a softmax over one key is 1."""
    values = product(normed(x, norms[layer, 0]), tables[6 * layer])
    add(values, biases[layer, 0])
    found = product(values, tables[6 * layer + 1])
    add(found, biases[layer, 1])
    add(found, x)
    return found


@compiled_any_order
def queries_of(x: Rows, tables: Any, norms: Rows, biases: Rows, layer: int) -> Rows:
    """What cross-attention of a layer asks."""
    found = product(normed(x, norms[layer, 1]), tables[6 * layer + 2])
    add(found, biases[layer, 2])
    return found


@compiled_any_order
def answers(
    start: Rows,
    first_queries: Rows,
    tables: Any,
    norms: Rows,
    biases: Rows,
    inner_biases: Rows,
    last_norm: Rows,
    vocabulary: Rows,
    keys_values: Any,
    spans: npt.NDArray[np.int64],
) -> Rows:
    """Logits (R, n_rows) over `vocabulary` (n_rows, d); start, first_queries (1, d): of the first layer.

    keys_values: of each layer keys, values (H, n_frames, d_head) float32, or bfloat16 as uint16.
    """
    x, queries = copies(start, len(spans)), copies(first_queries, len(spans))
    for layer in range(len(norms)):
        if layer > 0:
            x = read(x, tables, norms, biases, layer)
            queries = queries_of(x, tables, norms, biases, layer)
        heard = listened(queries, keys_values[2 * layer], keys_values[2 * layer + 1], spans)
        add(x, product(heard, tables[6 * layer + 3]))
        add(x, biases[layer, 3])
        inner = product(normed(x, norms[layer, 2]), tables[6 * layer + 4])
        add(inner, inner_biases[layer])
        gelu(inner)
        add(x, product(inner, tables[6 * layer + 5]))
        add(x, biases[layer, 4])
    return product(normed(x, last_norm), vocabulary)
