"""The second pass: each utterance has one final, with the text of a file, and partials are as without it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.vad import VadStream
from sottovoce.errors import OptionError
from sottovoce.formats.document import event_document
from sottovoce.offline import transcription
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.streaming.options import LiveOptions
from sottovoce.streaming.second_pass import ReadUtterance, SecondPass
from sottovoce.streaming.session import Session
from sottovoce.text.normalize import plain
from sottovoce.types import SAMPLE_RATE, Event, Partial, Samples, SpeechEnded, Word
from tests.streaming.sessions import ALIGNATT, TOKENIZER, changes_of, finals_of, listen, session
from tests.streaming.speech import WORDS, ToneDetector, backend, say, silence

TURNS = [WORDS["en"][:3], WORDS["en"][3:6], WORDS["en"][6:9], WORDS["en"][2:5]]
AUDIO = np.concatenate([part for turn in TURNS for part in (say(turn), silence(1.5))])
CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"


def read_as(text: str) -> ReadUtterance:
    return lambda pcm, start_s, committed, stopped: (Word(f" {text}", start_s, start_s + 1.0, 1.0, "en"),)


def failing(
    pcm: Samples, start_s: float, committed: Sequence[Word], stopped: threading.Event
) -> tuple[Word, ...] | None:
    raise ValueError("no text")


def never(
    pcm: Samples, start_s: float, committed: Sequence[Word], stopped: threading.Event
) -> tuple[Word, ...] | None:
    stopped.wait(60)
    return ()


def two_passes(read: ReadUtterance, wait_s: float = math.inf, *languages: str) -> Session:
    options = LiveOptions(languages=languages or ("en",), stream=ALIGNATT)
    vad, second_pass = VadStream(model=ToneDetector()), SecondPass(read, wait_s, max_pause_s=3.0)
    return Session(backend(), TOKENIZER, options, vad=vad, second_pass=second_pass)


def said(events: list[Event]) -> list[Partial]:
    return [replace(event, seq=0, utterance=None) for event in events if isinstance(event, Partial)]


@pytest.mark.parametrize(
    ("read", "wait_s", "realtime", "texts"),
    [
        (read_as("read"), math.inf, False, ["read"] * 4),
        (failing, math.inf, False, [" ".join(turn) for turn in TURNS]),
        (never, 0.0, True, [" ".join(turn) for turn in TURNS]),
    ],
)
def test_each_utterance_has_one_final(
    read: ReadUtterance, wait_s: float, realtime: bool, texts: list[str]
) -> None:
    live, before = two_passes(read, wait_s), listen(session(["en"], stream=ALIGNATT), AUDIO)
    events: list[Event] = []
    for start in range(0, len(AUDIO), 8000):
        events += live.push(AUDIO[start : start + 8000], realtime=realtime)
    events += live.close()
    finals = finals_of(events)
    assert [final.text for final in finals] == texts
    assert [final.utterance for final in finals] == [1, 2, 3, 4]
    assert [final.committed for final in finals] == [final.words for final in finals_of(before)]
    assert all(
        final.is_revised == final.is_read == (read is not failing and not realtime) for final in finals
    )
    assert said(events) == said(before)
    assert [event.seq for event in events] == list(range(len(events)))
    assert live.close() == []


@pytest.mark.parametrize("end", [Session.close, Session.discard])
def test_a_session_that_ends_early_stops_its_second_pass(end: Callable[[Session], object]) -> None:
    stops: list[threading.Event] = []

    def read(
        pcm: Samples, start_s: float, committed: Sequence[Word], stopped: threading.Event
    ) -> tuple[Word, ...] | None:
        stops.append(stopped)
        return never(pcm, start_s, committed, stopped)

    live = two_passes(read, 0.0)
    live.push(AUDIO[: 6 * SAMPLE_RATE])
    end(live)
    assert stops
    assert all(stopped.wait(10) for stopped in stops)


def test_a_change_of_language_ends_no_utterance() -> None:
    audio = np.concatenate([say(WORDS["en"]), say(WORDS["de"]), silence(1.5)])
    spans: list[float] = []

    def read(
        pcm: Samples, start_s: float, committed: Sequence[Word], stopped: threading.Event
    ) -> tuple[Word, ...] | None:
        spans.append(len(pcm) / SAMPLE_RATE)
        return read_as("read")(pcm, start_s, committed, stopped)

    events = listen(two_passes(read, math.inf, "en", "de"), audio)
    (final,) = finals_of(events)
    assert len(changes_of(events)) == 2
    assert {word.language for word in final.committed or ()} == {"en", "de"}
    assert spans == [pytest.approx(len(audio) / SAMPLE_RATE, abs=1.5)]


@pytest.mark.quick(1)
@pytest.mark.parametrize("chunk", [4000, 20_000])
def test_finals_are_the_text_of_their_audio_as_a_file(model: Model, chunk: int) -> None:
    """Bit by bit the partials of a session with committed finals, whatever the pieces."""
    audio = load_audio(CLIP, duration_s=6.0)
    heard: list[tuple[Samples, float]] = []
    live = model.session("en", finals="read", options=LiveOptions(final_wait_s=math.inf))
    assert live._second_pass is not None
    read = live._second_pass._read_utterance

    def noted(
        pcm: Samples, start_s: float, committed: Sequence[Word], stopped: threading.Event
    ) -> tuple[Word, ...] | None:
        heard.append((pcm, start_s))
        return read(pcm, start_s, committed, stopped)

    live._second_pass._read_utterance = noted
    events = listen(live, audio, chunk)
    finals = finals_of(events)
    assert said(events) == said(listen(model.session("en"), audio, 4000))
    assert len(heard) == len(finals) > 0
    assert all(final.is_read for final in finals)
    first, start_s = heard[0]
    whole = model.transcribe(first, language="en", word_timestamps=True).collect()
    assert finals[0].text == whole.text
    assert [word.start for word in finals[0].words] == [
        pytest.approx(word.start + start_s) for word in whole.words
    ]
    document = event_document(finals[0])
    assert document["read"] is True
    assert document["committed"]


def test_an_utterance_is_read_with_the_speech_before_a_pause(model: Model) -> None:
    """As in a file: no word is lost or doubled, and the whole recording is in the last window."""
    audio = load_audio(CLIP)
    parts = np.split(audio, [len(audio) // 2])
    paused = np.concatenate([parts[0], silence(1.0), parts[1], silence(1.0)])
    live = model.session("en", finals="read", options=LiveOptions(final_wait_s=math.inf))
    finals = finals_of(listen(live, paused))
    assert len(finals) > 1
    assert all(final.is_read for final in finals)
    starts = [word.start for final in finals for word in final.words]
    assert starts == sorted(starts)
    assert plain(" ".join(final.text for final in finals)) == plain(
        model.transcribe(paused, language="en").text
    )


@pytest.mark.parametrize("end", ["", ".", "..."])
def test_a_final_after_the_end_of_a_sentence_begins_with_a_capital(model: Model, end: str) -> None:
    """Also where the transcript of both utterances has one sentence."""
    audio, running = load_audio(CLIP), threading.Event()
    first, second = np.split(audio, [len(audio) // 2])
    options = model.options(TranscribeOptions(word_timestamps=True), language="en")
    reader = transcription.UtteranceTranscription(model.transcriber(options))
    whole = model.transcribe(audio, language="en", word_timestamps=True).words
    before = [word for word in whole if word.end < len(first) / SAMPLE_RATE]
    assert reader.words(first, 0.0, before, running)
    said = (*before[:-1], replace(before[-1], word=before[-1].word + end))
    reader._window[-1] = replace(reader._window[-1], words=said)
    revised = reader.words(second, len(first) / SAMPLE_RATE, whole[len(before) :], running)
    text = "".join(word.word for word in revised or ())
    rest = "".join(word.word for word in whole[len(before) :])
    assert rest == rest.lower()
    assert text == (" " + rest[1:].capitalize() if end == "." else rest)


def test_certain_words_are_not_read(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcription, "CERTAIN", 0.0)
    audio, options = load_audio(CLIP, duration_s=6.0), LiveOptions(final_wait_s=math.inf)
    finals = finals_of(listen(model.session("en", finals="read", options=options), audio))
    assert [final.words for final in finals] == [final.committed for final in finals]
    assert not any(final.is_read for final in finals)
    other = finals_of(listen(model.session("en", final_model=load_model("nano"), options=options), audio))
    assert all(final.is_read for final in other)


def test_words_that_are_not_read_are_the_prompt_of_the_next_reading(model: Model) -> None:
    """As the text before is in a file, after a pause that ends the window."""
    audio, running = load_audio(CLIP), threading.Event()
    first, second = np.split(audio, [len(audio) // 2])
    words = model.transcribe(first, language="en", word_timestamps=True).words
    certain = [replace(word, probability=1.0, tokens=()) for word in words]
    options = model.options(TranscribeOptions(word_timestamps=True), language="en")
    reader = transcription.UtteranceTranscription(model.transcriber(options), is_same_model=True)
    assert reader.words(first, 50.0, certain, running) is None
    revised = reader.words(second, 100.0, words, running)
    prompt = "".join(word.word for word in words)
    alone, prompted = (
        model.transcribe(
            second, language="en", options=TranscribeOptions(initial_prompt=text, word_timestamps=True)
        ).words
        for text in (None, prompt)
    )
    assert revised == tuple(replace(word, start=word.start + 100, end=word.end + 100) for word in prompted)
    assert prompted != alone


@pytest.mark.parametrize("name", ["nano", "ctc:nano"])
def test_another_model_reads_finals(model: Model, name: str) -> None:
    audio, other = load_audio(CLIP, duration_s=6.0), load_model(name)
    options = LiveOptions(final_wait_s=math.inf)
    events = listen(model.session("en", final_model=other, options=options), audio)
    assert all(final.is_read for final in finals_of(events))
    assert said(events) == said(listen(model.session("en"), audio))
    if name != "nano":
        with pytest.raises(OptionError, match="final_model: expected one language"):
            model.session(final_model=other)


def test_speech_goes_on_after_finalize_without_a_gap() -> None:
    spans: list[tuple[float, float]] = []

    def read(
        pcm: Samples, start_s: float, committed: Sequence[Word], stopped: threading.Event
    ) -> tuple[Word, ...] | None:
        spans.append((start_s, start_s + len(pcm) / SAMPLE_RATE))
        return read_as("read")(pcm, start_s, committed, stopped)

    live, audio = two_passes(read), np.concatenate([say(WORDS["en"]), silence(1.5)])
    half = len(audio) // 2
    events = live.push(audio[:half]) + live.finalize() + live.push(audio[half:]) + live.close()
    assert len(finals_of(events)) == len(spans) == 2
    assert spans[0][1] == spans[1][0]
    assert any(isinstance(event, SpeechEnded) for event in events)
