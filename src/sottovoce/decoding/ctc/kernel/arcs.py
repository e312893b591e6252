"""Compiled: what language models and lexicon say about one token of one beam; see `lm.base.FlatScorer`.

The arcs, their order, marks and scores are those of `PrefixScorer.arcs`.
"""

from __future__ import annotations

import numpy as np

from sottovoce.decoding.ctc.kernel.calls import call, float_of_bits
from sottovoce.decoding.ctc.kernel.slots import NEVER
from sottovoce.jit import inner
from sottovoce.lm.base import FlatLexicon, FlatModels, FlatScorer, Ints, Records

_ROOT = 0
_UNKNOWN_NODE = 1
_FREE = 0


@inner
def find(arcs: Records, low: int, end: int, token: int) -> int:
    """The place of a token's arc among those from `low` to `end`, or -1."""
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
    """The weighted score of a token after a node of a model, and the node after it."""
    roots = models.roots
    if not roots[model, token].is_begun:
        return follow_arc(models, model, node, token)
    said, between = follow_arc(models, model, node, roots.shape[1] - 1)
    more, target = follow_arc(models, model, between, token)
    return said + more, target


@inner
def place_of(key: np.int64, size: int) -> int:
    """Where a table of `size`, a power of two, has a key: here, or after it."""
    mixed = key * -7046029254386353131
    return int((mixed ^ (mixed >> 29)) & (size - 1))


@inner
def asked(models: FlatModels, model: int, state: int, token_id: int) -> tuple[np.float32, int]:
    """What a model that is asked says of an id after a state: unweighted score, and the state after."""
    which = models.models[model]
    key = (np.int64(state + 1) << 32) | np.int64(token_id + 1)
    first, size = which.found_first, which.found_size
    place = place_of(key, size)
    while models.found[first + place].key != _FREE:
        entry = models.found[first + place]
        if entry.key == key:
            return entry.score, int(entry.target)
        place = (place + 1) & (size - 1)
    answer: int = call(which.address, state, token_id, place)  # type: ignore[call-arg]  # numba adds the first
    return float_of_bits(answer >> 32), answer & 0xFFFFFFFF


@inner
def follow_arc(models: FlatModels, model: int, node: int, token: int) -> tuple[np.float32, int]:
    """As `follow`, of the token alone."""
    base, factor = models.models[model].base, models.models[model].weight
    last = models.roots[model, token]
    if models.models[model].address != 0:
        found, target = asked(models, model, node, last.id)
        return weighted(found, factor), target
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
    """-inf stays -inf, also times 0."""
    return score if score == NEVER else score * factor


@inner
def score_tokens(
    scorer: FlatScorer, begin: int, states: Ints, row: int, token: int, after: Ints
) -> np.float32:
    """What the models over tokens add; their states stand from `begin` on."""
    score = np.float32(0.0)
    for model in range(len(scorer.tokens.models)):
        said, target = follow(scorer.tokens, model, states[row, begin + model], token)
        after[begin + model] = target
        score += said
    return score


@inner
def score_word(scorer: FlatScorer, states: Ints, row: int, mark: int, after: Ints) -> np.float32:
    """What the word of a mark adds; marks beyond the words add nothing."""
    n_models = len(scorer.words.models)
    for model in range(n_models):
        after[1 + model] = states[row, 1 + model]
    if mark == 0 or mark > len(scorer.lexicon.word_scores):
        return np.float32(0.0)
    score: np.float32 = scorer.lexicon.word_scores[mark - 1]
    for model in range(n_models):
        said, target = follow(scorer.words, model, states[row, 1 + model], mark - 1)
        after[1 + model] = target
        score += said
    return score


@inner
def child_of(lexicon: FlatLexicon, node: int, token: int) -> int:
    """The node of a word's beginning and one token more, or -1."""
    if lexicon.n_homophones == 0 or token == lexicon.separator:
        return -1
    place = find(lexicon.children, lexicon.nodes[node].first, lexicon.nodes[node + 1].first, token)
    return int(lexicon.children[place].target) if place >= 0 else -1


@inner
def separated_arc(lexicon: FlatLexicon, node: int, child: int, token: int, arc: int) -> tuple[int, int]:
    """The node after an arc and its mark, where a separator ends words; node -1: there is no such arc."""
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
    """As `separated_arc`, where words may end at any token: on inside, word ends, inside unknown, its end."""
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
    """The node after an arc and its mark; node -1: there is no such arc. child: see `child_of`."""
    if lexicon.n_homophones == 0:
        return _ROOT, 0
    if lexicon.separator >= 0:
        return separated_arc(lexicon, node, child, token, arc)
    return open_arc(lexicon, node, child, token, arc)


@inner
def most_of_arc(scorer: FlatScorer, node: int, target: int, mark: int) -> np.float32:
    """The most that an arc can score, after whatever words."""
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
    """The score of an arc of states[row], given by `arc_of`. Writes the states after."""
    lexicon = scorer.lexicon
    if lexicon.n_homophones == 0:
        return score_tokens(scorer, 0, states, row, token, after)
    after[0] = target
    gained = lexicon.nodes[target].ahead - lexicon.nodes[states[row, 0]].ahead
    score: np.float32 = score_word(scorer, states, row, mark, after) + gained
    return score + score_tokens(scorer, 1 + len(scorer.words.models), states, row, token, after)


@inner
def arc_bounds(scorer: FlatScorer, states: Ints, row: int) -> tuple[np.float32, np.float32]:
    """The most that a token other than the separator can add after states[row], and that any token can."""
    lexicon = scorer.lexicon
    bound = np.float32(scorer.bound + 1e-3)  # sums are rounded
    if lexicon.n_homophones == 0:
        return bound, bound
    inside, ending = lexicon.nodes[states[row, 0]].inside, lexicon.nodes[states[row, 0]].ending
    highest = max(inside, ending)
    return bound + (inside if lexicon.separator >= 0 else highest), bound + highest
