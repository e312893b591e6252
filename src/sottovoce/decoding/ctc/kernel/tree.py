"""Compiled: the prefixes of one utterance as a tree, in which equal prefixes are the same node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sottovoce.jit import compiled, inner
from sottovoce.lm.base import Ints, Records

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

    parent, symbol: the node that a node extends, and by which symbol. child: its newest child, sibling: the
    next older child of its parent; -1 where there is none. slot: the beam that a node is, or -1.
    """

    nodes: Records
    size: Ints


@compiled
def new_tree(capacity: int) -> Tree:
    """Allocate a tree of at most `capacity` nodes, which holds the empty prefix."""
    nodes = np.empty(capacity, PREFIX)
    nodes[0].parent = -1
    nodes[0].child = -1
    nodes[0].slot = -1
    return Tree(nodes, np.ones(1, np.int64))


@inner
def add_child(tree: Tree, node: int, symbol: int) -> int:
    """Return the node of a prefix extended by a symbol, made where it is new."""
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
    """Return the node of a history symbols (L,), whose position 0 is the start."""
    node = 0
    for i in range(1, length + 1):
        node = add_child(tree, node, symbols[i])
    return node


@inner
def read_tokens(tree: Tree, symbols: Ints, length: int, n_labels: int) -> int:
    """Return the node of the tokens of a history symbols (L,)."""
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
    """Mark in is_prefix (K,) the beams that are prefixes of a node's prefix, itself included."""
    while node >= 0:
        slot = tree.nodes[node].slot
        if slot >= 0:
            is_prefix[slot] = True
        node = tree.nodes[node].parent
