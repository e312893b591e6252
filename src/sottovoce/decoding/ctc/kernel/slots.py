"""Compiled: the beams of an utterance during its frames, read from a `PrefixState` and written back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sottovoce.decoding.ctc.kernel.tree import (
    Tree,
    read_history,
    read_tokens,
    write_history,
    write_prefixes,
)
from sottovoce.jit import inner
from sottovoce.lm.base import Bools, Floats, Ints, Records

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

spelling: node of its labels. next: another beam of that node, or of that parent; -1: none. score, is_new:
what it was ranked by, and whether it appended a symbol. parent: the beam that is one symbol shorter, -1:
none. child: one of the beams that are one longer, from which `next` leads to the others; -1: none.
last_token: of its last symbol. total: log-probability of all its paths. stay_blank, stay_token, stay_total:
those that end in a blank or its last token if nothing is appended, and both. most_inside, most: upper bounds
of what language models add for a token other than the separator, and for any.
"""


class Beams(NamedTuple):
    """The arrays of a `PrefixState` of B utterances; histories: (B, K, L'), long enough for what comes."""

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
    """The beams of one utterance, twice: before and after a frame; (2, K) `SLOT`, states (2 * K, s)."""

    beams: Records
    states: Ints


class Trees(NamedTuple):
    """Trees of the beams' symbols, and of their tokens alone (empty where homophones are not pruned)."""

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
    """Write which beams' labels are a prefix of which others'; several beams may share one node."""
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
