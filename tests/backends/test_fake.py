"""The scripted backend says, attends and names languages as its script has it."""

from __future__ import annotations

import pytest
import torch

from sottovoce.errors import OptionError
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput, Features
from tests.backends.fake import (
    FakeBackend,
    Script,
    ScriptedToken,
    SpokenLanguage,
    by_row,
)

NAMES = Tokenizer.for_model(51865)
EN, DE = NAMES.language_token("en"), NAMES.language_token("de")
SPEECH = Script(
    (ScriptedToken(100, 4), ScriptedToken(200, 12), ScriptedToken(300, 30)),
    (SpokenLanguage("en", 0, 20), SpokenLanguage("de", 20, 40)),
)
PLAIN = [NAMES.sot, EN, NAMES.transcribe, NAMES.no_timestamps]
TIMED = PLAIN[:-1]


def encode(backend: FakeBackend, n_frames: int = 80, n_content: int = 80, n_rows: int = 1) -> EncoderOutput:
    return backend.encode(Features(torch.zeros(n_rows, 80, n_frames), (n_content,) * n_rows))


def greedy(backend: FakeBackend, encoded: EncoderOutput, prompt: list[int]) -> list[tuple[int, int]]:
    """(token, attended frame) pairs up to the end of text."""
    state = backend.start(encoded)
    tokens = torch.tensor([prompt])
    said: list[tuple[int, int]] = []
    while not said or said[-1][0] != NAMES.eot:
        step = backend.step(tokens, state, capture=backend.alignment_heads)
        assert step.attention is not None
        tokens = step.logits[:, -1].argmax(-1, keepdim=True)
        said.append((int(tokens), int(step.attention[0, 0, -1].argmax())))
    return said


def test_says_the_script_and_attends_to_it() -> None:
    backend = FakeBackend(SPEECH)
    assert greedy(backend, encode(backend), PLAIN) == [(100, 4), (200, 12), (300, 30), (NAMES.eot, 30)]


def test_wraps_text_in_timestamps_when_they_are_asked_for() -> None:
    backend = FakeBackend(SPEECH)
    said = [token for token, _ in greedy(backend, encode(backend), TIMED)]
    begin = NAMES.timestamp_begin
    assert said == [begin + 4, 100, 200, 300, begin + 31, NAMES.eot]


def test_scripted_timestamps_are_said_as_they_are_or_left_out() -> None:
    first, second = NAMES.timestamp(0.1), NAMES.timestamp(0.4)
    script = Script((ScriptedToken(first, 5), ScriptedToken(100, 6), ScriptedToken(second, 20)))
    backend = FakeBackend(script)
    assert [t for t, _ in greedy(backend, encode(backend), TIMED)] == [first, 100, second, NAMES.eot]
    assert [t for t, _ in greedy(backend, encode(backend), PLAIN)] == [100, NAMES.eot]


def test_hears_nothing_beyond_the_content_or_the_window() -> None:
    backend = FakeBackend(SPEECH)
    assert [t for t, _ in greedy(backend, encode(backend, 80, 26), PLAIN)] == [100, 200, NAMES.eot]
    assert [t for t, _ in greedy(backend, encode(backend, 20, 20), PLAIN)] == [100, NAMES.eot]


def test_a_prompt_before_the_start_changes_nothing() -> None:
    backend = FakeBackend(SPEECH)
    prompt = [NAMES.sot_prev, 100, 200, *PLAIN]
    assert greedy(backend, encode(backend), prompt) == greedy(backend, encode(backend), PLAIN)


def test_languages_share_the_frames_that_are_seen() -> None:
    backend = FakeBackend(SPEECH)
    encoded = encode(backend, 100, 100)
    window = torch.full((1, 50), -torch.inf)

    def shares(bias: torch.Tensor | None) -> list[float]:
        said = backend.step(torch.tensor([[NAMES.sot]]), backend.start(encoded), bias=bias).logits[0, 0]
        chances = said.softmax(0)[[EN, DE, NAMES.no_speech]]
        return [round(float(chance), 3) for chance in chances]

    assert shares(None) == [0.4, 0.4, 0.2]
    window[0, 10:30] = 0
    assert shares(window) == [0.5, 0.5, 0.0]
    window[0, :20] = -torch.inf
    assert shares(window) == [0.0, 1.0, 0.0]


def test_is_less_sure_in_a_language_that_is_not_spoken() -> None:
    backend = FakeBackend(SPEECH)
    encoded = encode(backend)

    def sureness(language: int) -> float:
        prompt = torch.tensor([[NAMES.sot, language, NAMES.transcribe, NAMES.no_timestamps]])
        return float(backend.step(prompt, backend.start(encoded)).logits[0, -1, 100])

    assert sureness(EN) > sureness(DE) > 0


def test_rows_say_their_own_scripts_and_are_counted() -> None:
    backend = FakeBackend(by_row(SPEECH, Script((ScriptedToken(7, 3),))))
    encoded = encode(backend, n_rows=3)
    first = backend.step(torch.tensor([PLAIN] * 3), backend.start(encoded)).logits[:, -1].argmax(-1)
    assert first.tolist() == [100, 7, 7]
    assert backend.n_encoded == 3


@pytest.mark.parametrize("frames", [(3, 3), (5, 2), (-1, 4)])
def test_frames_of_a_script_rise(frames: tuple[int, int]) -> None:
    with pytest.raises(OptionError, match="rise"):
        Script(tuple(ScriptedToken(1, frame) for frame in frames))
