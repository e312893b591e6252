"""Compiled: the best word sequences of given labels; see `homophone_rescoring.expand_homophones`."""

from __future__ import annotations

import numpy as np

from sottovoce.decoding.ctc.kernel.arcs import arc_of, child_of, end_rows, score_arc
from sottovoce.decoding.ctc.kernel.slots import NEVER
from sottovoce.jit import compiled
from sottovoce.lm.base import FlatScorer, Floats, Ints


@compiled
def expand_rows(
    tokens: Ints, lengths: Ints, first: Ints, scorer: FlatScorer, most: int, n_labels: int
) -> tuple[Floats, Ints, Ints]:
    """Find the word sequences of tokens (S, L), of which lengths (S,) count, at most `most` of each.

    first: (s,) start state of the scorer. Returns scores (S, most), best first and -inf where there are no
    more; symbols (S, most, L); and the marks (S, most) of the words that the ends complete.
    """
    n_rows, longest = tokens.shape
    scores = np.full((n_rows, most), NEVER, np.float32)
    symbols = np.zeros((n_rows, most, longest), np.int64)
    marks = np.zeros((n_rows, most), np.int64)
    for row in range(n_rows):
        labels = tokens[row, : lengths[row]]
        _expand(labels, first, scorer, n_labels, scores[row], symbols[row], marks[row])
    return scores, symbols, marks


@compiled
def _expand(
    labels: Ints,
    first: Ints,
    scorer: FlatScorer,
    n_labels: int,
    scores: Floats,
    symbols: Ints,
    marks: Ints,
) -> None:
    """Write the best word sequences of labels (L,) to scores (W,), symbols (W, L) and marks (W,)."""
    most, n_states = len(scores), len(first)
    states, score, n_alive = np.empty((most, n_states), np.int64), np.zeros(most, np.float32), 1
    states[0] = first
    source, chosen = np.empty((len(labels), most), np.int64), np.empty((len(labels), most), np.int64)
    room = most * scorer.n_arcs
    candidate, parents = np.empty(room, np.float32), np.empty(room, np.int64)
    ends, after = np.empty(room, np.int64), np.empty((room, n_states), np.int64)
    for place in range(len(labels)):
        n_found = 0
        for row in range(n_alive):
            child = child_of(scorer.lexicon, states[row, 0], labels[place])
            for arc in range(scorer.n_arcs):
                target, mark = arc_of(scorer.lexicon, states[row, 0], child, labels[place], arc)
                if target < 0:
                    continue
                gained = score_arc(scorer, states, row, labels[place], target, mark, after[n_found])
                if score[row] + gained > NEVER:
                    candidate[n_found], parents[n_found] = score[row] + gained, row
                    ends[n_found] = labels[place] + n_labels * mark
                    n_found += 1
        order = _best(candidate[:n_found], most)
        n_alive = len(order)
        for row in range(n_alive):
            score[row], states[row] = candidate[order[row]], after[order[row]]
            source[place, row], chosen[place, row] = parents[order[row]], ends[order[row]]
    gained_ends, marks_of_ends = end_rows(states[:n_alive], scorer)
    n_ways = gained_ends.shape[1]
    total = (score[:n_alive].reshape(-1, 1) + gained_ends).ravel()
    order = np.argsort(-total, kind="mergesort")[:most]
    for rank in range(len(order)):
        if total[order[rank]] == NEVER:
            break
        row = order[rank] // n_ways
        scores[rank], marks[rank] = total[order[rank]], marks_of_ends[row, order[rank] % n_ways]
        for place in range(len(labels) - 1, -1, -1):
            symbols[rank, place] = chosen[place, row]
            row = source[place, row]


@compiled
def _best(candidates: Floats, most: int) -> Ints:
    """Indices of the best candidates (n,), at most `most`; in their order where all stay."""
    if len(candidates) <= most:
        return np.arange(len(candidates))
    return np.argsort(-candidates, kind="mergesort")[:most]
