"""Invented text: improbable segments in silence, and words at times when nobody speaks, are left out, and
no others.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.audio.vad import SileroState, SpeechFinder
from sottovoce.offline.verify import (
    SpeechPresence,
    WindowSpan,
    anomaly_score,
    is_anomaly,
    skip_hallucinations,
)
from sottovoce.offline.windows import WindowCut
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import Floats, Samples, Segment, Word
from tests.offline.transcribing import HELLO, WORLD, Loud, at, read, script, voice
from tests.runtime.fake import Script, ScriptedToken, SpokenLanguage

SPAN = WindowSpan(start=0.0, end=30.0, full_end=30.0, last_speech=0.0)


def said(start: float, end: float, probability: float, n_words: int = 4) -> Segment:
    step = (end - start) / n_words
    words = [Word(" w", start + i * step, start + (i + 1) * step, probability) for i in range(n_words)]
    return Segment(0, start, end, " w" * n_words, "en", (1,) * n_words, words=tuple(words))


def skipped(*segments: Segment, end_frame: int | None = None) -> WindowCut:
    """What remains of a window after which one would go on at frame 2900."""
    return skip_hallucinations(WindowCut(segments, 2900), SPAN, 2.0, end_by=lambda _: end_frame)


def test_scores_add_up() -> None:
    assert anomaly_score(Word("a", 0.0, 0.5, 0.9)) == 0.0
    assert anomaly_score(Word("a", 0.0, 0.5, 0.1)) == 1.0
    assert anomaly_score(Word("a", 0.0, 0.033, 0.9)) == pytest.approx(1.5)
    assert anomaly_score(Word("a", 0.0, 3.0, 0.1)) == pytest.approx(2.0)
    assert not is_anomaly([])
    assert is_anomaly(said(0, 2, 0.05).words or ())
    assert not is_anomaly(said(0, 2, 0.8).words or ())


def test_ordinary_speech_is_kept() -> None:
    segments = said(1, 3, 0.9), said(4, 6, 0.8)
    assert skipped(*segments) == WindowCut(segments, 2900)


def test_an_improbable_beginning_after_silence_restarts_there() -> None:
    assert skipped(said(5, 7, 0.05), said(8, 9, 0.9)) == WindowCut((), 500, restarts=True)


def test_an_improbable_segment_between_silences_is_dropped_with_the_rest() -> None:
    first, *rest = said(0, 3, 0.9), said(10, 12, 0.05), said(20, 22, 0.9)
    assert skipped(first, *rest) == WindowCut((first,), 1000)
    assert skipped(first, *rest, end_frame=1350) == WindowCut((first,), 1350)  # nothing but silence is left


def test_an_improbable_segment_within_speech_is_kept() -> None:
    segments = said(0, 10, 0.9), said(10, 12, 0.05), said(12, 15, 0.9)
    assert skipped(*segments).segments == segments


ENGLISH = TranscribeOptions(decoding=DecodingOptions(language="en"))
PAIR = (at(0), HELLO, at(4), at(4), WORLD, at(8))


@pytest.mark.parametrize(
    ("start", "end", "is_in"),
    [(0.0, 1.5, False), (0.0, 1.8, True), (2.2, 2.4, True), (3.2, 4.0, True), (3.5, 5.0, False)],
)
def test_a_voice_is_heard_in_a_segment_and_close_around_it(start: float, end: float, is_in: bool) -> None:
    speech = SpeechFinder(model=Loud())
    voices = SpeechPresence(speech)
    speech.push(voice(6.0, (2.0, 3.0)))
    assert voices.has_speech(Segment(0, start, end, " hello", "en")) == is_in


class Graded(Loud):
    """A speech model that is as sure of speech as the samples are far from zero."""

    def probabilities(self, samples: Samples, state: SileroState) -> tuple[Floats, SileroState]:
        return np.abs(samples.reshape(-1, 512)).max(axis=1), state


@pytest.mark.parametrize(
    ("sureness", "is_in", "is_in_guess"), [(0.1, False, False), (0.55, True, False), (0.95, True, True)]
)
def test_an_improbable_text_needs_a_clear_voice(sureness: float, is_in: bool, is_in_guess: bool) -> None:
    speech = SpeechFinder(model=Graded())
    voices = SpeechPresence(speech)
    speech.push(10 * sureness * voice(6.0, (2.0, 3.0)))
    segment = Segment(0, 1.5, 3.5, " water", "en")
    assert voices.has_speech(segment) == is_in
    assert voices.has_speech(segment, is_guess=True) == is_in_guess


@pytest.mark.parametrize(("end", "is_short"), [(2.1, True), (2.5, False), (3.0, False)])
def test_nobody_says_a_sentence_in_a_moment(end: float, is_short: bool) -> None:
    speech = SpeechFinder(model=Loud())
    voices = SpeechPresence(speech)
    speech.push(voice(6.0, (2.0, end)))
    assert voices.exceeds_speech_rate(Segment(0, 1.8, 5.0, " seven words", "en")) == is_short


def texts(samples: Samples, options: TranscribeOptions) -> list[str]:
    return [item.text for item in read(script(*PAIR), samples, options)]


def test_words_that_nobody_said_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """The model writes a word for the first four seconds too, in which there is only noise."""
    caplog.set_level(logging.INFO)
    assert texts(voice(8.0, (5.0, 7.0)), replace(ENGLISH, normalization="window")) == [" world"]
    assert "nobody speaks from 0.0 to 4.0 s: 'hello' is left out" in caplog.text


@pytest.mark.parametrize("reads_again", [True, False])
def test_a_sentence_with_early_timestamps_is_kept_at_its_words_times(reads_again: bool) -> None:
    """The model writes that somebody speaks from 0 to 2 s; the words are aligned with 5 to 7 s."""
    tokens = (at(0), 0), (HELLO, 265), (at(1), 285), (at(1), 286), (WORLD, 340), (at(2), 355)
    mistimed = Script(tuple(ScriptedToken(*token) for token in tokens), (SpokenLanguage("en", 0, 1500),))
    result = read(mistimed, voice(8.0, (5.0, 7.0)), replace(ENGLISH, read_again=reads_again))
    assert [item.text for item in result] == [" hello", " world"]
    assert [item.words for item in result] == [None, None]
    starts = [5.0, 6.4] if reads_again else [0.0, 1.0]
    assert [item.start for item in result] == pytest.approx(starts, abs=0.1)


def test_with_openai_whisper_s_rules_they_stay() -> None:
    samples = voice(8.0, (5.0, 7.0))
    assert texts(samples, replace(ENGLISH, read_again=False)) == [" hello", " world"]


def test_a_word_at_the_very_end_is_heard() -> None:
    assert texts(voice(8.0, (0.5, 1.0), (7.8, 8.0)), ENGLISH) == [" hello", " world"]


@pytest.mark.parametrize(("reads_again", "second_s"), [(True, 29.4), (False, 30.0)])
def test_speech_that_a_window_s_end_divides_is_read_whole(reads_again: bool, second_s: float) -> None:
    """Half a second of it is in the first window, which writes nothing of it."""
    samples, options = voice(36.0, (0.2, 1.8), (29.5, 33.0)), replace(ENGLISH, read_again=reads_again)
    result = read(script(at(0), HELLO, at(4)), samples, options)
    assert [item.start for item in result][:2] == [0.0, pytest.approx(second_s, abs=0.1)]


def test_speech_that_was_written_up_to_the_end_is_not_read_twice() -> None:
    result = read(script(at(0), HELLO, at(29.8)), voice(36.0, (28.0, 33.0)), ENGLISH)
    assert [item.start for item in result][:2] == [0.0, 30.0]
