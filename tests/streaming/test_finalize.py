"""`Session.finalize`: what was heard is said at once, and the session goes on with what it knows."""

from __future__ import annotations

import numpy as np

from sottovoce.types import SAMPLE_RATE, Event, Final
from tests.streaming.sessions import changes_of, listen, session, words_of
from tests.streaming.speech import WORDS, say, silence

WORDS_OF_EN = WORDS["en"]


def finals(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Final)]


def test_all_that_was_heard_is_said_and_nothing_twice() -> None:
    first, second = say(WORDS_OF_EN[:5]), say(WORDS_OF_EN[5:])
    live = session(["en"], switching="off")
    before = live.push(first)
    at_once = live.finalize()
    after = listen(live, np.concatenate([second, silence(1.0)]))
    assert len(words_of(before)) < 5, "some words wait"
    assert words_of([*before, *at_once]) == WORDS_OF_EN[:5]
    assert words_of(after) == WORDS_OF_EN[5:]
    assert finals([*before, *at_once]) == [" ".join(WORDS_OF_EN[:5])]
    assert finals(after) == [" ".join(WORDS_OF_EN[5:])]
    events = [*before, *at_once, *after]
    assert [event.seq for event in events] == list(range(len(events)))


def test_the_language_stays_known() -> None:
    live = session()
    events = live.push(say(WORDS["de"][:6])) + live.finalize()
    following = listen(live, np.concatenate([say(WORDS["de"][6:]), silence(1.0)]))
    assert [change.target for change in changes_of(events)] == ["de"]
    assert changes_of(following) == []
    assert words_of(following) == WORDS["de"][6:]


def test_the_language_of_a_short_beginning_is_decided() -> None:
    live = session()
    events = live.push(say(WORDS["es"][:2])) + live.finalize()
    assert [change.target for change in changes_of(events)] == ["es"]
    assert words_of(events) == WORDS["es"][:2]


def test_nothing_is_said_in_a_pause_before_speech_and_after_the_end() -> None:
    live = session(["en"], switching="off")
    assert live.finalize() == []
    events = live.push(np.concatenate([say(WORDS_OF_EN[:3]), silence(3.0)]))
    assert words_of(events) == WORDS_OF_EN[:3]
    assert live.finalize() == []
    assert words_of(listen(live, say(WORDS_OF_EN[3:5]))) == WORDS_OF_EN[3:5]
    assert live.finalize() == []


def test_asking_again_and_again_loses_and_doubles_nothing() -> None:
    audio = np.concatenate([say(WORDS_OF_EN), silence(1.0)])
    step = round(0.8 * SAMPLE_RATE)  # two words and their gaps
    live = session(["en"], switching="off")
    events: list[Event] = []
    for start in range(0, len(audio), step):
        events += live.push(audio[start : start + step]) + live.finalize()
    assert words_of([*events, *live.close()]) == WORDS_OF_EN
