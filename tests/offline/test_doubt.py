"""Text that is too little for its speech, or repeats itself: the window is read again in halves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sottovoce.decoding.decode import DecodingResult
from sottovoce.offline.verify import is_too_little, split_retry
from sottovoce.offline.windows import SpeechSpan, Window, WindowCut
from sottovoce.options.decoding import FallbackOptions, is_silence
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import Segment
from tests.offline.transcribing import ENGLISH, HELLO, TOKENIZER, at, read, script, voice
from tests.runtime.fake import Script, ScriptedToken, SpokenLanguage

EOT = TOKENIZER.eot


@pytest.mark.parametrize(
    ("length_s", "n_tokens", "is_little"),
    [(20.0, 10, True), (20.0, 21, False), (5.0, 1, False), (20.0, 0, False)],
)
def test_speech_has_some_tokens_a_second(length_s: float, n_tokens: int, is_little: bool) -> None:
    segment = Segment(0, 1.0, 1.0 + length_s, "", "en", (EOT + 1, *[HELLO] * n_tokens, EOT + 1))
    assert is_too_little(segment, EOT, 6.0, 1.0) is is_little


def test_halves_hold_all_pieces() -> None:
    window = Window((SpeechSpan(0, 100), SpeechSpan(200, 700), SpeechSpan(800, 900), SpeechSpan(950, 1000)))
    first, second = window.halves()
    assert first.pieces + second.pieces == window.pieces
    assert first.n_frames == 600
    assert first.is_suspicious
    assert second.is_suspicious
    assert not window.is_suspicious
    two = Window(window.pieces[:2])
    assert [len(half.pieces) for half in two.halves()] == [1, 1]


THREE_TIMES = voice(31.0, (1, 9), (11, 19), (21, 29))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_sentence_that_is_said_again_is_written_again(batch_size: int) -> None:
    """The model writes it once for all of a window, whatever is in it."""
    options: TranscribeOptions = replace(ENGLISH, mode="vad", batch_size=batch_size)
    said = read(script(at(0), HELLO, at(26)), THREE_TIMES, options)
    assert [item.text for item in said] == [" hello"] * 3
    assert [round(item.start) for item in said] == [1, 11, 21]
    assert [item.id for item in said] == [0, 1, 2]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_what_is_said_again_is_no_loop(batch_size: int) -> None:
    """All of it is written, and read in halves rather than drawn until it no longer repeats itself."""
    hellos = tuple(ScriptedToken(HELLO, 50 + 100 * index) for index in range(13))
    spoken = Script((ScriptedToken(at(0), 0), *hellos), (SpokenLanguage("en", 0, 1500),))
    options: TranscribeOptions = replace(ENGLISH, mode="vad", batch_size=batch_size)
    said = read(spoken, THREE_TIMES, options)
    assert "".join(item.text for item in said) == " hello" * 12
    assert {item.temperature for item in said} == {0.0}
    assert max(item.compression_ratio for item in said) < 2.4


def reading(*, ratio: float = 1.0, no_speech: float = 0.0) -> DecodingResult:
    return DecodingResult("en", (HELLO,) * 60, "", -0.3, no_speech, 0.0, ratio)


def kept(end_s: float) -> WindowCut:
    return WindowCut((Segment(0, 0.0, end_s, "", "en", (HELLO,) * 60),), round(100 * end_s))


TWO = Window((SpeechSpan(0, 400), SpeechSpan(500, 900)))


@pytest.mark.parametrize(
    ("window", "result", "cut", "is_halved"),
    [
        (TWO, reading(), kept(8.0), False),
        (TWO, reading(ratio=3.0), kept(8.0), True),
        (TWO, reading(ratio=3.0, no_speech=0.9), WindowCut((), 800), True),
        (TWO, reading(), kept(5.0), False),
        (replace(TWO, is_suspicious=True), reading(), kept(5.0), True),
        (replace(TWO, is_suspicious=True), reading(), kept(7.0), False),
        (Window((SpeechSpan(0, 800),)), reading(ratio=3.0), kept(8.0), False),
        (Window((SpeechSpan(0, 200), SpeechSpan(300, 600))), reading(ratio=3.0), kept(5.0), False),
    ],
    ids=["fits", "repeats", "silent", "stops early", "half stops early", "half ends", "one piece", "short"],
)
def test_what_is_read_in_halves(
    window: Window, result: DecodingResult, cut: WindowCut, is_halved: bool
) -> None:
    assert bool(split_retry(window, result, cut, FallbackOptions(), EOT)) is is_halved


def test_halves_of_silence_may_be_silence_too() -> None:
    silent = split_retry(TWO, reading(ratio=3.0, no_speech=0.9), kept(8.0), FallbackOptions(), EOT)
    spoken = split_retry(TWO, reading(ratio=3.0), kept(8.0), FallbackOptions(), EOT)
    assert [half.may_be_silent for half in (*silent, *spoken)] == [True, True, False, False]
    window = Window(silent[0].pieces * 2, is_suspicious=True, may_be_silent=True)
    assert all(quarter.may_be_silent for quarter in window.halves())


@pytest.mark.parametrize(
    ("no_speech", "threshold", "is_silent"), [(0.7, 0.6, True), (0.5, 0.6, False), (0.7, None, False)]
)
def test_a_probable_silence_needs_a_threshold(
    no_speech: float, threshold: float | None, is_silent: bool
) -> None:
    assert is_silence(no_speech, threshold) is is_silent
    assert not is_silence(no_speech, threshold, avg_logprob=-0.3, logprob_threshold=-1.0)
