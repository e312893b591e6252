"""What a live stream can say, over all rows and over the few that a small model has learnt."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.decoding.filters import LiveVocabulary, log_softmax
from sottovoce.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.for_model(51865, language="en")
SMALL = TOKENIZER.with_pieces(TOKENIZER.encode(" the time of day"))


@pytest.mark.parametrize("tokenizer", [TOKENIZER, SMALL])
def test_no_special_token_is_said_but_the_end_of_text(tokenizer: Tokenizer) -> None:
    ids = LiveVocabulary.of(tokenizer, tokenizer.n_vocab).ids.tolist()
    assert [token for token in ids if token >= tokenizer.eot] == [tokenizer.eot]
    assert set(tokenizer.encode(" time")) <= set(ids)
    assert not set(TOKENIZER.encode("♪")) & set(ids)


def test_few_rows_say_what_all_rows_say() -> None:
    few = LiveVocabulary.of(SMALL, SMALL.n_vocab)
    assert few.rows is not None
    assert LiveVocabulary.of(TOKENIZER, TOKENIZER.n_vocab).rows is None
    logits = np.random.default_rng(0).standard_normal((2, SMALL.n_vocab), np.float32)
    from_few = few.log_probs(logits[:, few.rows])
    assert np.array_equal(from_few, log_softmax(logits[:, few.ids]))
    assert np.exp(from_few).sum(axis=1) == pytest.approx(1.0)


@pytest.mark.parametrize("tokenizer", [TOKENIZER, SMALL])
def test_no_speech_is_told_from_what_is_computed(tokenizer: Tokenizer) -> None:
    """Rows that a small model never learnt have no part in it."""
    vocabulary = LiveVocabulary.of(tokenizer, tokenizer.n_vocab)
    logits = np.full((1, tokenizer.n_vocab), -30.0, np.float32)
    logits[0, [tokenizer.no_speech, *tokenizer.language_tokens[:2]]] = [1.0, 2.0, 0.5]
    computed = logits if vocabulary.rows is None else logits[:, vocabulary.rows]
    expected = float(np.exp(log_softmax(logits)[0, tokenizer.no_speech]))
    assert vocabulary.no_speech_probs(computed).tolist() == pytest.approx([expected], rel=1e-6)


def test_no_text_begins_with_a_space_alone() -> None:
    vocabulary = LiveVocabulary.of(TOKENIZER, TOKENIZER.n_vocab)
    space = TOKENIZER.encode(" ")[0]
    logits = np.zeros((1, TOKENIZER.n_vocab), np.float32)
    logits[0, space] = 9.0
    best = vocabulary.log_probs(logits).argmax(axis=1, keepdims=True)
    assert vocabulary.ids[best].tolist() == [[space]]
    best = vocabulary.log_probs(logits, begins=True).argmax(axis=1, keepdims=True)
    assert vocabulary.ids[best].tolist() != [[space]]
