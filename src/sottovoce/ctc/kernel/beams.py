"""Compiled: the beams of an utterance, loaded from and stored to a `PrefixState`, and numeric helpers.

The prefixes of the beams form a tree in which equal prefixes are the same node.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from sottovoce.jit import compiled, inner
from sottovoce.lm.base import Bools, Floats, Ints, Records

_LARGEST, _PER_NAT = 18, 16
"""Nats beyond which a sum is its larger part in float32, and interpolation pieces per nat."""


def _pieces() -> Floats:
    """log(1 + exp(-x)) from 0 to `_LARGEST` as piecewise cubics (n, 4), by powers of the position in a
    piece.

    Pieces meet in value and slope; the error is below 1e-8. One extra piece allows for rounded
    differences.
    """
    knots = np.arange(_LARGEST * _PER_NAT + 2) / _PER_NAT
    values, slopes = np.log1p(np.exp(-knots)), -1 / (1 + np.exp(knots)) / _PER_NAT
    rise = np.diff(values)
    square = 3 * rise - 2 * slopes[:-1] - slopes[1:]
    cube = slopes[:-1] + slopes[1:] - 2 * rise
    cubics: Floats = np.stack((values[:-1], slopes[:-1], square, cube), axis=1).astype(np.float32)
    return cubics


_CUBICS = _pieces()


@inner
def log_add(a: np.float32, b: np.float32) -> np.float32:
    """Compute log(exp(a) + exp(b)) to the precision of a float32."""
    high, low = (a, b) if a > b else (b, a)
    if not low > high - np.float32(_LARGEST):  # also if both are -inf
        return high
    at = (high - low) * np.float32(_PER_NAT)
    piece = np.uint32(at)
    way = at - np.float32(piece)
    square, cube = _CUBICS[piece, 2], _CUBICS[piece, 3]
    more: np.float32 = _CUBICS[piece, 0] + way * (_CUBICS[piece, 1] + way * (square + way * cube))
    return high + more


@intrinsic
def call(_typing: Any, address: Any, state: Any, token_id: Any, place: Any) -> Any:
    def generated(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        number = ir.IntType(64)
        function = ir.FunctionType(number, [number] * 3).as_pointer()
        return builder.call(builder.inttoptr(args[0], function), list(args[1:]))

    return types.int64(types.int64, types.int64, types.int64, types.int64), generated


@intrinsic
def float_of_bits(_typing: Any, bits: Any) -> Any:
    def generated(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.int64), generated


@intrinsic
def bits_of_float(_typing: Any, value: Any) -> Any:
    def generated(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), generated


PREFIX = np.dtype(
    [
        ("symbol", np.int64),
        ("parent", np.int32),
        ("child", np.int32),
        ("sibling", np.int32),
        ("slot", np.int32),
    ]
)


class Tree(NamedTuple):
    """Nodes of prefixes (n,) `PREFIX`; node 0 is the empty one. size: (1,) number of nodes.

    parent, symbol: the extended node, and the symbol. child: the newest child; sibling: the next older
    child of the parent; -1: none. slot: the node's beam, or -1.
    """

    nodes: Records
    size: Ints


@compiled
def new_tree(capacity: int) -> Tree:
    nodes = np.empty(capacity, PREFIX)
    nodes[0].parent = -1
    nodes[0].child = -1
    nodes[0].slot = -1
    return Tree(nodes, np.ones(1, np.int64))


@inner
def add_child(tree: Tree, node: int, symbol: int) -> int:
    """Return the node of a prefix extended by a symbol, made if it is new."""
    nodes = tree.nodes
    child = nodes[node].child
    while child >= 0:
        if nodes[child].symbol == symbol:
            return int(child)
        child = nodes[child].sibling
    made = tree.size[0]
    tree.size[0] = made + 1
    nodes[made].parent = node
    nodes[made].symbol = symbol
    nodes[made].sibling = nodes[node].child
    nodes[node].child = made
    nodes[made].child = -1
    nodes[made].slot = -1
    return int(made)


@inner
def read_history(tree: Tree, symbols: Ints, length: int) -> int:
    """Return the node of a history symbols (L,) with the start at position 0."""
    node = 0
    for i in range(1, length + 1):
        node = add_child(tree, node, symbols[i])
    return node


@inner
def read_tokens(tree: Tree, symbols: Ints, length: int, n_labels: int) -> int:
    node = 0
    for i in range(1, length + 1):
        node = add_child(tree, node, symbols[i] % n_labels)
    return node


@inner
def write_history(tree: Tree, node: int, symbols: Ints, length: int, first: int) -> None:
    """Write the symbols of a node's prefix to symbols (L,): `first`, the history, then -1."""
    symbols[length + 1 :] = -1
    symbols[0] = first
    for i in range(length, 0, -1):
        symbols[i] = tree.nodes[node].symbol
        node = tree.nodes[node].parent


@inner
def write_prefixes(tree: Tree, node: int, is_prefix: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> None:
    """Mark in is_prefix (K,) the beams that are prefixes of a node's prefix, including itself."""
    while node >= 0:
        slot = tree.nodes[node].slot
        if slot >= 0:
            is_prefix[slot] = True
        node = tree.nodes[node].parent


NEVER = np.float32(-np.inf)
SLOT = np.dtype(
    [
        ("last", np.int64),
        ("blank", np.float32),
        ("token", np.float32),
        ("lm", np.float32),
        ("adjustment", np.float32),
        ("merged", np.float32),
        ("score", np.float32),
        ("length", np.int32),
        ("arc", np.int32),
        ("node", np.int32),
        ("spelling", np.int32),
        ("next", np.int32),
        ("is_new", np.bool_),
        ("parent", np.int32),
        ("last_token", np.int32),
        ("child", np.int32),
        ("total", np.float32),
        ("stay_blank", np.float32),
        ("stay_token", np.float32),
        ("stay_total", np.float32),
        ("most_inside", np.float32),
        ("most", np.float32),
    ],
    align=True,
)
"""A beam: the fields of `PrefixState`, its node, and values of the current frame.

spelling: node of its labels. next: another beam with that node or that parent; -1: none. score, is_new:
ranking score, and whether it appended a symbol. parent: the beam that is one symbol shorter, -1: none.
child: a beam that is one longer, from which `next` leads to the others; -1: none. total: log-probability
of all its paths. stay_blank, stay_token, stay_total: those that end in a blank or its last token if
nothing is appended, and both. most_inside, most: upper bounds of language model scores for a token other
than the separator, and for any.
"""


class Beams(NamedTuple):
    """The arrays of a `PrefixState` of B utterances; histories: (B, K, L'), long enough for new symbols."""

    blank: Floats
    token: Floats
    lm: Floats
    adjustment: Floats
    merged: Floats
    length: Ints
    last: Ints
    arc: Ints
    symbols: Ints
    histories: Ints
    is_prefix: Bools
    is_label_prefix: Bools
    scores: Ints


class Slots(NamedTuple):
    """The beams of one utterance before and after a frame: (2, K) `SLOT`, states (2 * K, s)."""

    beams: Records
    states: Ints


class Trees(NamedTuple):
    """Trees of the beams' symbols, and of their tokens alone (empty if homophones are not pruned)."""

    prefixes: Tree
    spellings: Tree


@inner
def load(beams: Beams, row: int, slots: Slots, trees: Trees, n_labels: int, merges: bool) -> int:
    """Copy living beams into the first slots and their histories into the trees; return their number."""
    tree, count = trees.prefixes, 0
    for k in range(beams.blank.shape[1]):
        if beams.blank[row, k] == NEVER and beams.token[row, k] == NEVER:
            continue
        slot = slots.beams[0, count]
        slot.blank = beams.blank[row, k]
        slot.token = beams.token[row, k]
        slot.lm = beams.lm[row, k]
        slot.adjustment = beams.adjustment[row, k]
        slot.merged = beams.merged[row, k]
        slot.length = beams.length[row, k]
        slot.last = beams.last[row, k]
        slot.last_token = slot.last % n_labels
        slot.arc = beams.arc[row, k]
        slot.node = read_history(tree, beams.symbols[row, k], beams.length[row, k])
        if merges:
            slot.spelling = read_tokens(
                trees.spellings, beams.symbols[row, k], beams.length[row, k], n_labels
            )
        tree.nodes[slot.node].slot = count
        for i in range(slots.states.shape[1]):
            slots.states[count, i] = beams.scores[row, k, i]
        count += 1
    return count


@inner
def store(
    beams: Beams,
    row: int,
    slots: Slots,
    side: int,
    count: int,
    trees: Trees,
    initial_symbol: int,
    merges: bool,
) -> None:
    """Write the beams back; slots without one are dead."""
    tree, n_beams = trees.prefixes, beams.blank.shape[1]
    for k in range(n_beams):
        slot, alive = slots.beams[side, k], k < count
        beams.blank[row, k] = slot.blank if alive else NEVER
        beams.token[row, k] = slot.token if alive else NEVER
        beams.lm[row, k] = slot.lm if alive else 0.0
        beams.adjustment[row, k] = slot.adjustment if alive else 0.0
        beams.merged[row, k] = slot.merged if alive else 0.0
        beams.length[row, k] = slot.length if alive else 0
        beams.last[row, k] = slot.last if alive else initial_symbol
        beams.arc[row, k] = slot.arc if alive else 0
        beams.is_prefix[row, k] = False
        if alive:
            for n in range(slots.states.shape[1]):
                beams.scores[row, k, n] = slots.states[side * n_beams + k, n]
            write_prefixes(tree, slot.node, beams.is_prefix[row, k])
        node = slot.node if alive else 0
        write_history(tree, node, beams.histories[row, k], beams.length[row, k], beams.symbols[row, k, 0])
    if merges:
        _store_spellings(beams.is_label_prefix[row], slots.beams[side], count, trees.spellings)


@inner
def _store_spellings(is_label_prefix: Bools, beams: Records, count: int, tree: Tree) -> None:
    """Write which beams' labels are a prefix of which others'; several beams may share a node."""
    is_label_prefix[:] = False
    for k in range(count):
        beams[k].next = tree.nodes[beams[k].spelling].slot
        tree.nodes[beams[k].spelling].slot = k
    for j in range(count):
        node = beams[j].spelling
        while node >= 0:
            k = tree.nodes[node].slot
            while k >= 0:
                is_label_prefix[j, k] = True
                k = beams[k].next
            node = tree.nodes[node].parent
