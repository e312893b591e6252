"""What a first model is not sure of is read by a second one, and nothing else is."""

from __future__ import annotations

import io
import wave
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.audio.io import Recording
from sottovoce.errors import OptionError
from sottovoce.offline.pipeline import transcriber_for
from sottovoce.offline.resume import ResumePoint, SeekPlace, TranscriptionState
from sottovoce.offline.transcriber import SecondModel
from sottovoce.offline.transcription import FileTranscription
from sottovoce.options.decoding import DeferralOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.calls import DirectRuntime
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Floats, Samples, Segment
from tests.offline.transcribing import ENGLISH, HELLO, PAIRS, TOKENIZER, WORLD, Loud, at, rustle, script
from tests.runtime.fake import FAKE_DIMS, FakeBackend, Hear, Script, ScriptedToken

NEVER = DeferralOptions(min_avg_logprob=-1e3, min_word_prob=0.0)
ALWAYS = replace(NEVER, min_avg_logprob=0.0)
IMPROBABLE = replace(NEVER, min_avg_logprob=-0.05)
DOUBTFUL = script(at(0), *[HELLO] * 6, at(3), at(3), language="de")
"""A window whose text is improbable in English; it goes on after three seconds."""
SECOND = script(at(0), WORLD, WORLD, at(1), at(1))


def in_order(*scripts: Script) -> Hear:
    """Say a script a window; the last one over and over."""
    left = [*scripts]

    def hear(_: Floats, __: int) -> Script:
        return left.pop(0) if len(left) > 1 else left[0]

    return hear


def second_of(
    backend: FakeBackend, deferral: DeferralOptions = NEVER, speech_model: Loud | None = None
) -> SecondModel:
    tokenizer = Tokenizer.for_model(backend.dims.n_vocab)
    reader = transcriber_for(DirectRuntime(backend), tokenizer, TranscribeOptions(), None)
    return SecondModel(replace(reader, speech_model=speech_model), deferral)


def run(
    source: Samples | io.BytesIO,
    first: FakeBackend,
    second: FakeBackend | None,
    deferral: DeferralOptions = NEVER,
    options: TranscribeOptions = ENGLISH,
) -> tuple[list[Segment], FileTranscription]:
    other = None if second is None else second_of(second, deferral)
    with Recording(source) as recording:
        transcriber = transcriber_for(DirectRuntime(first), TOKENIZER, options, None, other)
        transcription = FileTranscription(transcriber, recording)
        return list(transcription), transcription


def test_what_is_sure_is_the_first_models() -> None:
    second = FakeBackend(SECOND)
    alone, _ = run(rustle(12.0), FakeBackend(PAIRS), None)
    both, transcription = run(rustle(12.0), FakeBackend(PAIRS), second)
    assert both == alone
    assert (second.n_encoded, transcription.second_s) == (0, 0.0)
    assert transcription.position == pytest.approx(12.0)


def test_what_is_in_doubt_is_the_second_models() -> None:
    first = FakeBackend(in_order(PAIRS, DOUBTFUL, PAIRS))
    second = FakeBackend(SECOND)
    segments, transcription = run(rustle(13.0), first, second, IMPROBABLE)
    assert [(segment.start, segment.end, segment.text.strip()) for segment in segments] == [
        (0, 2, "hello"),
        (2, 5, "world"),
        (5, 6, "world world"),
        (6, 7, "world world"),
        (7, 8, "world world"),
        (8, 10, "hello"),
        (10, 13, "world"),
    ]
    assert [segment.id for segment in segments] == list(range(7))
    assert transcription.second_s == pytest.approx(3.0)
    assert transcription.duration == pytest.approx(13.0)


def test_where_all_is_in_doubt_the_text_is_the_second_models() -> None:
    """Long stretches are read before their end is known, from where one window ends."""
    other = script(at(0), WORLD, WORLD, at(5), at(5))
    alone, _ = run(rustle(100.0), FakeBackend(other), None)
    both, transcription = run(rustle(100.0), FakeBackend(PAIRS), FakeBackend(other), ALWAYS)
    assert [(item.start, item.text) for item in both] == [(item.start, item.text) for item in alone]
    assert transcription.second_s == pytest.approx(100.0)


def test_a_word_that_is_improbable_is_read_with_its_segment() -> None:
    """Words are timed for that, and told where they were asked for."""
    tokens = (ScriptedToken(at(0), 0), ScriptedToken(HELLO, 5), ScriptedToken(at(2.5), 125))
    said = Script(tokens, SECOND.languages)
    for limit, text, seconds in ((1.0, [" world world"] * 3, 3.0), (0.9, [" hello"], 0.0)):
        first, second = FakeBackend(in_order(said, Script())), FakeBackend(SECOND)
        segments, transcription = run(rustle(3.0), first, second, replace(NEVER, min_word_prob=limit))
        assert [segment.text for segment in segments] == text
        assert all(segment.words is None for segment in segments)
        assert transcription.second_s == pytest.approx(seconds)


def test_a_part_of_a_recording_keeps_its_times() -> None:
    options = replace(ENGLISH, offset_s=10.0, duration_s=8.0)
    first = FakeBackend(in_order(PAIRS, DOUBTFUL, PAIRS))
    segments, transcription = run(rustle(60.0), first, FakeBackend(SECOND), IMPROBABLE, options)
    starts = [segment.start for segment in segments]
    assert starts == [10, 12, 15, 16, 17]
    assert transcription.second_s == pytest.approx(3.0)


class UncopiedFile(io.BytesIO):
    """A file that is read in pieces."""

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        assert 0 <= size < 2**20
        return super().read(size)


def test_an_open_file_is_read_by_both_and_not_copied() -> None:
    file = UncopiedFile()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 16000, 0, "NONE", ""))
        sound.writeframes((rustle(60.0) * 1e6).astype(np.int16).tobytes())
    file.seek(0)
    first = FakeBackend(in_order(DOUBTFUL, *[PAIRS] * 20))
    segments, _ = run(file, first, FakeBackend(SECOND), IMPROBABLE)
    assert [segment.start for segment in segments][:5] == [0, 1, 2, 3, 5]
    assert segments[-1].end == pytest.approx(60.0, abs=2.5)


def test_tokens_are_those_of_the_first_models_vocabulary() -> None:
    english = Tokenizer.for_model(51864)
    said = (english.timestamp_begin, *english.encode(" good morning"), english.timestamp_begin + 150)
    second = FakeBackend(
        Script(tuple(ScriptedToken(token, 2 * i) for i, token in enumerate(said))),
        dims=replace(FAKE_DIMS, n_vocab=51864),
    )
    segments, transcription = run(rustle(3.0), FakeBackend(DOUBTFUL), second, IMPROBABLE)
    assert [segment.text for segment in segments] == [" good morning"]
    assert TOKENIZER.decode(segments[0].tokens) == " good morning"
    assert set(segments[0].tokens) <= set(transcription.collect().token_texts)


def test_a_list_of_languages_is_followed_by_the_first() -> None:
    """The second reads each stretch in the language that the first found there."""
    decoding = replace(ENGLISH.decoding, language=None, allowed_languages=("en", "de"))
    options = TranscribeOptions(decoding=decoding, follow_languages=True, read_again=False)
    english = script(at(0), *[HELLO] * 6, at(3), at(3))
    first, second = FakeBackend(in_order(english, english, Script())), FakeBackend(SECOND)
    segments, _ = run(rustle(3.0), first, second, ALWAYS, options)
    assert {(segment.text, segment.language) for segment in segments} == {(" world world", "en")}


def test_speech_without_words_is_read_by_the_second() -> None:
    """The first model leaves out all that it reads; the second writes it."""
    samples = np.full(4 * 16000, 0.1, np.float32)
    second = FakeBackend(script(at(0), *[WORLD] * 12, at(4), at(4)))
    other = second_of(second, speech_model=Loud())
    with Recording(samples) as recording:
        transcriber = transcriber_for(
            DirectRuntime(FakeBackend(Script())), TOKENIZER, replace(ENGLISH, read_again=True), None, other
        )
        transcription = FileTranscription(replace(transcriber, speech_model=Loud()), recording)
        assert [item.start for item in transcription] == [0.0]
    assert transcription.unread == ()


def test_skipped_speech_that_the_second_does_not_read_is_reported() -> None:
    """Between two certain segments lie 0.04 s, too little to read; the skipped speech reaches into both."""
    tokens = ((at(0), 0), (HELLO, 25), (at(4), 50), (at(4.04), 300), (WORLD, 325), (at(8), 350))
    said = Script(tuple(ScriptedToken(*each) for each in tokens), SECOND.languages)
    second = FakeBackend(SECOND)
    other = second_of(second, speech_model=Loud())
    first = FakeBackend(in_order(said, Script()))
    with Recording(np.full(8 * 16000, 0.1, np.float32)) as recording:
        transcriber = transcriber_for(
            DirectRuntime(first), TOKENIZER, replace(ENGLISH, read_again=True), None, other
        )
        transcription = FileTranscription(replace(transcriber, speech_model=Loud()), recording)
        assert [item.text for item in transcription] == [" hello", " world"]
    assert second.n_encoded == 0
    assert transcription.unread == (pytest.approx((1.2, 4.8), abs=0.1), pytest.approx((6.7, 8.0), abs=0.1))


def test_it_goes_neither_with_clips_nor_on_from_one_model() -> None:
    second = second_of(FakeBackend(SECOND))
    first = FakeBackend(PAIRS)
    with pytest.raises(OptionError, match="clip_timestamps: cannot be combined with a second model"):
        transcriber_for(
            DirectRuntime(first), TOKENIZER, replace(ENGLISH, clip_timestamps=(1.0, 2.0)), None, second
        )
    english = second_of(FakeBackend(Script(), dims=replace(FAKE_DIMS, n_vocab=51864)))
    with pytest.raises(OptionError, match="reads 'en' alone; expected language 'en'"):
        transcriber_for(DirectRuntime(first), TOKENIZER, TranscribeOptions(), None, english)
    transcriber = transcriber_for(DirectRuntime(first), TOKENIZER, ENGLISH, None, second)
    point = ResumePoint(TranscriptionState(), (), True, None, SeekPlace(0, 0, 0.0, 0))
    with Recording(rustle(3.0)) as recording, pytest.raises(OptionError, match="expected no second model"):
        FileTranscription(transcriber, recording, resume=point)
