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
    Tree,
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


class Scratch(NamedTuple):
    """Buffers. tokens: (V,) of a frame to extend by. after: (s,) states."""

    tokens: Tokens
    after: Ints


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
    candidates = new_candidates(n_beams)
    scratch = Scratch(new_tokens(n_labels), np.empty(n_states, np.int64))
    for row in range(begin, end):
        n_frames = lengths[row]
        n_nodes = 1 + n_beams * n_frames + beams.length[row].sum()
        trees = Trees(new_tree(n_nodes), new_tree(n_nodes if settings.max_homophones else 1))
        count = load(beams, row, slots, trees, n_labels, settings.max_homophones > 0)
        _initialize(slots, count, scorer)
        for t in range(n_frames):
            side, frame = t & 1, emissions[row, t]
            clear(candidates, settings.threshold)
            _stay(
                slots,
                side,
                count,
                frame,
                trees.prefixes,
                settings.blank,
                scorer.lexicon.separator,
                candidates,
            )
            _extend(slots, side, count, frame, settings, scorer, candidates, scratch)
            sort(candidates)
            count = _apply(slots, side, count, settings, scorer, candidates, trees, scratch.after)
        store(
            beams,
            row,
            slots,
            n_frames & 1,
            count,
            trees,
            settings.initial_symbol,
            settings.max_homophones > 0,
        )


@inner
def _initialize(slots: Slots, count: int, scorer: FlatScorer) -> None:
    """Compute the derived fields of beams that were loaded."""
    for k in range(count):
        slot = slots.beams[0, k]
        slot.total = log_add(slot.blank, slot.token)
        slot.most_inside, slot.most = arc_bounds(scorer, slots.states, k)


@inner
def _stay(
    slots: Slots,
    side: int,
    count: int,
    frame: Floats,
    tree: Tree,
    blank: int,
    word_separator: int,
    candidates: Candidates,
) -> None:
    """Stay by a blank or the last token again, or be reached from the prefix one symbol shorter."""
    beams = slots.beams[side]
    for k in range(count):
        beams[k].child = -1
    for k in range(count):
        slot = beams[k]
        log_prob = frame[slot.last_token]
        # A word_separator that is log_prob again after a blank says nothing new.
        token = (slot.total if slot.last_token == word_separator else slot.token) + log_prob
        slot.parent = tree.nodes[tree.nodes[slot.node].parent].slot if slot.node else -1
        if slot.parent >= 0:
            parent = beams[slot.parent]
            slot.next = parent.child
            parent.child = k
            # The parent's last token followed by the same token is a new one only after a blank.
            reach = parent.blank if parent.last_token == slot.last_token else parent.total
            token = log_add(token, reach + log_prob)
        slot.stay_blank = slot.total + frame[blank]
        slot.stay_token = token
        slot.stay_total = log_add(slot.stay_blank, token)
        score = slot.stay_total + slot.lm
        if score > NEVER:
            offer(candidates, score, k, -1, 0, score)


@inner
def _extend(
    slots: Slots,
    side: int,
    count: int,
    frame: Floats,
    settings: SearchSettings,
    scorer: FlatScorer,
    candidates: Candidates,
    scratch: Scratch,
) -> None:
    """Offer every extension that may be among the best, those of good beams and likely tokens first."""
    best = NEVER
    for k in range(count):
        slot = slots.beams[side, k]
        best = max(best, slot.total + slot.lm + slot.most)
    n_first, n_tokens = min(N_FIRST, settings.n_tokens), 0
    for is_second in range(2):
        limit = candidates.head[0].limit
        least = limit - best if limit > NEVER else NEVER
        if is_second:
            if n_tokens < n_first or n_first == settings.n_tokens:
                return
            most = settings.n_tokens - n_first
            n_tokens = others(frame, least, settings.blank, most, n_first, scratch.tokens)
        else:
            n_tokens = likeliest(frame, least, settings.blank, n_first, scratch.tokens)
        is_first = not is_second
        _extend_all(slots, side, count, n_tokens, is_first, settings, scorer, candidates, scratch)


@inner
def _extend_all(
    slots: Slots,
    side: int,
    count: int,
    n_tokens: int,
    are_in_order: bool,
    settings: SearchSettings,
    scorer: FlatScorer,
    candidates: Candidates,
    scratch: Scratch,
) -> None:
    """Offer the extensions of every beam by the first n_tokens of the scratch, which may be sorted."""
    for k in range(count):
        slot = slots.beams[side, k]
        before, most = slot.total + slot.lm, slot.most
        for i in range(n_tokens):
            log_prob, limit = scratch.tokens.log_probs[i], candidates.head[0].limit
            score = before + log_prob
            if score + most <= limit:
                if are_in_order:
                    break
                continue
            token = scratch.tokens.ids[i]
            if token == scorer.lexicon.separator or score + slot.most_inside > limit:
                _extend_by(slots, side, k, token, log_prob, settings, scorer, candidates, scratch.after)


@inner
def _extend_by(
    slots: Slots,
    side: int,
    beam: int,
    token: int,
    log_prob: np.float32,
    settings: SearchSettings,
    scorer: FlatScorer,
    candidates: Candidates,
    after: Ints,
) -> None:
    """Offer the arcs of a token after a beam, but those to prefixes that exist: they got their part."""
    slot, row = slots.beams[side, beam], side * settings.beam_size + beam
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
        score = before + score_arc(scorer, slots.states, row, token, target, mark, after)
        if score <= limit:
            continue
        symbol = token + mark * settings.n_labels
        if not _exists(slots, side, slot.child, symbol):
            offer(candidates, score, beam, token, arc, acoustic)


@inner
def _exists(slots: Slots, side: int, child: int, symbol: int) -> bool:
    """Tell whether one of the beams that are one symbol longer, from `child` on, ends in this symbol."""
    while child >= 0:
        other = slots.beams[side, child]
        if other.last == symbol:
            return True
        child = other.next
    return False


@inner
def _apply(
    slots: Slots,
    side: int,
    count: int,
    settings: SearchSettings,
    scorer: FlatScorer,
    candidates: Candidates,
    trees: Trees,
    after: Ints,
) -> int:
    """Make the candidates the beams of the other side; return their number."""
    tree, n_made = trees.prefixes, 0
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
            for n in range(len(after)):
                slots.states[new, n] = slots.states[row, n]
        else:
            _append(slot, slots.states, row, new, chosen, settings, scorer, trees, after)
        if settings.max_homophones > 0 and _is_pruned(slots, 1 - side, n_made, settings):
            continue
        tree.nodes[slot.node].slot = n_made
        n_made += 1
    return n_made


@inner
def _append(
    slot: Record,
    states: Ints,
    row: int,
    new: int,
    chosen: Record,
    settings: SearchSettings,
    scorer: FlatScorer,
    trees: Trees,
    after: Ints,
) -> None:
    """Extend a beam with states[row] by a candidate's symbol; write its states to states[new]."""
    lexicon, token = scorer.lexicon, chosen.token
    node = states[row, 0] if lexicon.n_homophones > 0 else 0
    target, mark = arc_of(lexicon, node, child_of(lexicon, node, token), token, chosen.arc)
    gained = score_arc(scorer, states, row, token, target, mark, after)
    for n in range(len(after)):
        states[new, n] = after[n]
    slot.blank = NEVER
    slot.token = chosen.acoustic
    slot.total = chosen.acoustic
    slot.most_inside, slot.most = arc_bounds(scorer, states, new)
    slot.lm += gained
    slot.length += 1
    slot.last = chosen.token + mark * settings.n_labels
    slot.last_token = chosen.token
    slot.arc = chosen.arc
    slot.node = add_child(trees.prefixes, slot.node, slot.last)
    if settings.max_homophones > 0:
        slot.spelling = add_child(trees.spellings, slot.spelling, token)


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
