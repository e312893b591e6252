"""Compiled: the ways for beams to end; those of `PrefixScorer.endings`."""

from __future__ import annotations

import numpy as np

from sottovoce.decoding.ctc.kernel.arcs import asked, score_word, separated_arc, weighted
from sottovoce.decoding.ctc.kernel.slots import NEVER
from sottovoce.jit import compiled, inner
from sottovoce.lm.base import END, FlatLexicon, FlatModels, FlatScorer, Floats, Ints


@compiled
def end_rows(states: Ints, scorer: FlatScorer) -> tuple[Floats, Ints]:
    """Scores (N, E) and marks (N, E) of ending at states (N, s); see `lm.base.Endings`."""
    lexicon, begin = scorer.lexicon, 0
    n_ways = lexicon.n_homophones if lexicon.separator >= 0 else 1
    scores, marks = np.empty((len(states), n_ways), np.float32), np.zeros((len(states), n_ways), np.int64)
    after = np.empty(1 + len(scorer.words.models), np.int64)
    for row in range(len(states)):
        said = np.float32(0.0)
        if lexicon.n_homophones > 0:
            said, begin = -lexicon.nodes[states[row, 0]].ahead, 1 + len(scorer.words.models)
        said += _sum_of_ends(scorer.tokens, states[row, begin:])
        for way in range(n_ways):
            mark = _mark_of(lexicon, states[row, 0], way) if lexicon.n_homophones > 0 else 0
            scores[row, way] = NEVER
            if mark < 0:
                continue
            marks[row, way], scores[row, way] = mark, said
            if lexicon.n_homophones > 0:
                scores[row, way] += score_word(scorer, states, row, mark, after)
                scores[row, way] += _sum_of_ends(scorer.words, after[1:])
    return scores, marks


@inner
def _mark_of(lexicon: FlatLexicon, node: int, way: int) -> int:
    """The word that one of the ways to end at a node completes; -1: there is no such way."""
    if lexicon.separator < 0 or node == 0:
        return 0 if node == 0 and way == 0 else -1
    target, mark = separated_arc(lexicon, node, -1, lexicon.separator, way)
    return mark if target >= 0 else -1


@inner
def _sum_of_ends(models: FlatModels, nodes: Ints) -> np.float32:
    total = np.float32(0.0)
    for model in range(len(models.models)):
        which = models.models[model]
        if which.address != 0:
            total += weighted(asked(models, model, nodes[model], END)[0], which.weight)
        else:
            total += models.ends[which.base + nodes[model]]
    return total
