"""Write the events of a stream as JSON lines.

Every line has type, start, end, text, language, words, emission_time and seq, so that a reader can treat
all alike; what belongs to an utterance has its number; `language` adds from, to, at and confirmed_at. Which
events a stream sends is not decided here.
"""

from __future__ import annotations

from sottovoce.formats.document import Json, json_text, score, seconds, word_document
from sottovoce.types import Event, Final, LanguageChanged, Partial, SpeechEnded, SpeechStarted, Unstable, Word


def event_line(event: Event) -> str:
    """Encode one event as a line of JSON, line break included."""
    return json_text(event_document(event)) + "\n"


def event_document(event: Event) -> dict[str, Json]:
    """Build one event as plain values: times in seconds, rounded to milliseconds."""
    document = _document(event)
    document["seq"] = event.seq
    if event.utterance is not None:
        document["utterance"] = event.utterance
    return document


def _document(event: Event) -> dict[str, Json]:
    """Build the event without its numbers."""
    if isinstance(event, LanguageChanged):
        return _language_changed(event)
    if isinstance(event, SpeechStarted):
        return _line("speech_started", event.at, event.at, event.emission_time)
    if isinstance(event, SpeechEnded):
        return _line("speech_ended", event.at, event.at, event.emission_time)
    kind = {Partial: "partial", Final: "final", Unstable: "unstable"}[type(event)]
    words = () if isinstance(event, Unstable) else event.words
    times = (event.start, event.end, event.emission_time)
    line = _line(kind, *times, text=event.text, language=event.language, words=words)
    if isinstance(event, Final) and event.allowed_mass is not None:
        line["allowed_mass"] = score(event.allowed_mass)
    return line


def _language_changed(event: LanguageChanged) -> dict[str, Json]:
    return {
        **_line("language", event.at, event.at, event.confirmed_at, language=event.target),
        "from": event.source,
        "to": event.target,
        "at": seconds(event.at),
        "confirmed_at": seconds(event.confirmed_at),
        "posteriors": {language: score(p) for language, p in event.posteriors.items()},
    }


def _line(
    kind: str,
    start: float,
    end: float,
    emission_time: float,
    *,
    text: str = "",
    language: str | None = None,
    words: tuple[Word, ...] = (),
) -> dict[str, Json]:
    return {
        "type": kind,
        "start": seconds(start),
        "end": seconds(end),
        "text": text,
        "language": language,
        "words": [word_document(word) for word in words],
        "emission_time": seconds(emission_time),
    }
