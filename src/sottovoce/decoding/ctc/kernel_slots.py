"""Compiled: the beams of an utterance during its frames, read from a `PrefixState` and written back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sottovoce.decoding.ctc.kernel_tree import Tree, read_history, write_beginnings, write_history
from sottovoce.jit import inner
from sottovoce.lm.base import Floats, Ints, Records

NEVER = np.float32(-np.inf)
SLOT = np.dtype(
    [
        ("last", np.int64),
        ("blank", np.float32),
        ("token", np.float32),
        ("lm", np.float32),
        ("adjustment", np.float32),
        ("length", np.int32),
        ("arc", np.int32),
        ("node", np.int32),
        ("parent", np.int32),
        ("last_token", np.int32),
        ("n_children", np.int32),
        ("total", np.float32),
        ("stay_blank", np.float32),
        ("stay_token", np.float32),
        ("most_inside", np.float32),
        ("most", np.float32),
    ]
)
"""A beam: the fields of `PrefixState`, its node, and what is known of it at a frame.

parent: the beam that is one symbol shorter, -1 where there is none. n_children: beams that are one longer.
last_token: of its last symbol. total: all its paths. stay_blank, stay_token: its endings where nothing new is
said. most_inside, most: what language models add at most for a token other than the separator, and for any.
"""


class Beams(NamedTuple):
    """The arrays of a `PrefixState` of B utterances; histories: (B, K, L'), long enough for what comes."""

    blank: Floats
    token: Floats
    lm: Floats
    adjustment: Floats
    length: Ints
    last: Ints
    arc: Ints
    symbols: Ints
    histories: Ints
    begins: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    scores: Ints


class Slots(NamedTuple):
    """The beams of one utterance, twice: before and after a frame; (2, K) `SLOT`, states (2 * K, s)."""

    beams: Records
    states: Ints


@inner
def load(beams: Beams, row: int, slots: Slots, tree: Tree, n_labels: int) -> int:
    """Living beams into the first slots, their histories into the tree; returns how many there are."""
    count = 0
    for k in range(beams.blank.shape[1]):
        if beams.blank[row, k] == NEVER and beams.token[row, k] == NEVER:
            continue
        slot = slots.beams[0, count]
        slot.blank = beams.blank[row, k]
        slot.token = beams.token[row, k]
        slot.lm = beams.lm[row, k]
        slot.adjustment = beams.adjustment[row, k]
        slot.length = beams.length[row, k]
        slot.last = beams.last[row, k]
        slot.last_token = slot.last % n_labels
        slot.arc = beams.arc[row, k]
        slot.node = read_history(tree, beams.symbols[row, k], beams.length[row, k])
        tree.nodes[slot.node].slot = count
        for i in range(slots.states.shape[1]):
            slots.states[count, i] = beams.scores[row, k, i]
        count += 1
    return count


@inner
def store(beams: Beams, row: int, slots: Slots, side: int, count: int, tree: Tree, blank: int) -> None:
    """Write the beams back; slots without one are dead."""
    n_beams = beams.blank.shape[1]
    for k in range(n_beams):
        slot, alive = slots.beams[side, k], k < count
        beams.blank[row, k] = slot.blank if alive else NEVER
        beams.token[row, k] = slot.token if alive else NEVER
        beams.lm[row, k] = slot.lm if alive else 0.0
        beams.adjustment[row, k] = slot.adjustment if alive else 0.0
        beams.length[row, k] = slot.length if alive else 0
        beams.last[row, k] = slot.last if alive else blank
        beams.arc[row, k] = slot.arc if alive else 0
        beams.begins[row, k] = False
        if alive:
            for n in range(slots.states.shape[1]):
                beams.scores[row, k, n] = slots.states[side * n_beams + k, n]
            write_beginnings(tree, slot.node, beams.begins[row, k])
        node = slot.node if alive else 0
        write_history(tree, node, beams.histories[row, k], beams.length[row, k], blank)
