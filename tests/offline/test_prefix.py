"""What the user gives as the beginning of the text: it stands there, once, with the times of its words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sottovoce.audio.recording import Recording
from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import Samples, Segment
from tests.backends.fake import FakeBackend, Script
from tests.offline.test_longform import HELLO, PAIRS, TOKENIZER, WORLD, Loud, at, rustle, script, silence
from tests.offline.transcribing import transcribe

HELLO_FIRST = TranscribeOptions(decoding=DecodingOptions(language="en", prefix="hello"), read_again=False)


def read(said: Script, samples: Samples, options: TranscribeOptions) -> list[Segment]:
    with Recording(samples) as recording:
        backend = FakeBackend(said)
        return list(transcribe(backend, TOKENIZER, recording, options, speech_model=Loud()))


@pytest.mark.parametrize("prefix", ["hello", " hello ", (HELLO,)])
def test_the_text_begins_with_the_prefix(prefix: str | tuple[int, ...]) -> None:
    """The scripted model goes on behind it; in the second window it says all of it itself."""
    options = replace(HELLO_FIRST, decoding=DecodingOptions(language="en", prefix=prefix))
    segments = read(PAIRS, rustle(9.0), options)
    assert [segment.text for segment in segments] == [" hello", " world", " hello", " world"]
    assert [(segment.start, segment.end) for segment in segments[:2]] == [(0, 2), (2, 5)]
    assert segments[0].tokens == (at(0), HELLO, at(2))


def test_a_prefix_that_the_model_hears_nowhere_stands_all_the_same() -> None:
    decoding = DecodingOptions(language="en", prefix="As he put it: hello")
    first, *_ = read(PAIRS, rustle(4.0), TranscribeOptions(decoding=decoding))
    assert first.text.startswith(" As he put it: hello")


def test_a_prefix_stands_without_timestamps_too() -> None:
    decoding = DecodingOptions(language="en", prefix="hello", without_timestamps=True)
    segments = read(PAIRS, rustle(4.0), replace(HELLO_FIRST, decoding=decoding))
    assert [segment.text for segment in segments] == [" hello world"]


def test_words_of_a_prefix_are_timed() -> None:
    first, *_ = read(PAIRS, rustle(4.0), replace(HELLO_FIRST, word_timestamps=True))
    assert first.words is not None
    (word,) = first.words
    assert word.word == " hello"
    assert first.start <= word.start < word.end <= first.end


def test_silence_does_not_use_a_prefix_up() -> None:
    """Nothing is said in the first window: the text begins in the second one."""
    windows = iter([Script(), script(at(0), HELLO, at(2), at(2), WORLD, at(4))])
    backend = FakeBackend(lambda *_: next(windows))
    with Recording(rustle(34.0)) as recording:
        segments = list(transcribe(backend, TOKENIZER, recording, HELLO_FIRST))
    assert [segment.text for segment in segments] == [" hello", " world"]
    assert segments[0].tokens == (at(0), HELLO, at(2))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_of_windows_of_speech_the_first_begins_with_it(batch_size: int) -> None:
    samples = silence(120.0)
    samples[: 25 * 16_000] = samples[60 * 16_000 : 85 * 16_000] = 0.1
    options = replace(HELLO_FIRST, mode="vad", batch_size=batch_size)
    said = read(script(at(0), WORLD, WORLD, at(24)), samples, options)
    assert [segment.text for segment in said] == [" hello world", " world world"]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_window_read_in_halves_keeps_its_prefix(batch_size: int) -> None:
    """The first window has too little text for its speech: what counts are its halves."""
    samples = silence(31.0)
    for start in (1, 11, 21):
        samples[start * 16_000 : (start + 8) * 16_000] = 0.1
    options = replace(HELLO_FIRST, mode="vad", batch_size=batch_size)
    said = read(script(at(0), HELLO, at(26)), samples, options)
    assert [segment.text for segment in said] == [" hello"] * 3
    assert said[0].tokens[:2] == (at(0), HELLO)


def test_a_prefix_longer_than_half_of_the_context_is_refused() -> None:
    decoding = DecodingOptions(language="en", prefix="hello " * 300)
    with pytest.raises(OptionError, match="prefix: expected at most 223 tokens, got 300"):
        read(PAIRS, rustle(4.0), TranscribeOptions(decoding=decoding))
