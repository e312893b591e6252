"""Phrase boosting: every occurrence counts once, partial matches cost nothing in the end."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from sottovoce.errors import LanguageModelError
from sottovoce.lm.boosting import Phrase, PhraseBooster, read_phrases


def total(booster: PhraseBooster, tokens: list[int]) -> float:
    states, score = booster.start(1), 0.0
    for token in tokens:
        gain, states = booster.score(states, np.array([token]))
        score += float(gain[0])
    return score + float(booster.finish(states)[0])


def occurrences(phrases: list[Phrase], tokens: list[int]) -> float:
    return sum(
        phrase.weight * len(phrase.tokens)
        for phrase in phrases
        for at in range(len(tokens))
        if tuple(tokens[at : at + len(phrase.tokens)]) == phrase.tokens
    )


def random_phrases(n: int, n_tokens: int, seed: int) -> list[Phrase]:
    chooser = random.Random(seed)
    return [
        Phrase(
            tuple(chooser.randrange(n_tokens) for _ in range(chooser.randint(1, 5))), chooser.uniform(-1, 3)
        )
        for _ in range(n)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_equals_counting_occurrences(seed: int) -> None:
    phrases = random_phrases(12, 3, seed)
    chooser = random.Random(seed)
    tokens = [chooser.randrange(3) for _ in range(30)]
    assert total(PhraseBooster(phrases, 3), tokens) == pytest.approx(occurrences(phrases, tokens), abs=1e-3)


def test_a_prefix_is_rewarded_at_once_and_gives_it_back() -> None:
    booster = PhraseBooster([Phrase((1, 2, 3), 2.0)], 5)
    states = booster.start(1)
    gains = []
    for token in (1, 2, 4):
        gain, states = booster.score(states, np.array([token]))
        gains.append(float(gain[0]))
    assert gains == pytest.approx([2.0, 2.0, -4.0])
    assert total(booster, [1, 2]) == pytest.approx(0.0)


def test_short_and_long_phrases_get_the_same_push_at_every_step() -> None:
    booster = PhraseBooster([Phrase((1,), 1.5), Phrase((2, 3, 4, 2, 3), 1.5)], 5)
    states = booster.start(1)
    for token in (1, 2, 3, 4, 2, 3):
        gain, states = booster.score(states, np.array([token]))
        assert float(gain[0]) == pytest.approx(1.5)
    assert float(booster.finish(states)[0]) == pytest.approx(0.0)


def test_whole_words_only_where_there_is_a_boundary() -> None:
    booster = PhraseBooster([Phrase((1, 2), 2.5)], 4, boundary=0)
    assert total(booster, [1, 2]) == pytest.approx(5.0)
    assert total(booster, [3, 0, 1, 2, 0, 1, 2]) == pytest.approx(10.0)
    assert total(booster, [1, 2, 3]) == pytest.approx(0.0)
    assert total(booster, [3, 1, 2]) == pytest.approx(0.0)


@pytest.mark.parametrize("boundary", [None, 0])
def test_phrases_that_repeat_themselves_are_no_long_chains(boundary: int | None) -> None:
    """A search goes from node to node that is backed off to, at every step and for all tokens."""
    word = (1,) if boundary is None else (1, boundary)
    phrases = [Phrase(word * n + (2 - n % 2,), 1.5) for n in range(1, 60)]
    booster = PhraseBooster([*phrases, Phrase((1, 3) * 20, -1.0)], 4, boundary=boundary)
    parent = booster.automaton().parent
    nodes, n_levels = parent, 1
    while nodes.any():
        nodes, n_levels = parent[nodes], n_levels + 1
    assert n_levels <= 4


@pytest.mark.parametrize("seed", range(5))
def test_all_tokens_at_once_score_as_each_alone_wherever_a_phrase_repeats_itself(seed: int) -> None:
    chooser = random.Random(seed)
    texts = [chooser.choices((1, 2), (5, 1), k=chooser.randint(1, 12)) for _ in range(30)]
    booster = PhraseBooster([Phrase(tuple(text), chooser.uniform(-1, 3)) for text in texts], 4, boundary=0)
    states = np.arange(booster.n_nodes)
    rows, _ = booster.score(states)
    for token in range(4):
        alone, _ = booster.score(states, np.full_like(states, token))
        assert np.allclose(rows[:, token], alone)


def test_phrases_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(LanguageModelError, match="empty"):
        Phrase((), 1.0)
    with pytest.raises(LanguageModelError, match="0 to 4"):
        PhraseBooster([Phrase((1, 5), 1.0)], 5)


def test_phrase_lists(tmp_path: Path) -> None:
    path = tmp_path / "hot.txt"
    path.write_text("New  York\t4.5\n\nsottovoce\r\n", encoding="utf-8")
    result = [(text, weight) for text, weight, _ in read_phrases(path, default_weight=2.0)]
    assert result == [("New York", 4.5), ("sottovoce", 2.0)]
    path.write_text("a\tmuch\n")
    with pytest.raises(LanguageModelError, match="line 1"):
        read_phrases(path, default_weight=1.0)
    path.write_text("\n")
    with pytest.raises(LanguageModelError, match="at least one"):
        read_phrases(path, default_weight=1.0)
    with pytest.raises(LanguageModelError, match=r"none\.txt"):
        read_phrases(tmp_path / "none.txt", default_weight=1.0)
