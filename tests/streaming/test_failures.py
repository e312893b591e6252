"""A model that fails in the middle: what was told comes with the next call, and speech goes on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sottovoce.audio.vad import VadStream
from sottovoce.language.probe import ProbeOptions
from sottovoce.runtime.calls import DecodeCall, LanguageProbeCall
from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.streaming.options import LiveOptions, StreamOptions
from sottovoce.streaming.session import Session
from sottovoce.types import Event, SpeechEnded, SpeechStarted
from tests.runtime.noting import ExhaustedError, Noting
from tests.speakers.somebody import OneVoice, Somebody, one_speaker
from tests.streaming.sessions import (
    ALIGNATT,
    TOKENIZER,
    changes_of,
    finals_of,
    spoken,
    words_of,
)
from tests.streaming.speech import ToneDetector, backend, say, silence

FIRST, SECOND = spoken("en", 9), spoken("en", 7, seed=1)
PAUSE_S = 1.5
AUDIO = np.concatenate([silence(0.5), say(FIRST), silence(PAUSE_S), say(SECOND), silence(1.0)])
MIXED = np.concatenate([silence(0.5), say(FIRST), say(spoken("de", 9)), silence(PAUSE_S), say(SECOND)])


def open_session(
    runtime: Noting, languages: Sequence[str] = ("en",), stream: StreamOptions = ALIGNATT
) -> Session:
    options = LiveOptions(tuple(languages), stream=stream, probe=ProbeOptions(1.0, 0.25, 0.25))
    return Session(backend(), TOKENIZER, options, vad=VadStream(model=ToneDetector()), runtime=runtime)


def listen(live: Session, audio: np.ndarray, chunk: int = 8000) -> tuple[list[Event], int]:
    """Every event, and how many calls failed; the caller goes on after each."""
    events: list[Event] = []
    n_failed = 0
    pieces = [audio[start : start + chunk] for start in range(0, len(audio), chunk)]
    for piece in [*pieces, None, None]:
        try:
            events += live.close() if piece is None else live.push(piece)
        except ExhaustedError:
            n_failed += 1
    return events, n_failed


def n_works(audio: np.ndarray, chunk: int = 8000) -> int:
    runtime = Noting(backend())
    listen(open_session(runtime), audio, chunk)
    return len(runtime.done)


def assert_sound(events: Sequence[Event]) -> None:
    assert [event.seq for event in events] == list(range(len(events)))
    kinds = [type(event) for event in events if isinstance(event, SpeechStarted | SpeechEnded)]
    assert kinds == [SpeechStarted, SpeechEnded] * 2
    assert words_of(events) == " ".join(final.text for final in finals_of(events)).split()


@pytest.mark.long
def test_a_failure_loses_no_word_but_those_left_at_the_end_of_an_utterance() -> None:
    whole = FIRST + SECOND
    for failing in range(0, n_works(AUDIO), 9):
        runtime = Noting(backend(), failing=[failing])
        events, n_failed = listen(open_session(runtime), AUDIO)
        assert n_failed == 1
        assert_sound(events)
        words = words_of(events)
        lost = len(whole) - len(words)
        assert lost <= 3, "only the end of an utterance is ever left to be read out"
        if lost:
            first = next((i for i, word in enumerate(whole) if words[i : i + 1] != [word]), len(whole))
            assert words == whole[:first] + whole[first + lost :]
            assert first + lost in (len(FIRST), len(whole)), "the end of an utterance"


@pytest.mark.quick(2)
@pytest.mark.parametrize("failing", range(0, 40, 9))
def test_a_failure_while_languages_are_followed_loses_no_more(failing: int) -> None:
    events, n_failed = listen(open_session(Noting(backend(), failing=[failing]), ("en", "de")), MIXED)
    assert n_failed == 1
    assert_sound(events)
    whole = [*FIRST, *spoken("de", 9), *SECOND]
    words = words_of(events)
    assert len(whole) - len(words) <= 4
    rest = iter(whole)
    assert all(word in rest for word in words), "in order, and none twice"
    assert {change.target for change in changes_of(events)} == {"en", "de"}


@pytest.mark.parametrize(
    ("part", "method"),
    [(Somebody, "activity"), (OneVoice, "embed"), (LiveSpeakers, "label"), (LiveSpeakers, "relabel")],
)
def test_a_speaker_labeller_that_never_works_costs_labels_only(
    part: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ExhaustedError

    monkeypatch.setattr(part, method, fail)
    vad, options = VadStream(model=ToneDetector()), LiveOptions(("en",), stream=ALIGNATT)
    session = Session(backend(), TOKENIZER, options, vad=vad, speakers=one_speaker())
    events, n_failed = listen(session, AUDIO)
    assert n_failed >= 1
    assert_sound(events)
    assert words_of(events) == FIRST + SECOND


def test_what_went_before_a_failure_comes_with_the_next_call() -> None:
    """In one call the start of speech and some words came before the failure, and others after it."""
    runtime = Noting(backend(), failing=[9])
    live = open_session(runtime)
    with pytest.raises(ExhaustedError):
        live.push(AUDIO)
    events = live.push(np.zeros(0, np.float32))
    assert isinstance(events[0], SpeechStarted)
    assert words_of(events + live.close()) == FIRST + SECOND


def test_what_was_committed_before_a_failure_at_the_end_comes_with_a_second_close() -> None:
    last = n_works(AUDIO[:-16000], len(AUDIO)) - 1
    live = open_session(Noting(backend(), failing=[last]))
    events = live.push(AUDIO[:-16000])
    with pytest.raises(ExhaustedError):
        live.close()
    rest = live.close()
    assert isinstance(rest[-1], SpeechEnded)
    words = words_of(events + rest)
    assert words == (FIRST + SECOND)[: len(words)]
    assert len(words) >= len(FIRST + SECOND) - 3
    assert finals_of(rest)[-1].text.split() == words[len(FIRST) :]
    assert live.close() == []


def test_a_model_that_never_works_says_nothing_and_breaks_nothing() -> None:
    live = open_session(Noting(backend(), failing=range(10_000)))
    events, n_failed = listen(live, AUDIO)
    assert n_failed > 5
    assert words_of(events) == []
    assert [type(event) for event in events] == [SpeechStarted, SpeechEnded] * 2


@pytest.mark.parametrize("seconds", [2.0, 5.0])
def test_who_is_late_gets_one_update(seconds: float) -> None:
    """Of the updates that fall into late samples the last one is done; no word is lost by that."""
    words = spoken("en", 20)
    audio, late = say(words), round(seconds * 16000)
    runtimes = [Noting(backend()), Noting(backend())]
    plain, newest = (
        Session(backend(), TOKENIZER, LiveOptions(("en",), stream=ALIGNATT), runtime=runtime)
        for runtime in runtimes
    )
    events = newest.push(audio[:late], newest_only=True)
    assert len([call for call in runtimes[1].done if isinstance(call, DecodeCall)]) == 1
    assert {event.emission_time for event in events if not isinstance(event, SpeechStarted)} == {seconds}
    in_time = plain.push(audio[:late])
    assert len([call for call in runtimes[0].done if isinstance(call, DecodeCall)]) > seconds
    assert words_of(events) == words_of(in_time), "the last update reads all that the others would have"
    for live, said in ((newest, events), (plain, in_time)):
        assert words_of(said + live.push(audio[late:]) + live.close()) == words


def test_a_change_whose_border_cannot_be_probed_is_told_all_the_same() -> None:
    usual = Noting(backend())
    undisturbed, _ = listen(open_session(usual, ("en", "de")), MIXED)
    boundaries = [
        index
        for index, call in enumerate(usual.done)
        if isinstance(call, LanguageProbeCall) and len(call.log_mels) > 1
    ]
    assert boundaries
    events, n_failed = listen(open_session(Noting(backend(), failing=boundaries[:1]), ("en", "de")), MIXED)
    assert n_failed == 1
    assert [change.target for change in changes_of(events)] == [
        change.target for change in changes_of(undisturbed)
    ]
    assert_sound(events)


def test_a_busy_machine_decodes_updates_greedily_and_the_end_with_its_beam() -> None:
    """What one beam commits is committed; the end of the utterance is searched as ever."""
    runtime = Noting(backend())

    def sizes() -> set[int]:
        calls, runtime.done = runtime.done, []
        return {call.decoder.beam_size for call in calls if isinstance(call, DecodeCall)}

    live = Session(backend(), TOKENIZER, LiveOptions(("en",)), runtime=runtime)
    words = spoken("en", 8)
    audio = say(words)
    events = live.push(audio, greedy=True)
    assert sizes() == {1}
    events += live.close()
    assert sizes() == {5}
    assert words_of(events) == words


@pytest.mark.parametrize("languages", [("en",), ("en", "de")])
def test_an_update_is_one_request(languages: Sequence[str]) -> None:
    """Its language, states and text need one another: the session waits for all of them once."""
    runtime = Noting(backend())
    live = open_session(runtime, languages)
    n_of_pushes = []
    for at in range(0, len(MIXED), round(0.4 * 16000)):  # of an update each
        runtime.n_requests = 0
        live.push(MIXED[at : at + round(0.4 * 16000)])
        n_of_pushes.append(runtime.n_requests)
    assert max(n_of_pushes) <= 2, "an update, and the end of the utterance"
    assert len(runtime.done) >= 2 * sum(n_of_pushes)
