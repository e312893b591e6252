"""The end of a turn: the pause that ends it, what a pause changes in a session, and what the decoder says."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.vad import VadStream
from sottovoce.decoding.filters import mark_kind
from sottovoce.errors import OptionError
from sottovoce.options.decoding import VadStreamOptions
from sottovoce.streaming.options import (
    EAGERNESS,
    PAUSE_MS,
    USUAL_PAUSE_S,
    FittedTurnRule,
    LiveOptions,
    StreamOptions,
    TextEnd,
    vad_with_pauses,
)
from sottovoce.streaming.session import Session
from sottovoce.types import SAMPLE_RATE, Event, Samples, SpeechEnded, SpeechStarted, TurnEnded
from tests.runtime.fake import FakeBackend
from tests.runtime.noting import Noting
from tests.streaming.sessions import TOKENIZER, finals_of, listen, said_words, spoken, words_of
from tests.streaming.speech import ToneDetector, backend, hear, say, silence
from tests.streaming.test_nano import clip

COMPLETE, BROKEN_OFF = TextEnd(0.95, 0.02, 0.02), TextEnd(0.05, 0.2, 0.05)


@dataclass(slots=True)
class Fixed:
    """A rule that ends every turn after the same pause, and keeps what it was asked."""

    seconds: float
    asked: list[TextEnd] = field(default_factory=list)

    def pause_s(self, text_end: TextEnd) -> float:
        self.asked.append(text_end)
        return self.seconds

    def probability(self, text_end: TextEnd, pause_s: float) -> float:
        return round(pause_s, 3) / 10


def turns(rule: Fixed, model: FakeBackend | None = None, runtime: Noting | None = None) -> Session:
    options = LiveOptions(("en",), stream=StreamOptions(turns=rule))
    vad = VadStream(vad_with_pauses(True), model=ToneDetector())
    return Session(model or backend(), TOKENIZER, options, vad=vad, runtime=runtime)


def talk(*pauses_s: float) -> tuple[Samples, list[str]]:
    """Audio of six words before each pause, and the words; a word has 0.1 s of silence after it."""
    words = spoken("en", 6 * len(pauses_s))
    parts = [silence(0.512)]
    for number, pause_s in enumerate(pauses_s):
        parts += [say(words[6 * number : 6 * number + 6]), silence(pause_s - 0.1)]
    return np.concatenate(parts), words


def of(kind: type[Event], events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", EAGERNESS.values())
def test_a_turn_ends_sooner_where_what_was_said_is_complete(rule: FittedTurnRule) -> None:
    assert rule.least_s <= rule.pause_s(COMPLETE) < rule.pause_s(BROKEN_OFF) <= rule.most_s


def test_a_higher_eagerness_ends_a_turn_sooner() -> None:
    middling = TextEnd(0.6, 0.1, 0.1)
    pauses = [EAGERNESS[name].pause_s(middling) for name in ("high", "medium", "low")]  # type: ignore[index]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1]


def test_the_pause_is_where_the_probability_reaches_the_threshold() -> None:
    rng = random.Random(0)
    for _ in range(50):
        text_end = TextEnd(*(rng.random() / 3 for _ in range(3)))
        rule = replace(EAGERNESS["medium"], least_s=0.0, most_s=1e9)  # type: ignore[type-var]
        assert rule.probability(text_end, rule.pause_s(text_end)) == pytest.approx(rule.threshold)


def test_a_turn_ends_after_the_pause_of_its_rule() -> None:
    for pause_s in (0.192, 0.3, 0.7, 1.4):
        audio, words = talk(2.0)
        events = listen(turns(Fixed(pause_s)), audio)
        (final,), (ended,), (turn,) = finals_of(events), of(SpeechEnded, events), of(TurnEnded, events)
        assert isinstance(ended, SpeechEnded)
        assert isinstance(turn, TurnEnded)
        assert words_of(events) == words
        end_s = 0.512 + 6 * 0.4 - 0.1
        assert ended.emission_time - end_s == pytest.approx(pause_s, abs=0.032)
        assert turn.probability == pytest.approx(pause_s / 10, abs=1e-3)
        assert (turn.at, turn.emission_time, turn.utterance) == (
            ended.at,
            ended.emission_time,
            final.utterance,
        )
        assert turn.seq == ended.seq + 1 == final.seq + 2


def test_a_pause_in_which_all_words_are_committed_costs_nothing() -> None:
    n_calls = []
    for pause_s in (1.0, 2.5):
        audio, words = talk(3.0)
        runtime = Noting(backend())
        events = listen(turns(Fixed(pause_s), runtime=runtime), audio)
        assert words_of(events) == words
        n_calls.append(len(runtime.done))
    assert n_calls[0] == n_calls[1]


def test_speech_that_goes_on_in_time_is_one_turn() -> None:
    audio, words = talk(0.6, 2.0)
    rule = Fixed(0.9)
    events = listen(turns(rule), audio)
    assert len(rule.asked) == 2, "both pauses were asked about"
    assert len(of(SpeechStarted, events)) == len(of(TurnEnded, events)) == len(finals_of(events)) == 1
    assert words_of(events) == words
    events = listen(turns(Fixed(0.4)), audio)
    assert len(of(SpeechStarted, events)) == len(of(TurnEnded, events)) == len(finals_of(events)) == 2
    assert words_of(events) == words


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(3))
def test_any_cutting_gives_the_same_turns(seed: int) -> None:
    audio, _ = talk(0.3, 1.0, 0.5, 2.0)
    whole = listen(turns(Fixed(0.6)), audio, len(audio))
    assert len(of(TurnEnded, whole)) == 2
    rng = random.Random(seed)
    live, events, at = turns(Fixed(0.6)), [], 0
    while at < len(audio):
        n = rng.choice([1, 160, 512, rng.randint(1, 40_000)])
        events += live.push(audio[at : at + n])
        at += n
    assert events + live.close() == whole


def test_the_end_of_the_audio_ends_a_turn() -> None:
    audio, words = talk(0.4)
    events = listen(turns(Fixed(2.0)), audio)
    (turn,) = of(TurnEnded, events)
    assert isinstance(turn, TurnEnded)
    assert turn.probability == pytest.approx(0.04, abs=0.004), "that of the pause so far"
    assert words_of(events) == words
    events = listen(turns(Fixed(2.0)), audio[: len(audio) - round(0.35 * SAMPLE_RATE)])
    assert len(of(SpeechEnded, events)) == 1
    assert not of(TurnEnded, events), "nothing was asked"


def test_being_asked_leaves_the_transcript_as_it_is() -> None:
    """A rule that is asked and does not end the turn, beside one that is not asked."""
    audio, _ = talk(0.4, 0.4, 2.0)
    events = listen(turns(Fixed(0.8)), audio)
    options = LiveOptions(("en",))
    plain = VadStream(VadStreamOptions(hangover_ms=800.0), model=ToneDetector())
    others = listen(Session(backend(), TOKENIZER, options, vad=plain), audio)
    assert [word.word for word in said_words(events)] == [word.word for word in said_words(others)]
    assert "".join(f.text for f in finals_of(events)) == "".join(f.text for f in finals_of(others))


def test_a_pause_of_which_nothing_is_known_is_the_usual_one() -> None:
    class Failing(FakeBackend):
        fails = False

        def encode_incremental(self, windows):  # type: ignore[no-untyped-def]
            if self.fails:
                raise RuntimeError("out of memory")
            return super().encode_incremental(windows)

    audio, _ = talk(2.0)
    model = Failing(hear)
    live = turns(Fixed(1.5), model)
    end = round((0.512 + 2.3) * SAMPLE_RATE)
    events = live.push(audio[:end])
    model.fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        live.push(audio[end : end + round(0.2 * SAMPLE_RATE)])
    model.fails = False
    events = live.push(audio[end + round(0.2 * SAMPLE_RATE) :])
    (ended,) = of(SpeechEnded, events)
    assert isinstance(ended, SpeechEnded)
    assert ended.emission_time == pytest.approx(0.512 + 2.3 + USUAL_PAUSE_S, abs=0.032)
    assert not of(TurnEnded, events)


def test_marks_are_of_two_kinds() -> None:
    assert [mark_kind(text) for text in (".", "?", '."', "。", "!", "।")] == [1] * 6
    assert [mark_kind(text) for text in (",", "...", "…", "-", "、", ":")] == [2] * 6
    assert [mark_kind(text) for text in ("a", "3.", "", "\ufffd")] == [0] * 4


def test_eagerness_needs_voice_activity_and_no_fixed_pause(model: Model) -> None:
    stream = StreamOptions(eagerness="medium")
    for vad, expected in (
        (False, "voice activity detection"),
        (VadStreamOptions(hangover_ms=300.0), "hangover_ms"),
    ):
        with pytest.raises(OptionError, match=expected):
            model.session("en", stream=stream, vad=vad)
    chosen = vad_with_pauses(VadStreamOptions(threshold=0.4))
    assert (chosen.threshold, chosen.hangover_ms) == (0.4, PAUSE_MS)
    with pytest.raises(OptionError, match="eagerness"):
        StreamOptions(eagerness="eager")  # type: ignore[arg-type]


def test_nano_ends_a_turn_where_a_sentence_ends(model: Model) -> None:
    """A sentence that is read to its end, and the same broken off in its middle."""
    audio = clip("en")
    rule = Fixed(9.0)
    asked = []
    for part in (audio, audio[: len(audio) // 2]):
        live = model.session("en", switching="off", stream=StreamOptions(turns=rule))
        live.push(np.concatenate([part, silence(1.0)]))
        asked.append(rule.asked[-1])
    whole, half = asked
    assert whole.sentence_mark + whole.other_mark + whole.end_of_text <= 1.0 + 1e-5
    assert whole.sentence_mark > half.sentence_mark
    live = model.session("en", stream=StreamOptions(eagerness="medium"))
    events = live.push(np.concatenate([audio, silence(3.5)]))
    (turn,) = of(TurnEnded, events)
    assert isinstance(turn, TurnEnded)
    assert turn.emission_time - turn.at < 1.0
