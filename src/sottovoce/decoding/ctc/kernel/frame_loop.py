"""Compiled: the frame loop of the CTC prefix search, one utterance after the other, in machine code.

The same search as `prefix_search.PrefixSearch` by other means. Prefixes are nodes of a tree, so that a pruned
prefix that is found again is the same node. Candidates that cannot enter the beam are skipped by upper bounds
of what every beam and every token can score.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sottovoce.decoding.ctc.kernel.beams import (
    NEVER,
    SLOT,
    Beams,
    Slots,
    Trees,
    add_child,
    load,
    new_tree,
    store,
)
from sottovoce.decoding.ctc.kernel.candidates import (
    N_FIRST,
    Candidates,
    Tokens,
    candidate_of,
    clear,
    likeliest,
    new_candidates,
    new_tokens,
    offer,
    others,
    sort,
)
from sottovoce.decoding.ctc.kernel.numeric import log_add
from sottovoce.decoding.ctc.kernel.scorer import arc_bounds, arc_of, child_of, most_of_arc, score_arc
from sottovoce.jit import compiled, inner
from sottovoce.lm.base import FlatScorer, Floats, Ints, Record


class SearchSettings(NamedTuple):
    """Settings of a search.

    initial_symbol: what every prefix is taken to begin with. n_tokens: tokens of a frame that extend beams.
    max_homophones: homophones of a group that are kept; 0: all. threshold: `CtcOptions.beam_threshold`, or
    inf.
    """

    blank: int
    initial_symbol: int
    n_labels: int
    beam_size: int
    n_tokens: int
    max_homophones: int
    threshold: float


class Workspace(NamedTuple):
    """What the loop works on. tokens: (V,) of a frame to extend by. after: (s,) states."""

    slots: Slots
    trees: Trees
    candidates: Candidates
    tokens: Tokens
    after: Ints
    settings: SearchSettings
    scorer: FlatScorer


@compiled
def decode_rows(
    beams: Beams,
    emissions: Floats,
    lengths: Ints,
    settings: SearchSettings,
    scorer: FlatScorer,
    begin: int,
    end: int,
) -> None:
    """Advance utterances begin to end of B over their emissions (B, T, V), in place."""
    n_beams, n_states, n_labels = settings.beam_size, beams.scores.shape[2], settings.n_labels
    slots = Slots(np.empty((2, n_beams), SLOT), np.empty((2 * n_beams, n_states), np.int64))
    candidates, tokens, after = new_candidates(n_beams), new_tokens(n_labels), np.empty(n_states, np.int64)
    merges = settings.max_homophones > 0
    for row in range(begin, end):
        n_frames = lengths[row]
        n_nodes = 1 + n_beams * n_frames + beams.length[row].sum()
        trees = Trees(new_tree(n_nodes), new_tree(n_nodes if merges else 1))
        work = Workspace(slots, trees, candidates, tokens, after, settings, scorer)
        count = load(beams, row, slots, trees, n_labels, merges)
        _initialize(work, count)
        for t in range(n_frames):
            side, frame = t & 1, emissions[row, t]
            clear(candidates, settings.threshold)
            _stay(work, side, count, frame)
            _extend(work, side, count, frame)
            sort(candidates)
            count = _apply(work, side, count)
        store(beams, row, slots, n_frames & 1, count, trees, settings.initial_symbol, merges)


@inner
def _initialize(work: Workspace, count: int) -> None:
    for k in range(count):
        slot = work.slots.beams[0, k]
        slot.total = log_add(slot.blank, slot.token)
        slot.most_inside, slot.most = arc_bounds(work.scorer, work.slots.states, k)


@inner
def _stay(work: Workspace, side: int, count: int, frame: Floats) -> None:
    beams, tree, word_separator = work.slots.beams[side], work.trees.prefixes, work.scorer.lexicon.separator
    for k in range(count):
        beams[k].child = -1
    for k in range(count):
        slot = beams[k]
        log_prob = frame[slot.last_token]
        # A separator that is repeated after a blank appends nothing.
        token = (slot.total if slot.last_token == word_separator else slot.token) + log_prob
        slot.parent = tree.nodes[tree.nodes[slot.node].parent].slot if slot.node else -1
        if slot.parent >= 0:
            parent = beams[slot.parent]
            slot.next = parent.child
            parent.child = k
            # The parent's last token followed by the same token is a new one only after a blank.
            reach = parent.blank if parent.last_token == slot.last_token else parent.total
            token = log_add(token, reach + log_prob)
        slot.stay_blank = slot.total + frame[work.settings.blank]
        slot.stay_token = token
        slot.stay_total = log_add(slot.stay_blank, token)
        score = slot.stay_total + slot.lm
        if score > NEVER:
            offer(work.candidates, score, k, -1, 0, score)


@inner
def _extend(work: Workspace, side: int, count: int, frame: Floats) -> None:
    """Offer every extension that may be among the best, those of good beams and likely tokens first."""
    settings, best = work.settings, NEVER
    for k in range(count):
        slot = work.slots.beams[side, k]
        best = max(best, slot.total + slot.lm + slot.most)
    n_first, n_tokens = min(N_FIRST, settings.n_tokens), 0
    for is_second in range(2):
        limit = work.candidates.head[0].limit
        least = limit - best if limit > NEVER else NEVER
        if is_second:
            if n_tokens < n_first or n_first == settings.n_tokens:
                return
            most = settings.n_tokens - n_first
            n_tokens = others(frame, least, settings.blank, most, n_first, work.tokens)
        else:
            n_tokens = likeliest(frame, least, settings.blank, n_first, work.tokens)
        _extend_all(work, side, count, n_tokens, not is_second)


@inner
def _extend_all(work: Workspace, side: int, count: int, n_tokens: int, are_in_order: bool) -> None:
    """Offer the extensions of every beam by the first n_tokens of the workspace, which may be sorted."""
    candidates = work.candidates
    for k in range(count):
        slot = work.slots.beams[side, k]
        before, most = slot.total + slot.lm, slot.most
        for i in range(n_tokens):
            log_prob, limit = work.tokens.log_probs[i], candidates.head[0].limit
            score = before + log_prob
            if score + most <= limit:
                if are_in_order:
                    break
                continue
            token = work.tokens.ids[i]
            if token == work.scorer.lexicon.separator or score + slot.most_inside > limit:
                _extend_by(work, side, k, token, log_prob)


@inner
def _extend_by(work: Workspace, side: int, beam: int, token: int, log_prob: np.float32) -> None:
    """Offer the arcs of a token after a beam, but those to prefixes that exist: they got their part."""
    slots, scorer, candidates = work.slots, work.scorer, work.candidates
    slot, row = slots.beams[side, beam], side * work.settings.beam_size + beam
    acoustic = log_prob + (slot.blank if token == slot.last_token else slot.total)
    if acoustic == NEVER:
        return
    lexicon, before = scorer.lexicon, acoustic + slot.lm
    node = slots.states[row, 0] if lexicon.n_homophones > 0 else 0
    child = child_of(lexicon, node, token)
    for arc in range(scorer.n_arcs):
        target, mark = arc_of(lexicon, node, child, token, arc)
        limit = candidates.head[0].limit
        if target < 0 or before + most_of_arc(scorer, node, target, mark) <= limit:
            continue
        score = before + score_arc(scorer, slots.states, row, token, target, mark, work.after)
        if score <= limit:
            continue
        symbol = token + mark * work.settings.n_labels
        if not _exists(slots, side, slot.child, symbol):
            offer(candidates, score, beam, token, arc, acoustic)


@inner
def _exists(slots: Slots, side: int, child: int, symbol: int) -> bool:
    while child >= 0:
        other = slots.beams[side, child]
        if other.last == symbol:
            return True
        child = other.next
    return False


@inner
def _apply(work: Workspace, side: int, count: int) -> int:
    """Make the candidates the beams of the other side; return their number."""
    slots, settings, candidates = work.slots, work.settings, work.candidates
    tree, n_made = work.trees.prefixes, 0
    for k in range(count):
        tree.nodes[slots.beams[side, k].node].slot = -1
    least = candidates.head[0].best - np.float32(settings.threshold)
    for i in range(candidates.head[0].count):
        chosen = candidates.list[candidate_of(candidates.order[i])]
        if chosen.score < least:
            break
        slot = slots.beams[1 - side, n_made]
        slots.beams[1 - side, n_made] = slots.beams[side, chosen.source]
        slot.score = chosen.score
        slot.is_new = chosen.token >= 0
        row, new = side * settings.beam_size + chosen.source, (1 - side) * settings.beam_size + n_made
        if chosen.token < 0:
            slot.blank = slot.stay_blank
            slot.token = slot.stay_token
            slot.total = slot.stay_total
            for n in range(len(work.after)):
                slots.states[new, n] = slots.states[row, n]
        else:
            _append(work, slot, row, new, chosen)
        if settings.max_homophones > 0 and _is_pruned(slots, 1 - side, n_made, settings):
            continue
        tree.nodes[slot.node].slot = n_made
        n_made += 1
    return n_made


@inner
def _append(work: Workspace, slot: Record, row: int, new: int, chosen: Record) -> None:
    """Extend a beam with states[row] by a candidate's symbol; write its states to states[new]."""
    states, scorer, after, token = work.slots.states, work.scorer, work.after, chosen.token
    node = states[row, 0] if scorer.lexicon.n_homophones > 0 else 0
    child = child_of(scorer.lexicon, node, token)
    target, mark = arc_of(scorer.lexicon, node, child, token, chosen.arc)
    gained = score_arc(scorer, states, row, token, target, mark, after)
    for n in range(len(after)):
        states[new, n] = after[n]
    slot.blank = NEVER
    slot.token = chosen.acoustic
    slot.total = chosen.acoustic
    slot.most_inside, slot.most = arc_bounds(scorer, states, new)
    slot.lm += gained
    slot.length += 1
    slot.last = token + mark * work.settings.n_labels
    slot.last_token = token
    slot.arc = chosen.arc
    slot.node = add_child(work.trees.prefixes, slot.node, slot.last)
    if work.settings.max_homophones > 0:
        slot.spelling = add_child(work.trees.spellings, slot.spelling, token)


@inner
def _is_pruned(slots: Slots, side: int, place: int, settings: SearchSettings) -> bool:
    """Tell whether a new beam is behind `max_homophones` others of the same labels and states; see
    `homophones`.
    """
    slot, n_better, first = slots.beams[side, place], 0, -1
    for k in range(place):
        if slots.beams[side, k].spelling != slot.spelling:
            continue
        is_same = True
        for n in range(slots.states.shape[1]):
            row = side * settings.beam_size
            is_same = is_same and slots.states[row + k, n] == slots.states[row + place, n]
        if is_same:
            first = k if first < 0 else first
            n_better += 1
    if n_better < settings.max_homophones:
        return False
    best = slots.beams[side, first]
    # Pruned ones come again with every frame: they count when their group is new.
    if best.is_new and slot.is_new:
        best.merged = log_add(best.score + best.merged, slot.score + slot.merged) - best.score
    return True
