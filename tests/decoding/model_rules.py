"""Language models and lexicon, in tensors and compiled: comparisons that `test_ctc_rules.py` walks."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from sottovoce.lm.automata import BackoffTable, flat_models
from sottovoce.lm.base import END, FlatModels
from sottovoce.lm.boosting import Edges, Phrase, PhraseBooster, WholeWordBooster
from sottovoce.lm.fusion import ShallowFusion, weighted_scores
from sottovoce.lm.kenlm import KenlmModel
from sottovoce.lm.ngram import NgramModel
from tests.decoding.enumeration import RandomBigram
from tests.decoding.rule_parts import SEPARATOR, V, fusion, reached
from tests.decoding.test_ctc_engines import WORDS, random_arpa


def ngram(weight: float) -> tuple[BackoffTable, FlatModels]:
    """A trigram in tensors, and as arrays with a weight."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.arpa"
        path.write_text(random_arpa())
        model = NgramModel.from_arpa(path)
    flat = flat_models([(model, weight)], model.n_tokens)
    assert flat is not None
    return model._table, flat


def pairs(n_nodes: int, n_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every node with every token."""
    every = torch.cartesian_prod(torch.arange(n_nodes), torch.arange(n_tokens))
    return every[:, 0], every[:, 1]


def found_arcs() -> None:
    from sottovoce.decoding.ctc.kernel.scorer import find

    table, flat = ngram(1.0)
    nodes, tokens = pairs(len(table.parent), table.n_tokens)
    places, found = table.arcs.find(nodes, tokens)
    assert found.any()
    first = flat.nodes["first"]
    ours = [
        find(flat.arcs, first[node], first[node + 1], token)
        for node, token in zip(nodes.tolist(), tokens.tolist(), strict=True)
    ]
    assert ours == torch.where(found, places, -1).tolist()


def backed_off() -> None:
    from sottovoce.decoding.ctc.kernel.scorer import follow_arc

    table, flat = ngram(0.7)
    nodes, tokens = pairs(len(table.parent), table.n_tokens)
    weights, targets = table.follow(nodes, tokens)
    ours = [
        follow_arc(flat, 0, node, token) for node, token in zip(nodes.tolist(), tokens.tolist(), strict=True)
    ]
    assert [score for score, _ in ours] == pytest.approx((0.7 * weights).tolist(), abs=1e-4)
    assert [target for _, target in ours] == targets.tolist()


def silently() -> None:
    from sottovoce.decoding.ctc.kernel.scorer import follow

    before = torch.tensor([False, True, False, True, False, False])
    phrases = [Phrase((1, 2, 3, 4), 2.0), Phrase((1, 2), 0.5), Phrase((3, 3), 1.5)]
    booster = WholeWordBooster(phrases, Edges(before, torch.zeros_like(before)))
    flat = flat_models([(booster, 1.3)], len(before))
    assert flat is not None
    assert flat.roots["is_begun"].any()
    nodes, tokens = pairs(booster._inside.n_nodes, len(before))
    scores, targets = booster.score(nodes, tokens)
    ours = [follow(flat, 0, node, token) for node, token in zip(nodes.tolist(), tokens.tolist(), strict=True)]
    assert [score for score, _ in ours] == pytest.approx((1.3 * scores).tolist(), abs=1e-4)
    assert [target for _, target in ours] == targets.tolist()


def weights() -> None:
    from sottovoce.decoding.ctc.kernel.scorer import weighted

    scores = torch.randn(20, generator=torch.Generator().manual_seed(1))
    scores[::4] = -torch.inf
    for factor in (0.0, 0.7, -1.0):
        ours = [float(weighted(score, np.float32(factor))) for score in scores.numpy()]
        assert ours == pytest.approx(weighted_scores(scores, factor).tolist())


def label_models() -> None:
    from sottovoce.decoding.ctc.kernel.scorer import score_tokens

    booster = PhraseBooster([Phrase((1, 2, 3), 2.0), Phrase((2, 2), 1.0)], V)
    models = ShallowFusion([RandomBigram(V, 3), booster], [0.4, 1.0])
    flat, generator = models.flat(), torch.Generator().manual_seed(1)
    assert flat is not None
    states, after = models.start(30), np.zeros(2, np.int64)
    for _ in range(5):
        tokens = torch.randint(V, (30,), generator=generator)
        scores, moved = models.score(states, tokens)
        for row, token in enumerate(tokens.tolist()):
            said = score_tokens(flat, 0, states.numpy(), row, token, after)
            assert said == pytest.approx(float(scores[row]), abs=1e-4)
            assert after.tolist() == moved[row].tolist()
        states = moved


def ended_words() -> None:
    from sottovoce.decoding.ctc.kernel.scorer import score_word

    scorer = fusion(SEPARATOR, unknown=True)
    flat, states = scorer.flat(), reached(scorer)
    assert flat is not None
    after, n_words = np.zeros(states.shape[1], np.int64), len(scorer.words)
    for word in range(n_words):
        words = torch.full((len(states),), word)
        scores, moved = scorer._score_words(states[:, 1:2], words)
        for row in range(len(states)):
            said = score_word(flat, states.numpy(), row, word + 1, after)
            assert said == pytest.approx(float(scores[row]), abs=1e-4)
            assert after[1] == moved[row, 0]
    for mark in (0, n_words + 1):
        assert score_word(flat, states.numpy(), 3, mark, after) == 0
        assert after[1] == states[3, 1]


def answers() -> None:
    pytest.importorskip("kenlm", reason="KenLM's package is not installed")
    from sottovoce.decoding.ctc.kernel.scorer import callback_score

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.arpa"
        path.write_text(random_arpa())
        model = KenlmModel(path)
    words = torch.tensor(model.ids([*WORDS, "other"]))
    flat, states = flat_models([(model, 0.7)], len(words)), model.start(len(words))
    assert flat is not None
    for step in range(4):
        scores, after = model.score(states, words.roll(step))
        ends = model.finish(states)
        for _ in ("of the model", "of the table"):
            for row, (state, word) in enumerate(zip(states.tolist(), words.roll(step).tolist(), strict=True)):
                said, target = callback_score(flat, 0, state, word)
                assert said == pytest.approx(float(scores[row]), abs=1e-4)
                assert target == int(after[row])
                assert callback_score(flat, 0, state, END)[0] == pytest.approx(float(ends[row]), abs=1e-4)
        states = after
    assert model.n_cached > 10


def lexicon_arcs() -> None:
    from sottovoce.decoding.ctc.kernel.scorer import arc_of, child_of

    for separator, unknown in ((SEPARATOR, False), (SEPARATOR, True), (None, False), (None, True)):
        scorer = fusion(separator, unknown=unknown)
        flat, lexicon = scorer.flat(), scorer._lexicon
        assert flat is not None
        nodes = torch.arange(lexicon.n_nodes)
        truth = lexicon.arcs(nodes, torch.arange(V).expand(len(nodes), -1))
        for node, token, arc in np.ndindex(*truth.exists.shape):
            target, mark = arc_of(flat.lexicon, node, child_of(flat.lexicon, node, token), token, arc)
            assert (target >= 0) == bool(truth.exists[node, token, arc])
            if target >= 0:
                assert target == int(truth.nodes[node, token, arc])
                assert mark == int(truth.marks[node, token, arc])
