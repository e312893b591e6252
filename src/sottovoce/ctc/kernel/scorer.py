"""Compiled: language model and lexicon scores of tokens and endings, and word sequences of given labels.

Arcs, their order, marks and scores are those of `PrefixScorer.arcs`; endings those of
`PrefixScorer.endings`; see `lm.base.FlatScorer`.
"""

from __future__ import annotations

import numpy as np

from sottovoce.ctc.kernel.beams import NEVER, call, float_of_bits
from sottovoce.jit import compiled, inner
from sottovoce.lm.base import END, FlatLexicon, FlatModels, FlatScorer, Floats, Ints, Records

_ROOT = 0
_UNKNOWN_NODE = 1
_FREE = 0


@inner
def find(arcs: Records, low: int, end: int, token: int) -> int:
    """Return the index of a token's arc in arcs (n,), of which [low, end) are sorted by token; -1: none."""
    high = end
    while low < high:
        middle = (low + high) >> 1
        if arcs[middle].token < token:
            low = middle + 1
        else:
            high = middle
    return low if low < end and arcs[low].token == token else -1


@inner
def follow(models: FlatModels, model: int, node: int, token: int) -> tuple[np.float32, int]:
    """Return the weighted score of a token after a node of a model, and the node after it."""
    roots = models.roots
    if not roots[model, token].is_begun:
        return follow_arc(models, model, node, token)
    gained, between = follow_arc(models, model, node, roots.shape[1] - 1)
    more, target = follow_arc(models, model, between, token)
    return gained + more, target


@inner
def place_of(key: np.int64, size: int) -> int:
    """Hash a key to the first index to probe in a table of `size`, a power of two."""
    mixed = key * -7046029254386353131
    return int((mixed ^ (mixed >> 29)) & (size - 1))


@inner
def callback_score(models: FlatModels, model: int, state: int, token_id: int) -> tuple[np.float32, int]:
    """Return unweighted score and next state of an id, from the cache of a `CallbackLm` or a call."""
    which = models.models[model]
    key = (np.int64(state + 1) << 32) | np.int64(token_id + 1)
    first, size = which.cache_first, which.cache_size
    place = place_of(key, size)
    while models.cache[first + place].key != _FREE:
        entry = models.cache[first + place]
        if entry.key == key:
            return entry.score, int(entry.target)
        place = (place + 1) & (size - 1)
    answer: int = call(which.address, state, token_id, place)  # type: ignore[call-arg]  # numba adds the first
    return float_of_bits(answer >> 32), answer & 0xFFFFFFFF


@inner
def follow_arc(models: FlatModels, model: int, node: int, token: int) -> tuple[np.float32, int]:
    """Return the same as `follow`, without the silent word boundary."""
    base, factor = models.models[model].base, models.models[model].weight
    last = models.roots[model, token]
    if models.models[model].address != 0:
        score, target = callback_score(models, model, node, last.id)
        return weighted(score, factor), target
    score = np.float32(0.0)
    while node != _ROOT:
        at = base + node
        place = find(models.arcs, models.nodes[at].first, models.nodes[at + 1].first, last.id)
        if place >= 0:
            return weighted(score + models.arcs[place].weight, factor), models.arcs[place].target
        score += models.nodes[at].backoff
        node = models.nodes[at].parent
    return weighted(score + last.weight, factor), last.target


@inner
def weighted(score: np.float32, factor: np.float32) -> np.float32:
    """Multiply a score by a weight; -inf stays -inf, also times 0."""
    return score if score == NEVER else score * factor


@inner
def score_tokens(
    scorer: FlatScorer, begin: int, states: Ints, row: int, token: int, after: Ints
) -> np.float32:
    """Sum the scores of the models over tokens after states[row, begin:]; write next states to after (s,)."""
    score = np.float32(0.0)
    for model in range(len(scorer.tokens.models)):
        gained, target = follow(scorer.tokens, model, states[row, begin + model], token)
        after[begin + model] = target
        score += gained
    return score


@inner
def score_word(scorer: FlatScorer, states: Ints, row: int, mark: int, after: Ints) -> np.float32:
    """Score the word of a mark after states[row] (s,); write the word models' states to after (s,).

    Marks beyond the words score 0.
    """
    n_models = len(scorer.words.models)
    for model in range(n_models):
        after[1 + model] = states[row, 1 + model]
    if mark == 0 or mark > len(scorer.lexicon.word_scores):
        return np.float32(0.0)
    score: np.float32 = scorer.lexicon.word_scores[mark - 1]
    for model in range(n_models):
        gained, target = follow(scorer.words, model, states[row, 1 + model], mark - 1)
        after[1 + model] = target
        score += gained
    return score


@inner
def child_of(lexicon: FlatLexicon, node: int, token: int) -> int:
    """Return the node of a prefix of a word extended by a token, or -1."""
    if lexicon.n_homophones == 0 or token == lexicon.separator:
        return -1
    place = find(lexicon.children, lexicon.nodes[node].first, lexicon.nodes[node + 1].first, token)
    return int(lexicon.children[place].target) if place >= 0 else -1


@inner
def separated_arc(lexicon: FlatLexicon, node: int, child: int, token: int, arc: int) -> tuple[int, int]:
    """Return the node after an arc and its mark, with a separator; node -1: no such arc."""
    if token != lexicon.separator:
        if arc == 0 and child < 0 and lexicon.unknown >= 0:
            return _UNKNOWN_NODE, 0
        return (child if arc == 0 else -1), 0
    if node == _ROOT:  # there is nothing to end
        return -1, 0
    if arc < lexicon.nodes[node].n_words:
        return _ROOT, lexicon.words[lexicon.nodes[node].first_word + arc] + 1
    if arc == 0 and lexicon.unknown >= 0:
        return _ROOT, lexicon.unknown + 1
    return -1, 0


@inner
def open_arc(lexicon: FlatLexicon, node: int, child: int, token: int, arc: int) -> tuple[int, int]:
    """Return the node after an arc and its mark, without a separator.

    Arcs go inside a word, to its ends, inside an unknown word, and to its end.
    """
    n_homophones, nodes = lexicon.n_homophones, lexicon.nodes
    if arc > n_homophones:
        if node > _UNKNOWN_NODE or not (lexicon.may_go_on if node else lexicon.may_begin)[token]:
            return -1, 0
        if arc == n_homophones + 1:
            return _UNKNOWN_NODE, lexicon.unknown + 2
        return _ROOT, lexicon.unknown + 1
    if child < 0:
        return -1, 0
    if arc == 0:
        return (child if nodes[child].first < nodes[child + 1].first else -1), 0
    if arc > nodes[child].n_words:
        return -1, 0
    return _ROOT, lexicon.words[nodes[child].first_word + arc - 1] + 1


@inner
def arc_of(lexicon: FlatLexicon, node: int, child: int, token: int, arc: int) -> tuple[int, int]:
    """Return the node after an arc and its mark; node -1: no such arc. child: see `child_of`."""
    if lexicon.n_homophones == 0:
        return _ROOT, 0
    if lexicon.separator >= 0:
        return separated_arc(lexicon, node, child, token, arc)
    return open_arc(lexicon, node, child, token, arc)


@inner
def most_of_arc(scorer: FlatScorer, node: int, target: int, mark: int) -> np.float32:
    """Return an upper bound of the score of an arc after any words."""
    lexicon = scorer.lexicon
    bound: np.float32 = np.float32(scorer.bound + 1e-3)  # sums are rounded
    if lexicon.n_homophones == 0:
        return bound
    bound += lexicon.nodes[target].ahead - lexicon.nodes[node].ahead
    if 0 < mark <= len(lexicon.word_scores):
        bound += scorer.words.bounds[mark - 1] + lexicon.word_scores[mark - 1]
    return bound


@inner
def score_arc(
    scorer: FlatScorer, states: Ints, row: int, token: int, target: int, mark: int, after: Ints
) -> np.float32:
    """Score an arc of states[row] (s,), given by `arc_of`; write the states after it to after (s,)."""
    lexicon = scorer.lexicon
    if lexicon.n_homophones == 0:
        return score_tokens(scorer, 0, states, row, token, after)
    after[0] = target
    gained = lexicon.nodes[target].ahead - lexicon.nodes[states[row, 0]].ahead
    score: np.float32 = score_word(scorer, states, row, mark, after) + gained
    return score + score_tokens(scorer, 1 + len(scorer.words.models), states, row, token, after)


@inner
def arc_bounds(scorer: FlatScorer, states: Ints, row: int) -> tuple[np.float32, np.float32]:
    """Return upper bounds of the scores after states[row] (s,): of tokens but the separator, and of any."""
    lexicon = scorer.lexicon
    bound = np.float32(scorer.bound + 1e-3)  # sums are rounded
    if lexicon.n_homophones == 0:
        return bound, bound
    inside, ending = lexicon.nodes[states[row, 0]].inside, lexicon.nodes[states[row, 0]].ending
    highest = max(inside, ending)
    return bound + (inside if lexicon.separator >= 0 else highest), bound + highest


@compiled
def end_rows(states: Ints, scorer: FlatScorer) -> tuple[Floats, Ints]:
    """Score the endings of states (N, s): scores (N, E) and marks (N, E); see `lm.base.Endings`."""
    lexicon, begin = scorer.lexicon, 0
    n_ways = lexicon.n_homophones if lexicon.separator >= 0 else 1
    scores, marks = np.empty((len(states), n_ways), np.float32), np.zeros((len(states), n_ways), np.int64)
    after = np.empty(1 + len(scorer.words.models), np.int64)
    for row in range(len(states)):
        gained = np.float32(0.0)
        if lexicon.n_homophones > 0:
            gained, begin = -lexicon.nodes[states[row, 0]].ahead, 1 + len(scorer.words.models)
        gained += _sum_of_ends(scorer.tokens, states[row, begin:])
        for way in range(n_ways):
            mark = _mark_of(lexicon, states[row, 0], way) if lexicon.n_homophones > 0 else 0
            scores[row, way] = NEVER
            if mark < 0:
                continue
            marks[row, way], scores[row, way] = mark, gained
            if lexicon.n_homophones > 0:
                scores[row, way] += score_word(scorer, states, row, mark, after)
                scores[row, way] += _sum_of_ends(scorer.words, after[1:])
    return scores, marks


@inner
def _mark_of(lexicon: FlatLexicon, node: int, way: int) -> int:
    """Return the mark of the word that an ending at a node completes; -1: no such ending."""
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
            total += weighted(callback_score(models, model, nodes[model], END)[0], which.weight)
        else:
            total += models.ends[which.base + nodes[model]]
    return total


@compiled
def expand_rows(
    tokens: Ints, lengths: Ints, first: Ints, scorer: FlatScorer, most: int, n_labels: int
) -> tuple[Floats, Ints, Ints]:
    """Find the word sequences of tokens (S, L), of which lengths (S,) count, at most `most` of each.

    Returns scores (S, most), best first, -inf for missing ones; symbols (S, most, L); and the marks (S,
    most) of the words that the ends complete.

    first: (s,) start state of the scorer.
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
        order = _best_of(candidate[:n_found], most)
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
def _best_of(candidates: Floats, most: int) -> Ints:
    """Return the indices of the `most` best candidates (n,); in their order if all stay."""
    if len(candidates) <= most:
        return np.arange(len(candidates))
    return np.argsort(-candidates, kind="mergesort")[:most]
