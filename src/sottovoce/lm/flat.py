"""Language models and lexicons as arrays, for searches that are compiled; see `lm.base.FlatScorer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sottovoce.lm.base import (
    ARC,
    CACHE_ENTRY,
    MODEL,
    NODE,
    ROOT_ARC,
    Automaton,
    AutomatonModel,
    Bools,
    FlatLexicon,
    FlatModels,
    FlatScorer,
    Floats,
    Ints,
    LanguageModel,
    Records,
    silent_scorer,
)
from sottovoce.lm.table import BackoffTable

Weighted = tuple[LanguageModel[Tensor], float]


def automaton_of(table: BackoffTable, ends: Tensor) -> Automaton:
    """Convert a back-off table to an automaton over its own ids; ends: (n_nodes,) scores of ending there."""
    return Automaton(
        first=_ints(table.first),
        tokens=(table.arcs.keys % table.n_tokens).to("cpu", torch.int32).numpy(),
        weights=_floats(table.weights),
        targets=_ints(table.targets),
        backoff=_floats(table.backoff),
        parent=_ints(table.parent),
        root_weights=_floats(table.root_weights),
        root_targets=_ints(table.root_targets),
        ids=np.arange(table.n_tokens),
        ends=_floats(ends),
    )


def flat_models(models: Sequence[Weighted], n_tokens: int) -> FlatModels | None:
    """Convert weighted models to one set of arrays; None where one of them has no automaton."""
    if not models:
        return silent_scorer(n_tokens).tokens
    found: list[Automaton] = []
    for model, weight in models:
        automaton = model.automaton() if isinstance(model, AutomatonModel) else None
        if automaton is None or (automaton.callback is not None and weight < 0):
            return None  # no upper bound: low scores times a negative weight
        found.append(automaton)
    n_nodes = [len(each.parent) for each in found]
    weights = [weight for _, weight in models]
    return FlatModels(
        models=_models(found, n_nodes, weights),
        nodes=_nodes(found),
        arcs=_records(
            ARC,
            token=np.concatenate([each.tokens for each in found]),
            target=np.concatenate([each.targets for each in found]),
            weight=np.concatenate([each.weights for each in found]),
        ),
        roots=np.stack([_root(each) for each in found]),
        ends=np.concatenate([_ends(each, w) for each, w in zip(found, weights, strict=True)]),
        bounds=np.sum([_bounds(each, w) for each, w in zip(found, weights, strict=True)], axis=0),
        cache=_caches(found),
    )


def _models(found: Sequence[Automaton], n_nodes: Sequence[int], weights: Sequence[float]) -> Records:
    sizes = [0 if each.callback is None else len(each.callback.cache) for each in found]
    return _records(
        MODEL,
        base=_before(n_nodes),
        weight=np.array(weights, np.float32),
        address=np.array([0 if each.callback is None else each.callback.address for each in found], np.int64),
        cache_first=_before(sizes),
        cache_size=np.array(sizes, np.int64),
    )


def _caches(found: Sequence[Automaton]) -> Records:
    """Concatenate the caches of callbacks; a single one shares its memory, since it is written to."""
    tables = [each.callback.cache for each in found if each.callback is not None]
    if len(tables) == 1:
        return tables[0]
    return np.concatenate(tables) if tables else np.zeros(0, CACHE_ENTRY)


def _nodes(found: Sequence[Automaton]) -> Records:
    """Concatenate the nodes of automata, and one more that marks the end of the arcs."""
    before = _before([len(each.tokens) for each in found])
    first = [each.first[:-1] + arcs for each, arcs in zip(found, before, strict=True)]
    end = np.array([sum(len(each.tokens) for each in found)])
    return _records(
        NODE,
        first=np.concatenate((*first, end)),
        parent=np.concatenate((*(each.parent for each in found), [0])),
        backoff=np.concatenate((*(each.backoff for each in found), np.zeros(1, np.float32))),
    )


def _root(automaton: Automaton) -> Records:
    """The root's arcs of all tokens, and that of the word boundary."""
    ids = np.append(automaton.ids, 0 if automaton.silent is None else automaton.silent)
    weights, targets = automaton.root_weights[ids], automaton.root_targets[ids]
    is_begun = np.append(_begins(automaton), False)
    return _records(ROOT_ARC, id=ids, target=targets, weight=weights, is_begun=is_begun)


def _begins(automaton: Automaton) -> Bools:
    """bool (n_tokens,): tokens before which the word boundary is scored implicitly."""
    return np.zeros(len(automaton.ids), np.bool_) if automaton.begins is None else automaton.begins


def _ends(automaton: Automaton, factor: float) -> Floats:
    """Weighted scores of ending; -inf stays -inf, also times 0."""
    allowed = np.isfinite(automaton.ends)
    found: Floats = np.full_like(automaton.ends, -np.inf)
    found[allowed] = automaton.ends[allowed] * np.float32(factor)
    return found


def _records(kind: np.dtype[np.void], **fields: np.ndarray[Any, Any]) -> Records:
    made = np.empty(len(next(iter(fields.values()))), kind)
    for name, values in fields.items():
        made[name] = values
    return made


def token_scorer(models: FlatModels, n_tokens: int) -> FlatScorer:
    """Make a scorer of models over tokens alone."""
    return silent_scorer(n_tokens)._replace(tokens=models, bound=_bound(models))


def word_scorer(lexicon: FlatLexicon, words: FlatModels, tokens: FlatModels, n_arcs: int) -> FlatScorer:
    """Make a scorer of a lexicon, models over its words, and models over tokens."""
    _bound_endings(lexicon, words.bounds + lexicon.word_scores)
    return FlatScorer(n_arcs, lexicon, words, tokens, _bound(tokens))


def _bound(models: FlatModels) -> float:
    return float(models.bounds.max(initial=float("-inf")))


def _bound_endings(lexicon: FlatLexicon, bounds: Floats) -> None:
    """Write to each node the upper bound of the score of ending a word there; bounds: (n_words,)."""
    nodes = lexicon.nodes[:-1]
    best = np.full(len(nodes), -np.inf, np.float32)
    np.maximum.at(best, np.repeat(np.arange(len(nodes)), nodes["n_words"]), bounds[lexicon.words])
    if lexicon.separator >= 0:
        best[0] = 0.0
    else:  # a word ends with the step to the node that spells it
        parents = np.repeat(np.arange(len(nodes)), np.diff(lexicon.nodes["first"]))
        above = np.full(len(nodes), -np.inf, np.float32)
        np.maximum.at(above, parents, best[lexicon.children["target"]])
        best = above
    if lexicon.unknown >= 0:
        best = np.maximum(best, bounds[lexicon.unknown])
    nodes["ending"] = best - nodes["ahead"]


def _bounds(automaton: Automaton, factor: float) -> Floats:
    """The highest weighted score (n_tokens,) of each token in any state."""
    sign = np.float32(1.0 if factor >= 0 else -1.0)
    best = automaton.root_weights * sign
    np.maximum.at(best, automaton.tokens, automaton.weights * sign)
    backoff, parent = automaton.backoff * sign, automaton.parent
    paid = np.zeros(len(parent), np.float32)  # upper bound of the score of backing off from a node
    while True:
        more = np.maximum(backoff + paid[parent], 0).astype(np.float32)
        more[0] = 0
        if np.array_equal(more, paid):
            break
        paid = more
    best += paid.max(initial=0.0)
    bounds = best[automaton.ids]
    if automaton.silent is not None:
        bounds = bounds + np.where(_begins(automaton), best[automaton.silent], 0.0)
    found: Floats = (np.where(np.isfinite(bounds), bounds, 0.0) * abs(factor)).astype(np.float32)
    return found


def _before(counts: Sequence[int]) -> Ints:
    return np.cumsum([0, *counts], dtype=np.int64)[:-1]


def _ints(values: Tensor) -> Ints:
    found: Ints = values.to("cpu", torch.int64).contiguous().numpy()
    return found


def _floats(values: Tensor) -> Floats:
    found: Floats = values.to("cpu", torch.float32).contiguous().numpy()
    return found
