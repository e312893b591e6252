"""Language models written in Python, with states of any type: full-width searches equal enumeration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.options import CtcOptions
from sottovoce.errors import LanguageModelError
from sottovoce.lm.rescoring import StatefulWords
from tests.ctc.enumeration import (
    RandomBigram,
    all_texts,
    best_of,
    emissions,
    likely,
    readings,
    separated_readings,
    without_idle,
)

NAMES, WORDS = ["-", "a", "b", "|"], ("a", "b", "ab", "bee")
SPELLINGS = [(0, (1,)), (1, (2,)), (2, (1, 2)), (3, (2,))]


class Trigram:
    """Its states are the two words before."""

    def __init__(self) -> None:
        self.near, self.far, self.asked = RandomBigram(4, 1), RandomBigram(4, 2), 0

    def start(self) -> tuple[int, int]:
        return 4, 4

    def score(
        self, states: Sequence[tuple[int, int]], words: Sequence[str]
    ) -> tuple[list[float], list[tuple[int, int]]]:
        self.asked += len(words)
        ids = [WORDS.index(word) for word in words]
        scores = [
            float(self.near.table[last, word] + self.far.table[far, word])
            for (far, last), word in zip(states, ids, strict=True)
        ]
        return scores, [(last, word) for (_, last), word in zip(states, ids, strict=True)]

    def finish(self, states: Sequence[tuple[int, int]]) -> list[float]:
        return [float(self.near.table[last, 4]) for _, last in states]

    def sentence(self, words: Sequence[int]) -> float:
        state, total = self.start(), 0.0
        for word in words:
            (score,), (state,) = self.score([state], [WORDS[word]])
            total += score
        return total + self.finish([state])[0]


@pytest.mark.parametrize("every", [1, 2, None])
@pytest.mark.parametrize("names", [NAMES, ["-", "a", "b", "c"]])
def test_equals_enumeration(names: list[str], every: int | None) -> None:
    model, log_probs = Trigram(), emissions(5, 4, seed=3)
    has_separator = "|" in names
    texts = all_texts(log_probs, 0)
    truth = best_of(
        without_idle(texts, 3) if has_separator else texts,
        lambda tokens: (
            separated_readings(tokens, SPELLINGS, 3) if has_separator else readings(tokens, SPELLINGS)
        ),
        lambda _, words: 0.6 * model.sentence(words) + 0.2 * len(words),
    )[:10]
    decoder = CtcDecoder(
        names,
        lexicon=[(WORDS[word], spelling) for word, spelling in SPELLINGS],
        neural_lm=model,
        fusion=CtcFusionOptions(neural_weight=0.6, word_score=0.2),
        options=CtcOptions(beam_size=1500, n_best=10, times=False, adjust_every_frames=every),
    )
    result = decoder.decode(log_probs)[0]
    assert [each.score for each in result] == pytest.approx([score for score, _, _ in truth], abs=1e-4)
    assert [each.text for each in result] == [" ".join(WORDS[word] for word in words) for *_, words in truth]


def test_words_are_scored_again_only_if_their_states_were_dropped() -> None:
    model = Trigram()
    words = StatefulWords(model)
    pairs = [((), "a"), (("a",), "b"), (("a", "b"), "ab")]
    scores = words.score_words(pairs)
    n_asked = model.asked
    assert n_asked <= len(pairs) + 2  # "a" and "b" of the longer histories
    ends = words.score_ends([("a", "b", "ab"), ("a",)])
    assert model.asked == n_asked
    small = StatefulWords(model, most_states=2)
    assert small.score_words(pairs) == scores
    assert small.score_ends([("a",), ("a", "b", "ab")]) == ends
    total = sum(scores.values()) + ends["a", "b", "ab"]
    assert total == pytest.approx(model.sentence([0, 1, 2]), abs=1e-5)
    assert np.isfinite(total)


@pytest.mark.parametrize(
    ("method", "result", "message"),
    [
        (
            "score",
            lambda _, words: ([float("nan")] * len(words), [0] * len(words)),
            "log-probabilities, got NaN",
        ),
        ("score", lambda _, words: ([], [0] * len(words)), "score: expected 1 values in each list, got 0"),
        ("score", lambda _, words: None, "score: expected log-probabilities and states, got NoneType"),
        ("finish", lambda _: [], "finish: expected 1 values in each list, got 0"),
        ("finish", lambda states: [float("nan")] * len(states), "log-probabilities, got NaN"),
    ],
)
def test_a_model_that_returns_something_else_is_named(method: str, result: object, message: str) -> None:
    model = Trigram()
    setattr(model, method, result)
    decoder = CtcDecoder(NAMES, lexicon=["a"], neural_lm=model, beam_size=1)
    with pytest.raises(LanguageModelError, match=f"neural_lm: .*{message}"):
        decoder.decode(likely([1, 0, 3, 0], 4, share=0.97))
