"""Each kind of event is a JSON line with the promised names."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sottovoce.formats.document import event_document, event_line
from sottovoce.types import Event, Final, LanguageChanged, Partial, SpeechEnded, SpeechStarted, Unstable, Word

WORDS = (Word(" Hi", 0.1004, 0.5, 0.9, "en"),)
EVENTS: list[tuple[str, Event]] = [
    ("partial", Partial(0.1004, 0.5, " Hi", "en", WORDS, 1.0006)),
    ("final", Final(0.1004, 0.5, " Hi", "en", WORDS, 1.5)),
    ("unstable", Unstable(0.5, 0.9, " you", "en", 1.5)),
    ("language", LanguageChanged("en", "de", 4.25, 5.0, {"en": 0.1, "de": 0.9})),
    ("speech_started", SpeechStarted(0.1, 0.3)),
    ("speech_ended", SpeechEnded(6.0, 6.5)),
]
COMMON = {"type", "start", "end", "text", "language", "words", "emission_time", "seq"}


@pytest.mark.parametrize(("kind", "event"), EVENTS)
def test_every_line_has_the_common_names_its_number_and_its_utterance_if_it_has_one(
    kind: str, event: Event
) -> None:
    event = replace(event, seq=7, utterance=3)
    line = event_line(event)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    entry = json.loads(line)
    assert entry == event_document(event)
    assert set(entry) >= COMMON
    assert (entry["type"], entry["seq"], entry["utterance"]) == (kind, 7, 3)
    assert entry["start"] <= entry["end"] <= entry["emission_time"]
    assert "utterance" not in event_document(replace(event, utterance=None))


def test_times_are_whole_milliseconds() -> None:
    entry = event_document(EVENTS[0][1])
    assert (entry["start"], entry["end"], entry["emission_time"]) == (0.1, 0.5, 1.001)
    assert entry["words"] == [
        {"word": " Hi", "start": 0.1, "end": 0.5, "probability": 0.9, "language": "en", "speaker": None}
    ]


def test_a_switch_tells_both_languages_and_both_times() -> None:
    entry = event_document(EVENTS[3][1])
    assert (entry["from"], entry["to"], entry["at"], entry["confirmed_at"]) == ("en", "de", 4.25, 5.0)
    assert entry["language"] == "de"
    assert entry["emission_time"] == 5.0
    assert entry["posteriors"] == {"en": 0.1, "de": 0.9}
    first = event_document(LanguageChanged(None, "de", 0.0, 1.0))
    assert first["from"] is None


def test_the_mass_of_the_allowed_languages_is_written_where_it_is_known() -> None:
    final = Final(0.1, 0.5, " Hi", "en", WORDS, 1.5, 0.25)
    assert event_document(final)["allowed_mass"] == 0.25
    assert "allowed_mass" not in event_document(EVENTS[1][1])
