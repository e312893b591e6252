"""Events of a session whose speakers are told apart."""

from __future__ import annotations

from sottovoce.formats.document import event_line
from sottovoce.streaming.session import Session, SessionOptions
from sottovoce.types import Event, Final, Partial, Samples
from tests.speakers.somebody import one_speaker
from tests.streaming.sessions import ALIGNATT, TOKENIZER, listen
from tests.streaming.speech import WORDS, backend, say


def events_of(audio: Samples, chunk: int) -> list[Event]:
    options = SessionOptions(languages=("en",), switching="off", stream=ALIGNATT)
    live = Session(backend(), TOKENIZER, options, speakers=one_speaker())
    return listen(live, audio, chunk)


def test_words_have_speakers_and_finals_have_them_all() -> None:
    audio = say(WORDS["en"][:8])
    events = events_of(audio, 8000)
    partials = [event for event in events if isinstance(event, Partial)]
    finals = [event for event in events if isinstance(event, Final)]
    assert partials[-1].words[-1].speaker == "A"
    assert {word.speaker for final in finals for word in final.words} == {"A"}
    assert '"speaker":"A"' in event_line(finals[-1]).replace(" ", "")
    assert events == events_of(audio, 3001) == events_of(audio, len(audio))
