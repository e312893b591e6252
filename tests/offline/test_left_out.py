"""Text that is too little for its speech: the window is read again in halves, until that is no longer so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sottovoce.audio.recording import Recording
from sottovoce.backends.fake import FakeBackend
from sottovoce.offline.batched import is_too_little
from sottovoce.offline.longform import transcribe
from sottovoce.offline.options import TranscribeOptions
from sottovoce.offline.packing import PackedWindow, Piece
from sottovoce.types import Segment
from tests.offline.test_longform import ENGLISH, HELLO, TOKENIZER, Loud, at, script, silence

EOT = TOKENIZER.eot


@pytest.mark.parametrize(
    ("length_s", "n_tokens", "is_little"),
    [(20.0, 10, True), (20.0, 21, False), (5.0, 1, False), (20.0, 0, False)],
)
def test_speech_has_some_tokens_a_second(length_s: float, n_tokens: int, is_little: bool) -> None:
    segment = Segment(0, 1.0, 1.0 + length_s, "", "en", (EOT + 1, *[HELLO] * n_tokens, EOT + 1))
    assert is_too_little(segment, EOT, 6.0, 1.0) is is_little


def test_halves_hold_all_pieces() -> None:
    window = PackedWindow((Piece(0, 100), Piece(200, 700), Piece(800, 900), Piece(950, 1000)))
    first, second = window.halves()
    assert first.pieces + second.pieces == window.pieces
    assert first.n_frames == 600
    assert first.is_doubtful
    assert second.is_doubtful
    assert not window.is_doubtful
    two = PackedWindow(window.pieces[:2])
    assert [len(half.pieces) for half in two.halves()] == [1, 1]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_sentence_that_is_said_again_is_written_again(batch_size: int) -> None:
    """The model writes it once for all of a window, whatever is in it."""
    samples = silence(31.0)
    for start in (1, 11, 21):
        samples[start * 16_000 : (start + 8) * 16_000] = 0.1
    options: TranscribeOptions = replace(ENGLISH, mode="vad", batch_size=batch_size)
    backend = FakeBackend(script(at(0), HELLO, at(26)))
    with Recording(samples) as recording:
        said = list(transcribe(backend, TOKENIZER, recording, options, speech_model=Loud()))
    assert [one.text for one in said] == [" hello"] * 3
    assert [round(one.start) for one in said] == [1, 11, 21]
    assert [one.id for one in said] == [0, 1, 2]
