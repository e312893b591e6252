"""Whole recordings window by window, and windows of speech; windows that are shorter than the trained
ones (`audio_ctx`).
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.audio.io import Recording
from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.torch_file import save_openai
from sottovoce.offline.transcriber import SHORT_TAIL_FRAMES
from sottovoce.options.decoding import DecodingOptions, FallbackOptions
from sottovoce.options.transcribe import Mode, TranscribeOptions
from sottovoce.types import Floats
from tests.conftest import Reference
from tests.decoding import rig
from tests.models import tiny
from tests.offline.transcribing import (
    ENGLISH,
    HELLO,
    PAIRS,
    TOKENIZER,
    WORLD,
    Loud,
    at,
    read,
    run,
    rustle,
    script,
    silence,
    transcribe,
    voice,
)
from tests.runtime.fake import FakeBackend, Script, ScriptedToken, SpokenLanguage


def test_the_seek_follows_the_timestamps() -> None:
    segments, transcription = run(PAIRS, rustle(12.0))
    # Windows at 0, 5 and 10 s; each says the same.
    spans = [(segment.start, segment.end) for segment in segments]
    assert spans == [(0, 2), (2, 5), (5, 7), (7, 10), (10, 12)]  # nothing is said behind the end
    assert [segment.id for segment in segments] == list(range(5))
    assert segments[0].text == " hello"
    assert transcription.duration == pytest.approx(12.0)
    assert transcription.language == "en"
    assert transcription.position == pytest.approx(12.0)


def test_segments_come_before_the_recording_is_read() -> None:
    options = replace(ENGLISH, normalization="running")
    backend = FakeBackend(script(at(0), HELLO, at(2)))
    with Recording(rustle(300.0)) as recording:
        transcription = transcribe(backend, TOKENIZER, recording, options)
        assert backend.n_encoded == 0
        first = next(transcription)
        assert (first.start, first.end) == (0, 2)
        assert backend.n_encoded == 1
        assert transcription.position < 60


def test_clips_are_read_alone() -> None:
    options = replace(ENGLISH, clip_timestamps=(10.0, 20.0, 40.0))
    segments, _ = run(script(at(0), HELLO, at(2)), rustle(65.0), options)
    assert [segment.start for segment in segments] == [10, 40]


def test_empty_and_instant_segments_are_not_yielded() -> None:
    blank = TOKENIZER.encode(" ")[0]
    segments, _ = run(script(at(0), HELLO, at(3), at(3), blank, at(4), at(4)), rustle(3.5))
    assert [segment.text for segment in segments] == [" hello"]


def test_a_window_without_speech_is_skipped() -> None:
    backend = FakeBackend(Script())
    assert read(backend, rustle(40.0), ENGLISH) == []
    assert backend.n_encoded == 2


def test_blank_windows_are_not_even_encoded() -> None:
    """Digital silence, and what the loudest moment of the recording puts below the model's range."""
    backend = FakeBackend(script(at(0), HELLO, at(2)))
    segments = read(backend, np.concatenate([silence(60.5), rustle(5.0), silence(40.0)]), ENGLISH)
    assert [segment.start for segment in segments] == [60.0]
    assert backend.n_encoded == 1
    far_below = np.concatenate([1e3 * rustle(29.5), 1e-3 * rustle(30.5)])
    assert [item.start for item in read(backend, far_below, ENGLISH)] == [0.0]


@pytest.mark.parametrize("is_followed", [False, True])
def test_blank_windows_have_no_language(is_followed: bool) -> None:
    options = TranscribeOptions(read_again=False, follow_languages=is_followed)
    backend = FakeBackend(Script())
    assert read(backend, silence(400.0), options) == []
    assert backend.n_encoded == 0
    german = Script(script(at(0), HELLO, at(2)).tokens, (SpokenLanguage("de", 0, 1500),))
    (segment,) = read(FakeBackend(german), np.concatenate([silence(400.0), rustle(5.0)]), options)
    assert segment.language == "de"


def test_the_language_is_found_once_among_those_allowed() -> None:
    mixed = Script(
        script(at(0), HELLO, at(2)).tokens, (SpokenLanguage("de", 0, 900), SpokenLanguage("fr", 900, 1500))
    )
    segments, transcription = run(mixed, rustle(31.0), TranscribeOptions(read_again=False))
    assert {segment.language for segment in segments} == {"de"}
    assert transcription.language == "de"
    allowed = TranscribeOptions(decoding=DecodingOptions(allowed_languages=("fr", "en")))
    _, transcription = run(mixed, rustle(31.0), allowed)
    assert transcription.language == "fr"
    assert transcription.language_probability == pytest.approx(1.0, abs=1e-3)


def test_words_lie_in_their_segments() -> None:
    options = replace(ENGLISH, word_timestamps=True)
    segments, _ = run(script(at(0), HELLO, WORLD, at(2), at(2)), rustle(2.0), options)
    assert [word.word for word in segments[0].words or ()] == [" hello", " world"]
    for segment in segments:
        for word in segment.words or ():
            assert segment.start <= word.start <= word.end <= segment.end
            assert word.language == "en"


@pytest.mark.parametrize("seconds", [10.0, 45.0])
def test_without_timestamps_nothing_is_read_twice(seconds: float) -> None:
    """Where words are timed too, all of a window was read, however early its last word ends."""
    wordless = replace(ENGLISH, decoding=replace(ENGLISH.decoding, without_timestamps=True))
    spoken = Script((ScriptedToken(HELLO, 20), ScriptedToken(WORLD, 60)), (SpokenLanguage("en", 0, 1500),))
    plain, _ = run(spoken, rustle(seconds), wordless)
    timed, _ = run(spoken, rustle(seconds), replace(wordless, word_timestamps=True))
    assert (
        [item.text for item in timed]
        == [item.text for item in plain]
        == [" hello world"] * (1 + (seconds > 30))
    )


def test_a_word_that_a_window_cuts_is_read_again_without_timestamps() -> None:
    wordless = replace(
        ENGLISH, decoding=replace(ENGLISH.decoding, without_timestamps=True), word_timestamps=True
    )
    tokens = (ScriptedToken(HELLO, 10), ScriptedToken(WORLD, 1480))
    said, _ = run(Script(tokens, (SpokenLanguage("en", 0, 1500),)), rustle(40.0), wordless)
    assert [item.text for item in said] == [" hello world", " hello"]
    last = (said[0].words or ())[-1]
    assert 29.0 < last.end < 30.0
    assert said[1].start == pytest.approx(last.end, abs=0.011)


def test_what_the_model_cannot_do_is_said_at_once() -> None:
    with Recording(rustle(1.0)) as recording:
        unknown = TranscribeOptions(decoding=DecodingOptions(language="yue"))
        with pytest.raises(OptionError, match="yue"):
            transcribe(FakeBackend(PAIRS), TOKENIZER, recording, unknown)


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_speech_is_packed_and_its_times_found_again(batch_size: int) -> None:
    samples = voice(150.0, (20, 24), (65, 69), (70, 74), (120, 124))
    options = replace(ENGLISH, mode="vad", batch_size=batch_size, condition_on_previous_text=False)
    backend = FakeBackend(script(at(0), HELLO, at(2), at(2), WORLD, at(4.4)))
    segments = read(backend, samples, options)
    assert backend.n_encoded == 1  # 16 s of speech fit one window
    assert [segment.text for segment in segments] == [" hello", " world"]
    assert segments[0].start == pytest.approx(19.8, abs=0.05)
    assert segments[1].end == pytest.approx(24.2, abs=0.05)


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_what_is_left_unread_of_a_window_is_read_before_the_next(batch_size: int) -> None:
    """The model stops after 5 s of every window: of 45 s of speech in two windows, all is read, in order."""
    options = replace(ENGLISH, mode="vad", batch_size=batch_size, condition_on_previous_text=False)
    segments = read(PAIRS, voice(60.0, (0, 45)), options)
    starts = [segment.start for segment in segments]
    assert starts == sorted(starts)
    assert [segment.id for segment in segments] == list(range(len(segments)))
    ends = [0.0, *(segment.end for segment in segments)]
    gaps = [start - end for start, end in zip(starts, ends, strict=False)]
    assert max(gaps) <= 1.0
    assert ends[-1] >= 44.0


def test_batches_give_the_segments_of_single_windows() -> None:
    model = rig.backend(seed=1, n_text_ctx=32, n_audio_ctx=200)
    generator = np.random.default_rng(1)
    samples = generator.normal(0, 0.1, 16000 * 14).astype(np.float32)
    single = TranscribeOptions(
        decoding=DecodingOptions(language="en", sample_len=6),
        fallback=FallbackOptions((0.0, 0.4), logprob_threshold=-3.0, no_speech_threshold=None),
        mode="vad",
        condition_on_previous_text=False,
        word_timestamps=True,
    )
    result = []
    for options in (single, replace(single, batch_size=3)):
        with Recording(samples) as recording:
            segments = list(transcribe(model, rig.tokenizer(), recording, options, speech_model=Loud()))
        result.append([(s.text, s.start, s.end, s.temperature, s.words and len(s.words)) for s in segments])
    assert len(result[0]) >= 3
    assert result[0] == result[1]


def test_keys_and_values_of_a_batch_are_computed_once() -> None:
    """Each window is probed alone, and decoded and aligned with the others."""
    backend, several = FakeBackend(PAIRS), DecodingOptions(allowed_languages=("en", "de"))
    options = TranscribeOptions(
        decoding=several, follow_languages=True, mode="vad", batch_size=3, word_timestamps=True
    )
    assert len(read(backend, voice(100.0, (0, 25), (30, 55), (60, 85)), options)) > 3
    assert backend.n_keyed == backend.n_encoded


@pytest.mark.reference
@pytest.mark.parametrize("words", [False, True])
def test_transcripts_equal_openai_whispers(words: bool, reference: Reference) -> None:
    weights = tiny.checkpoint(
        tiny.dims(n_vocab=51865, n_text_ctx=448, n_audio_ctx=1500, n_audio_layer=1), seed=5
    )
    model = tiny.backend(weights.dims, seed=5)
    times = np.arange(16000 * 40) / 16000
    samples = (0.3 * np.sin(2 * np.pi * (200 + 40 * times) * times)).astype(np.float32)

    def compute() -> list[dict[str, Any]]:
        whisper = pytest.importorskip("whisper", reason="openai-whisper is not installed")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "random.pt"
            save_openai(weights, path, "float32")
            twin = whisper.load_model(str(path), device="cpu")
        torch = pytest.importorskip("torch")
        mask = torch.zeros(3, 4, dtype=torch.bool)
        mask[1, 0] = mask[2, 3] = True
        twin.register_buffer("alignment_heads", mask.to_sparse(), persistent=False)
        expected = twin.transcribe(
            samples,
            language="es",
            temperature=0.0,
            fp16=False,
            sample_len=10,
            word_timestamps=words,
            no_speech_threshold=None,
            initial_prompt="hola",
        )
        kept = ("seek", "start", "end", "text", "tokens", "avg_logprob")
        return [{name: segment[name] for name in kept} for segment in expected["segments"]]

    options = TranscribeOptions(
        read_again=False,
        decoding=DecodingOptions(language="es", sample_len=10),
        fallback=FallbackOptions((0.0,), no_speech_threshold=None),
        word_timestamps=words,
        initial_prompt="hola",
    )
    with Recording(samples) as recording:
        segments = list(transcribe(model, rig.tokenizer(), recording, options))
    # What it writes behind the end of the audio is left out here, and so not aligned with words either.
    last_seek = 1000 if words else 4000
    theirs = [
        segment
        for segment in reference(compute)
        if segment["text"].strip() and segment["start"] < 40.0 and segment["seek"] <= last_seek
    ]
    assert theirs
    assert segments[-1].end <= 40.0
    segments = segments[: len(theirs)] if words else segments
    assert [segment.text for segment in segments] == [segment["text"] for segment in theirs]
    for ours, other in zip(segments, theirs, strict=True):
        assert (ours.start, ours.end) == pytest.approx((other["start"], min(40.0, other["end"])), abs=0.0201)
        assert ours.avg_logprob == pytest.approx(other["avg_logprob"], abs=1e-3)
        assert list(ours.tokens) == other["tokens"]


SHORT = replace(ENGLISH, audio_ctx=300)
ENDLESS = Script(
    tuple(ScriptedToken(at(0) if frame == 0 else WORLD, frame) for frame in range(300)),
    (SpokenLanguage("en", 0, 300),),
)
"""A word in every frame of a window of 300, and no timestamp at their end."""


@pytest.mark.parametrize("mode", ["seek", "vad"])
def test_a_short_window_ends_in_silence_and_nothing_goes_unread(mode: Mode) -> None:
    windows: list[Floats] = []

    def hear(mel: Floats, _: int) -> Script:
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
    windows: list[Floats] = []

    def hear(mel: Floats, _: int) -> Script:
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
