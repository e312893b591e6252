"""Readings that lose the thread and do not find it again: words that earlier ones agreed on are said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.streaming.commit_policy import Agreement, CommitPolicy, HypothesisWord
from sottovoce.streaming.options import CommitOptions, StreamOptions, Switching
from sottovoce.streaming.session import Session
from sottovoce.types import SAMPLE_RATE, Event, Samples, Word
from tests.runtime.fake import FakeBackend
from tests.streaming.sessions import blank_window, finals_of, said_words, session, spoken, text, words_of
from tests.streaming.speech import hear, say, silence

NEVER = CommitOptions(commit_prob=2.0, agreed_s=1e6)
"""No word is safe before the end."""
WAITING = StreamOptions(chunk_s=0.5, commit=NEVER, rewind_threshold=50)
WORDS = spoken("en", 20)  # 8 s; word i is attended to at 0.15 + 0.4 i s
TWICE, ONCE = 6, 1
"""Words that the updates at 2.5 and 3.0 s read (up to 0.3 s from the end), and those of the second alone."""
SWITCHINGS = pytest.mark.parametrize("switching", ["off", "restart"])


class Losing(FakeBackend):
    """Jumps back in the audio while it is lost, and names no end."""

    is_lost = False

    def _say(self, heard, context, logits):  # type: ignore[no-untyped-def]
        frame = super()._say(heard, context, logits)
        return 0 if self.is_lost and frame > 100 else frame


def waiting(model: FakeBackend, switching: Switching = "off", stream: StreamOptions = WAITING) -> Session:
    languages = ("en",) if switching == "off" else ("en", "de")
    return session(languages, vad=False, model=model, switching=switching, stream=stream)


def push(live: Session, audio: Samples, from_s: float, until_s: float) -> list[Event]:
    return live.push(audio[round(from_s * SAMPLE_RATE) : round(until_s * SAMPLE_RATE)])


@SWITCHINGS
@pytest.mark.parametrize("lost_s", [0.0, 0.4, 1.5])
def test_agreed_words_survive_a_lost_end_and_others_do_not(switching: Switching, lost_s: float) -> None:
    """Whether the last updates were lost too, or the readings of the end alone."""
    model, audio = Losing(hear), say(WORDS)
    live = waiting(model, switching)
    events = push(live, audio, 0.0, 3.0)
    model.is_lost = True
    events += push(live, audio, 3.0, 3.0 + lost_s)
    assert words_of(events) == []
    events += live.close()
    assert words_of(events) == WORDS[:TWICE]
    assert finals_of(events)[-1].text == " ".join(WORDS[:TWICE])
    for place, word in enumerate(said_words(events)):
        assert abs(word.start - 0.4 * place) < 0.3


@SWITCHINGS
def test_words_that_were_read_once_are_given_up(switching: Switching) -> None:
    model, audio = Losing(hear), say(WORDS)
    live = waiting(model, switching, replace(WAITING, chunk_s=3.0))
    events = push(live, audio, 0.0, 3.0)
    model.is_lost = True
    assert words_of(events + live.close()) == []


@pytest.mark.parametrize(
    ("n_words", "lost", "n_said"),
    [
        (20, [(3.0, 3.5, True), (3.5, 4.0, False), (4.0, 4.5, True)], TWICE + ONCE),
        (10, [(3.0, 4.0, True), (4.0, 4.0, False)], 10),
    ],
    ids=["the readings at 3.0 and 4.0 s had them", "an end that finds its way decides"],
)
def test_a_lost_update_takes_nothing_back_and_no_word_comes_twice(
    n_words: int, lost: list[tuple[float, float, bool]], n_said: int
) -> None:
    model, audio = Losing(hear), say(WORDS[:n_words])
    live = waiting(model)
    push(live, audio, 0.0, 3.0)
    for from_s, until_s, is_lost in lost:
        model.is_lost = is_lost
        push(live, audio, from_s, until_s)
    assert words_of(live.close()) == WORDS[:n_said]


@pytest.mark.parametrize("commit_prob", [0.7, 2.0])
def test_speech_goes_on_behind_agreed_words(commit_prob: float) -> None:
    """What was given up is still heard, and read when the thread is found; nothing is said twice."""
    stream = replace(WAITING, commit=replace(NEVER, commit_prob=commit_prob))
    model, audio = Losing(hear), np.concatenate([say(WORDS[:10]), silence(0.5), say(["man", "way"])])
    live = waiting(model, stream=stream)
    events = push(live, audio, 0.0, 3.0)
    model.is_lost = True
    events += push(live, audio, 3.0, 4.0) + live.finalize()
    assert words_of(events)[:TWICE] == WORDS[:TWICE]
    model.is_lost = False
    events += push(live, audio, 4.0, 99.0) + live.close()
    assert words_of(events) == [*WORDS[:10], "man", "way"]


def test_agreed_words_are_said_before_their_audio_is_let_go() -> None:
    """Lost for longer than audio without words is kept."""
    model = Losing(hear)
    audio = say([*WORDS, *spoken("en", 20, seed=1)])
    live = waiting(model)
    push(live, audio, 0.0, 3.0)
    model.is_lost = True
    events = push(live, audio, 3.0, 16.0)
    assert words_of(events) == WORDS[:TWICE]


def read(*words: str) -> list[HypothesisWord]:
    return [HypothesisWord(Word(f" {word}", i, i + 0.5, 0.1), (i,), 25 * i) for i, word in enumerate(words)]


def agreed_on(*words: str) -> Agreement:
    """Words that two hypotheses had."""
    agreement = Agreement(NEVER, 0.0)
    for n_frames in (400, 425):
        assert agreement.add(read(*words), blank_window(n_frames)) == 0
    return agreement


def taken(agreement: Agreement) -> list[str]:
    return text([each.word for each in agreement.take_agreed()])


@pytest.mark.parametrize(
    ("then", "left"), [(["a", "x", "c"], ["a"]), (["a", "b", "c"], ["a", "b"]), (["x", "b"], []), ([], [])]
)
def test_a_reading_that_finds_its_way_decides_what_is_agreed(then: list[str], left: list[str]) -> None:
    agreement = agreed_on("a", "b")
    agreement.add(read(*then), blank_window(450))
    assert taken(agreement) == left
    assert taken(agreement) == []


@pytest.mark.parametrize(
    ("said", "left"), [([], ["a", "b", "c"]), (["A,"], ["b", "c"]), (["x"], []), (["a", "b", "c", "d"], [])]
)
def test_of_a_lost_reading_only_what_it_said_counts(said: list[str], left: list[str]) -> None:
    agreement = agreed_on("a", "b", "c")
    agreement.add(read(*said, "lost"), blank_window(450), is_stuck=True)
    agreement.drop_committed(read(*said))
    assert taken(agreement) == left


def test_only_words_of_the_audio_that_is_given_up_are_taken_behind_the_committed_ones() -> None:
    policy = CommitPolicy(WAITING)
    for n_frames in (100, 125):
        policy._agreement.add(read("a", "b", "c"), blank_window(n_frames))
    words = [each.word for each in policy.take_agreed(0.7, 1.4)]
    assert [(word.start, word.end) for word in words] == [(0.7, 0.7), (1.0, 1.5)]
    assert policy.take_agreed(0.0, 99.0) == []
