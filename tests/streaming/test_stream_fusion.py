"""Language models beside live decoding: they choose, they are not counted, and they know what was said."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.decoding.filters import LiveVocabulary
from sottovoce.lm.base import Floats, Ints
from sottovoce.streaming.alignatt import (
    AlignAttDecoder,
    AlignAttHypothesis,
    AlignAttRequest,
    DecoderPrefix,
    StopRules,
)
from sottovoce.types import Features
from tests.runtime.fake import SURE, FakeBackend, Script, ScriptedToken
from tests.runtime.reading import decoded
from tests.streaming.speech import TOKENIZER

SAID = (1000, 2000, 3000)
WANTED = 4000
SOT = TOKENIZER.sot_sequence_including_notimestamps
VOCABULARY = LiveVocabulary.of(TOKENIZER, TOKENIZER.n_vocab)


class AfterThat:
    """Adds `weight` to one token where another was the last; a state is the last token."""

    def __init__(self, after: int, weight: float) -> None:
        self._after = after
        self._weight = weight

    @property
    def n_tokens(self) -> int:
        return TOKENIZER.eot

    def start(self, n: int) -> Ints:
        return np.full(n, -1)

    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]:
        scores = np.zeros((len(states), self.n_tokens), np.float32)
        scores[:, WANTED] = np.where(states == self._after, self._weight, 0.0)
        return scores, states if tokens is None else np.where(tokens < self.n_tokens, tokens, states)

    def finish(self, states: Ints) -> Floats:
        return np.zeros(len(states), np.float32)


def read(fusion: AfterThat | None, *, beam_size: int, committed: tuple[int, ...] = ()) -> AlignAttHypothesis:
    script = Script(tuple(ScriptedToken(token, 10 * i + 5) for i, token in enumerate(SAID)))
    backend = FakeBackend(script)
    encoded = backend.encode(Features(np.zeros((1, 80, 100), np.float32), (100,)))
    reader = AlignAttDecoder(backend, TOKENIZER.eot, VOCABULARY, beam_size, fusion)
    prefix = DecoderPrefix((*SOT, *committed), 0, len(committed))
    (reading,) = decoded(reader, [encoded], [AlignAttRequest(prefix, StopRules(frame_threshold=0))])
    return reading


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_model_that_says_nothing_changes_nothing(beam_size: int) -> None:
    plain = read(None, beam_size=beam_size)
    assert plain.tokens[:3] == SAID
    assert read(AfterThat(1000, 0.0), beam_size=beam_size) == plain


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_model_chooses_by_what_it_has_read(beam_size: int) -> None:
    reading = read(AfterThat(1000, 2 * SURE), beam_size=beam_size)
    assert reading.tokens[:3] == (1000, WANTED, 3000)
    assert read(AfterThat(5, 2 * SURE), beam_size=beam_size).tokens[:3] == SAID


def test_what_is_added_is_not_counted_as_the_decoders() -> None:
    reading = read(AfterThat(1000, 2 * SURE), beam_size=3)
    assert reading.logprobs[1] < -SURE / 2  # the decoder thought little of it
    assert reading.avg_logprob < 0 < reading.mean_score


def test_committed_text_has_been_read() -> None:
    reading = read(AfterThat(1000, 2 * SURE), beam_size=1, committed=(1000,))
    assert reading.tokens[0] == WANTED
