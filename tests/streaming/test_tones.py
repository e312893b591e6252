"""The tones are understood: what later tests lean on."""

from __future__ import annotations

import numpy as np

from sottovoce.audio.mel import log_mel, window_features
from tests.streaming.speech import TOKEN_OF, WORDS, hear, say, silence


def test_every_word_is_heard_at_its_place() -> None:
    for words in WORDS.values():
        audio = np.concatenate([silence(0.5), say(words), silence(1.0)])
        features = window_features([log_mel(audio)], 600)
        script = hear(features.mel[0])
        assert [token.id for token in script.tokens] == [TOKEN_OF[word] for word in words]
        for i, token in enumerate(script.tokens):
            assert abs(token.frame * 0.02 - (0.5 + 0.4 * i + 0.15)) <= 0.04
