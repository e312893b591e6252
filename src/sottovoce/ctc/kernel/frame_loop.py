"""Compiled: the frame loop of the CTC prefix search, and other passes over the emissions.

The same search as `search.PrefixSearch`. Prefixes are nodes of a tree, so that a pruned prefix that
is found again is the same node. Upper bounds on the scores of beams and tokens skip candidates that cannot
enter the beam.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from sottovoce.ctc.kernel.beams import (
    NEVER,
    SLOT,
    Beams,
    Slots,
    Trees,
    add_child,
    load,
    log_add,
    new_tree,
    store,
)
from sottovoce.ctc.kernel.candidates import (
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
from sottovoce.ctc.kernel.scorer import arc_bounds, arc_of, child_of, most_of_arc, score_arc
from sottovoce.jit import compiled, inner
from sottovoce.lm.base import FlatScorer, Floats, Ints, Record


class SearchSettings(NamedTuple):
    """Settings of a search.

    initial_symbol: precedes every prefix. n_tokens: tokens of a frame that extend beams. max_homophones:
    homophones kept per group; 0: all. threshold: `CtcOptions.beam_threshold`, or inf.
    """

    blank: int
    initial_symbol: int
    n_labels: int
    beam_size: int
    n_tokens: int
    max_homophones: int
    threshold: float


class Workspace(NamedTuple):
    """Scratch memory. tokens: (V,) of a frame to extend by. after: (s,) states."""

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
    """Offer every extension that may be among the best, good beams and likely tokens first."""
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
    """Offer the arcs of a token after a beam, except to existing prefixes, which got their part."""
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
    """Return whether a new beam is behind `max_homophones` others with the same labels and states."""
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
    # Pruned homophones are found again with every frame: they only count in a new group.
    if best.is_new and slot.is_new:
        best.merged = log_add(best.score + best.merged, slot.score + slot.merged) - best.score
    return True


_LEAST_SUM, _MOST_SUM = math.exp(-0.5), math.exp(0.5)
_MOST = 1e-2


@compiled
def are_plausible(log_probs: Floats, lengths: Ints) -> bool:
    """Return whether every frame of log_probs (B, T, V) within lengths (B,) sums to about 1.

    False for positive values, NaN, and in doubt: `emissions.checked` then checks every value.
    """
    for row in range(len(lengths)):
        for t in range(lengths[row]):
            total = sum_of_exp(log_probs[row, t])
            if not _LEAST_SUM < total < _MOST_SUM:
                return False
    return True


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def sum_of_exp(values: Floats) -> np.float32:
    """Approximate the sum of exp(values), values (V,), as (1 + x / 256) ** 256: a few percent low.

    Huge for a positive value.
    """
    total = np.float32(0.0)
    for i in range(len(values)):
        value = values[i]
        power = np.float32(1.0) + value * np.float32(1 / 256)
        power = np.float32(0.0) if power < np.float32(0.0) else power  # NaN stays
        power *= power
        power *= power
        power *= power
        power *= power
        power *= power
        power *= power
        power *= power
        power *= power
        total += power + (np.float32(100.0) if value > np.float32(_MOST) else np.float32(0.0))
    return total


_BAND = 300.0
"""Nats behind the best at which a state is dropped, unless the end becomes unreachable."""


@compiled
def align_rows(
    log_probs: Floats, lengths: Ints, tokens: Ints, n_tokens: Ints, rows: Ints, blanks: Ints
) -> tuple[Ints, Ints, Floats, Floats]:
    """Align tokens (N, L), n_tokens (N,) of each, to utterances rows (N,) of log_probs (B, T, V).

    Returns first frame, last frame and peak (N, L) of every token, and the score (N,) of the path.

    blanks: labels (N, L + 1) of the blanks around tokens.
    """
    first, last = np.zeros_like(tokens), np.zeros_like(tokens)
    peak = np.zeros(tokens.shape, np.float32)
    score = np.empty(len(tokens), np.float32)
    n_states = 2 * tokens.shape[1] + 1
    steps = np.empty((log_probs.shape[1], n_states), np.uint8)
    path = np.empty(n_states, np.float32)
    for i in range(len(tokens)):
        frames = log_probs[rows[i], : lengths[rows[i]]]
        labels = tokens[i, : n_tokens[i]]
        _best_path(frames, labels, blanks[i], path, steps, _BAND)
        place = 2 * len(labels)
        if path[place] == NEVER and (place == 0 or path[place - 1] == NEVER):
            _best_path(frames, labels, blanks[i], path, steps, np.inf)
        if place and path[place - 1] > path[place]:
            place -= 1
        score[i] = path[place]
        if score[i] > NEVER:  # without a path there are no steps
            _trace(frames, labels, place, steps, first[i], last[i], peak[i])
    return first, last, peak, score


@compiled
def _best_path(
    frames: Floats,
    labels: Ints,
    blanks: Ints,
    path: Floats,
    steps: np.ndarray,  # type: ignore[type-arg]
    band: float,
) -> None:
    """Find the best path to every state: scores path (S,) after the last frame, and steps (T, S).

    frames: (T, V). labels: (L,). blanks: (L + 1,), their labels. band: nats behind the best of a frame at
    which states are dropped.
    """
    n_states, low, high = 2 * len(labels) + 1, 0, 0
    path[:n_states] = NEVER
    path[0] = 0.0
    for t in range(len(frames)):
        high = min(n_states - 1, high + 2)  # a path advances at most two states a frame
        top = NEVER
        for state in range(high, low - 1, -1):
            best, step = path[state], 0
            if state > 0 and path[state - 1] > best:
                best, step = path[state - 1], 1
            odd = state & 1
            if (
                odd
                and state > 1
                and labels[state >> 1] != labels[(state >> 1) - 1]
                and path[state - 2] > best
            ):
                best, step = path[state - 2], 2
            steps[t, state] = step
            path[state] = best + frames[t, labels[state >> 1] if odd else blanks[state >> 1]]
            top = max(top, path[state])
        least = top - np.float32(band)
        while low < high and path[low] < least:
            path[low] = NEVER
            low += 1
        while high > low and path[high] < least:
            path[high] = NEVER
            high -= 1


@compiled
def _trace(
    frames: Floats,
    labels: Ints,
    place: int,
    steps: np.ndarray,  # type: ignore[type-arg]
    first: Ints,
    last: Ints,
    peak: Floats,
) -> None:
    newest = -1
    for t in range(len(frames) - 1, -1, -1):
        if place & 1:
            token = place >> 1
            now = max(frames[t, labels[token]], np.float32(-1e30))
            if token != newest:
                newest, last[token], peak[token] = token, t, now
            first[token] = t
            peak[token] = max(peak[token], now)
        place -= steps[t, place]


@compiled
def common_cut_frames(
    frames: Floats, tokens: Ints, n_tokens: Ints, n_shared: int, blanks: Ints, margin: float, is_late: bool
) -> tuple[int, int]:
    """Return the cut of `align.common_cut`: the number of frames and of tokens before it.

    frames: (T, V). tokens: (N, L). n_tokens: (N,). blanks: (N, L + 1). margin: see `align.CUT_MARGIN`.
    """
    n_rows, n_frames, n_states = len(tokens), len(frames), 2 * tokens.shape[1] + 1
    steps = np.empty((n_rows, n_frames, n_states), np.uint8)
    path = np.empty(n_states, np.float32)
    rows, places, n_places = np.empty(n_rows * n_states, np.int64), np.empty(n_rows * n_states, np.int64), 0
    for i in range(n_rows):
        n_reached = 2 * n_tokens[i] + 1
        first = max(2 * n_tokens[i] - 1, 0) if is_late else 0
        _best_path(frames, tokens[i, : n_tokens[i]], blanks[i], path, steps[i], 1.5 * margin)
        if path[first:n_reached].max() == NEVER:
            _best_path(frames, tokens[i, : n_tokens[i]], blanks[i], path, steps[i], np.inf)
        least = path[first:n_reached].max() - np.float32(margin)
        for state in range(first, n_reached):
            if path[state] > least:
                rows[n_places], places[n_places] = i, state
                n_places += 1
    if n_places == 0:
        return 0, 0
    for t in range(n_frames, 0, -1):
        at, is_one = places[0], True
        for p in range(n_places):
            is_one = is_one and places[p] == at
        if is_one and at & 1 == 0 and at >> 1 <= n_shared:
            return t, at >> 1
        for p in range(n_places):
            places[p] -= steps[rows[p], t - 1, places[p]]
    return 0, 0
