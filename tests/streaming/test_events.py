"""Events: numbered in order, under the utterance that they belong to, with finals where nobody pauses."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.formats.document import event_line
from sottovoce.streaming.live_session import EventEmitter
from sottovoce.streaming.options import LiveOptions, StreamOptions
from sottovoce.streaming.session import Session
from sottovoce.text.languages import SENTENCE_ENDS
from sottovoce.types import (
    Event,
    Final,
    Floats,
    Partial,
    SpeechEnded,
    SpeechStarted,
    Unstable,
    Word,
)
from tests.runtime.fake import FakeBackend, Script, ScriptedToken
from tests.speakers.somebody import one_speaker
from tests.streaming.sessions import ALIGNATT, TOKENIZER, finals_of, listen, session, spoken, words_of
from tests.streaming.speech import TOKEN_OF, WORDS, backend, hear, say, silence


def word(text: str, start: float, length: float = 0.4) -> Word:
    return Word(text, start, start + length, 0.9, "en")


def new_emitter(sentence_s: float = 10.0, longest_s: float = 30.0) -> EventEmitter:
    emitter = EventEmitter(sentence_s=sentence_s, longest_s=longest_s)
    emitter.emit(SpeechStarted(0.0, 0.3))
    return emitter


def finals_of_new(emitter: EventEmitter) -> list[str]:
    return [final.text for final in finals_of(emitter.take())]


@pytest.mark.parametrize("mark", SENTENCE_ENDS)
def test_a_sentence_makes_a_final_once_it_is_long_enough(mark: str) -> None:
    emitter = new_emitter(sentence_s=2.0)
    emitter.emit_words([word(" I", 0.0), word(f" am{mark}", 0.5)], "en", 1.0)
    assert finals_of_new(emitter) == [], "short sentences stay together"
    emitter.emit_words([word(" You", 1.0), word(" are", 2.0)], "en", 3.0)
    assert finals_of_new(emitter) == [], "in the middle of one"
    emitter.emit_words([word(f" here{mark}", 3.0)], "en", 4.0)
    assert finals_of_new(emitter) == [f"I am{mark} You are here{mark}"]


def test_without_a_sentence_time_makes_a_final() -> None:
    emitter = new_emitter(longest_s=5.0)
    emitter.emit_words([word(" on", float(i)) for i in range(5)], "en", 6.0)
    assert finals_of_new(emitter) == []
    emitter.emit_words([word(" on", 5.0)], "en", 7.0)
    assert finals_of_new(emitter) == ["on on on on on on"]
    emitter.emit_words([word(" on", 6.0)], "en", 8.0)
    assert finals_of_new(emitter) == []


def test_words_are_parted_where_a_final_is_due() -> None:
    emitter = new_emitter(sentence_s=2.0)
    emitter.emit_words([word(" I", 0.0)], "en", 1.0)
    new = [word(" am.", 2.0), word(" You", 3.0), word(" are.", 3.5), word(" We", 4.0), word(" are.", 6.0)]
    emitter.emit_words(new, "en", 7.0)
    emitter.emit_words([], "en", 7.0)
    events = emitter.take()
    assert [type(event) for event in events] == [SpeechStarted, Partial, Partial, Final, Partial, Final]
    assert [event.text for event in finals_of(events)] == ["I am.", "You are. We are."]
    assert [event.utterance for event in events] == [1, 1, 1, 1, 2, 2]


def test_a_final_sums_up_and_what_follows_has_a_new_number() -> None:
    masses = {(0.0, 0.9): 0.5}
    emitter = EventEmitter(10.0, 30.0, allowed_mass=lambda start_s, end_s: masses.get((start_s, end_s)))
    emitter.emit(SpeechStarted(0.0, 0.3))
    emitter.emit_words([word(" a", 0.0), word(" b", 0.5)], "en", 1.0)
    emitter.emit_final("en", 1.0)
    emitter.emit_final("en", 1.0)  # nothing was said since
    emitter.emit_words([word(" c", 1.0)], "en", 2.0)
    emitter.emit_final("en", 2.0)
    emitter.emit(SpeechEnded(2.0, 2.0))
    emitter.emit(SpeechStarted(3.0, 3.0))
    events = emitter.take()
    kinds = [SpeechStarted, Partial, Final, Partial, Final, SpeechEnded, SpeechStarted]
    assert [type(event) for event in events] == kinds
    assert [event.utterance for event in events] == [1, 1, 1, 2, 2, 2, 3]
    assert [final.text for final in finals_of(events)] == ["a b", "c"]
    assert [final.allowed_mass for final in finals_of(events)] == [0.5, None]
    assert emitter.take() == []


def test_a_final_is_in_the_language_of_most_words() -> None:
    emitter = new_emitter()
    emitter.emit_words(
        [Word(" und", 0.0, 0.2, 0.9, "de"), Word(" der", 0.2, 0.4, 0.9, "de"), word(" time", 0.5)], "en", 1.0
    )
    emitter.emit_final("en", 1.0)
    assert finals_of(emitter.take())[0].language == "de"


def test_what_may_be_said_is_told_when_it_is_new() -> None:
    emitter = new_emitter()
    for text in ("", "a", "a", "ab", "", ""):
        emitter.emit_unstable([word(text, 0.0)] if text else [], "en", 1.0, committed_s=0.0)
    assert [event.text for event in emitter.take() if isinstance(event, Unstable)] == ["a", "ab", ""]


FULL_STOP = TOKENIZER.encode(".")[0]


def hear_sentences(mel: Floats, row: int = 0) -> Script:
    """Tones, with a full stop after every "child"."""
    script = hear(mel, row)
    tokens = []
    for token in script.tokens:
        tokens.append(token)
        if token.id == TOKEN_OF["child"]:
            tokens.append(ScriptedToken(FULL_STOP, token.frame + 2))
    return Script(tuple(tokens), script.languages)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("unstable", "chunk_s"), [(False, 0.5), (True, 0.5), (False, 3.0)])
def test_speech_without_a_pause_is_told_by_sentences(unstable: bool, chunk_s: float) -> None:
    """17 s without a pause: a final at the end of each sentence of 4 s or more, and one at the end; in
    the middle of an update's words, too."""
    sentences = [[w for w in spoken("en", n, seed=n) if w != "child"] + ["child"] for n in (12, 15, 4, 14)]
    audio = np.concatenate([silence(0.5), say([w for sentence in sentences for w in sentence]), silence(1.0)])
    stream = StreamOptions(sentence_s=4.0, chunk_s=chunk_s)
    live = session(
        ["en"], model=FakeBackend(hear_sentences), stream=stream, captions="revisable" if unstable else "firm"
    )
    events = listen(live, audio)
    assert [event.seq for event in events] == list(range(len(events)))
    finals = finals_of(events)
    texts = [" ".join(sentence) + "." for sentence in sentences]
    assert " ".join(final.text for final in finals) == " ".join(texts)
    assert [final.text for final in finals] == [*texts[:2], " ".join(texts[2:])]
    assert [final.utterance for final in finals] == list(range(1, len(finals) + 1))
    for final in finals:
        partials = [e.text for e in events if isinstance(e, Partial) and e.utterance == final.utterance]
        assert "".join(partials).strip() == final.text
        assert final.emission_time - final.end <= 2.0 + chunk_s, "told soon after it was said"


def test_speech_without_a_pause_and_sentences_is_told_by_time() -> None:
    words = spoken("en", 60)
    events = listen(session(["en"], stream=StreamOptions(longest_final_s=5.0)), say(words))
    finals = finals_of(events)
    assert len(finals) >= 4
    assert all(final.end - final.start <= 7.0 for final in finals)
    assert " ".join(final.text for final in finals).split() == words == words_of(events)
    assert [event.seq for event in events] == list(range(len(events)))


def test_words_have_speakers_and_finals_have_them_all() -> None:
    audio = say(WORDS["en"][:8])

    def events_of(chunk: int) -> list[Event]:
        options = LiveOptions(languages=("en",), switching="off", stream=ALIGNATT)
        return listen(Session(backend(), TOKENIZER, options, speakers=one_speaker()), audio, chunk)

    events = events_of(8000)
    partials = [event for event in events if isinstance(event, Partial)]
    assert partials[-1].words[-1].speaker == "A"
    assert {word.speaker for final in finals_of(events) for word in final.words} == {"A"}
    assert '"speaker":"A"' in event_line(finals_of(events)[-1]).replace(" ", "")
    assert events == events_of(3001) == events_of(len(audio))
