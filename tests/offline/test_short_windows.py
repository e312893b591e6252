"""`audio_ctx`: windows shorter than the trained ones end in silence, and texts that do not end are cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import Tensor

from sottovoce.audio.recording import Recording
from sottovoce.offline.transcriber import SHORT_TAIL_FRAMES
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import Mode, TranscribeOptions
from sottovoce.types import Samples, Segment
from tests.backends.fake import FakeBackend, Script, ScriptedToken, SpokenLanguage
from tests.offline.test_longform import ENGLISH, TOKENIZER, WORLD, Loud, at, rustle, script
from tests.offline.transcribing import transcribe

SHORT = replace(ENGLISH, audio_ctx=300)
ENDLESS = Script(
    tuple(ScriptedToken(at(0) if frame == 0 else WORLD, frame) for frame in range(300)),
    (SpokenLanguage("en", 0, 300),),
)
"""A word in every frame of a window of 300, and no timestamp at their end."""


def read(backend: FakeBackend, samples: Samples, options: TranscribeOptions) -> list[Segment]:
    with Recording(samples) as recording:
        return list(transcribe(backend, TOKENIZER, recording, options, speech_model=Loud()))


@pytest.mark.parametrize("mode", ["seek", "vad"])
def test_a_short_window_ends_in_silence_and_nothing_goes_unread(mode: Mode) -> None:
    windows: list[Tensor] = []

    def hear(mel: Tensor, _: int) -> Script:
        windows.append(mel)
        return script(at(0), WORLD, at(5.8))

    segments = read(FakeBackend(hear), rustle(16.0), replace(SHORT, mode=mode))
    assert [mel.shape[1] for mel in windows] == [600, 600, 600]
    assert all((mel[:, -SHORT_TAIL_FRAMES:] == 0).all() for mel in windows)
    assert all((mel[:, -SHORT_TAIL_FRAMES - 1] != 0).any() for mel in windows[:2])
    ends = [0.0, *(segment.end for segment in segments)]
    assert [segment.start for segment in segments] == pytest.approx(ends[:-1], abs=0.02)
    assert ends[-1] == pytest.approx(16.0, abs=0.02)


def test_a_full_window_is_full() -> None:
    windows: list[Tensor] = []

    def hear(mel: Tensor, _: int) -> Script:
        windows.append(mel)
        return Script()

    read(FakeBackend(hear), rustle(31.0), replace(ENGLISH, audio_ctx=1500))
    assert (windows[0][:, -1] != 0).any()


@pytest.mark.parametrize(("asked", "most"), [(None, 448 * 300 // 1500), (30, 30), (120, 120)])
def test_a_text_without_end_takes_its_share_of_the_context(asked: int | None, most: int) -> None:
    decoding = DecodingOptions(language="en", sample_len=asked)
    fallback = replace(SHORT.fallback, temperatures=(0.0,))
    options = replace(SHORT, decoding=decoding, fallback=fallback)
    (segment,) = read(FakeBackend(ENDLESS), rustle(5.0), options)
    assert len(segment.tokens) == most
