"""Every writer: pieces joined are the document, options are not ignored; events are JSON lines."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings

from sottovoce.errors import OptionError
from sottovoce.formats.document import (
    LOW_CONFIDENCE,
    JsonWriter,
    document,
    event_document,
    event_line,
    segment_document,
    word_document,
)
from sottovoce.formats.files import BINARY, FORMATS, writer_for, writers_for
from sottovoce.formats.output import write_document, write_transcript
from sottovoce.formats.pages import word_span
from sottovoce.options.transcribe import WriterOptions
from sottovoce.types import (
    Event,
    Final,
    LanguageChanged,
    Partial,
    Segment,
    SpeechEnded,
    SpeechStarted,
    Transcript,
    Unstable,
    Word,
)
from tests.formats.transcripts import SCHEMA, module, spoken, transcripts


@pytest.mark.parametrize("name", FORMATS)
def test_a_writer_forgets_the_document_before(name: str) -> None:
    writer = writer_for(name)
    first = write_document(writer, spoken(1))
    write_document(writer, spoken(2))
    assert write_document(writer, spoken(1)) == first
    if name not in BINARY:
        assert write_transcript(writer, spoken(1)).encode() == first
        assert first.endswith(b"\n") or name == "rttm"  # of a recording without speakers it has no line
        return
    with pytest.raises(OptionError, match="is no text; write_document gives its bytes"):
        write_transcript(writer, spoken(1))


def test_unknown_format_and_unused_options_are_refused() -> None:
    with pytest.raises(OptionError, match=r"'srf': expected one of .*; did you mean 'srt'\?"):
        writer_for("srf")
    with pytest.raises(OptionError, match="'json': line breaking"):
        writer_for("json", WriterOptions(max_line_width=20))


def test_several_formats() -> None:
    assert [w.extension for w in writers_for("json, srt,json")] == ["json", "srt"]
    assert len(writers_for("all", WriterOptions(max_line_width=9))) == len(FORMATS)
    assert "rttm" not in [w.extension for w in writers_for("all", has_speakers=False)]
    assert "docx" not in [w.extension for w in writers_for("all", has_files=False)]
    with pytest.raises(OptionError, match="line breaking"):
        writers_for("txt,json", WriterOptions(max_line_width=9))


@settings(deadline=None)
@given(transcripts())
def test_json_pieces_make_the_document_on_one_line(transcript: Transcript) -> None:
    text = write_transcript(JsonWriter(), transcript)
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert json.loads(text) == json.loads(json.dumps(document(transcript), allow_nan=False))


def test_the_json_document_has_the_promised_names() -> None:
    word = Word(" Hi", 0.12345, 0.5, 0.98765432, language="en")
    segment = Segment(0, 0.12345, 1.0, " Hi", "en", (1, 2), 0.2, -0.5, 1.1, 0.01, (word,), "A")
    entry = document(Transcript((segment,), "en", 1.00049, "nano"))
    assert entry == {
        "text": "Hi",
        "language": "en",
        "duration": 1.0,
        "model": "nano",
        "segments": [
            {
                "id": 0,
                "start": 0.123,
                "end": 1.0,
                "text": " Hi",
                "language": "en",
                "speaker": "A",
                "tokens": [1, 2],
                "temperature": 0.2,
                "avg_logprob": -0.5,
                "compression_ratio": 1.1,
                "no_speech_prob": 0.01,
                "words": [
                    {
                        "word": " Hi",
                        "start": 0.123,
                        "end": 0.5,
                        "probability": 0.987654,
                        "language": "en",
                        "speaker": None,
                    }
                ],
            }
        ],
    }


def test_words_that_may_be_wrong_are_marked_where_the_page_colours_them() -> None:
    """One limit for documents and the page; a word without a probability is not marked."""
    for probability, is_marked in (
        (0.0, True),
        (0.7999, True),
        (0.8, False),
        (1.0, False),
        (math.nan, False),
    ):
        word = Word(" Hi", 0.0, 0.5, probability, language="en")
        assert word_document(word).get("doubtful", False) is is_marked
        assert ('<span class="w c' in word_span(word)) is is_marked


def test_the_schema_tells_from_which_probability_on_words_are_marked() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert f"below {LOW_CONFIDENCE:g}." in schema["$defs"]["word"]["properties"]["doubtful"]["description"]
    words = tuple(Word(" a", 0.0, 0.5, probability, language="en") for probability in (0.2, 0.9))
    entry = document(Transcript((Segment(0, 0.0, 0.5, " a a", "en", words=words),), "en", 1.0, "nano"))
    module("jsonschema").validate(entry, schema)


def test_json_never_holds_nan() -> None:
    segment = Segment(0, 0.0, 1.0, "", "en", avg_logprob=-math.inf, compression_ratio=math.nan)
    entry = segment_document(segment)
    assert entry["avg_logprob"] is None
    assert entry["compression_ratio"] is None
    assert entry["words"] == []
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_transcript(JsonWriter(), Transcript((), "en", math.nan, "nano"))


def test_an_empty_transcript_is_a_document_too() -> None:
    empty = Transcript((), "en", 0.0, "nano")
    assert json.loads(write_transcript(JsonWriter(), empty))["segments"] == []
    assert write_transcript(writer_for("srt"), empty) == ""
    assert write_transcript(writer_for("vtt"), empty) == "WEBVTT\n\n"
    assert write_transcript(writer_for("tsv"), empty) == "start\tend\ttext\n"


@settings(deadline=None)
@given(transcripts())
def test_a_row_is_a_segment_whatever_the_text(transcript: Transcript) -> None:
    tsv = write_transcript(writer_for("tsv"), transcript).split("\n")
    assert len(tsv) == len(transcript.segments) + 2  # a header, and nothing after the last line break
    assert all(line.count("\t") == 2 for line in tsv[:-1])
    text = write_transcript(writer_for("csv"), transcript).replace("\0", "")  # not read before 3.11
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    expected = [" ".join(s.text.strip().splitlines()).replace("\0", "") for s in transcript.segments]
    assert [row["text"] for row in rows] == expected
    assert [int(row["start"]) for row in rows] == [round(1000 * s.start) for s in transcript.segments]


def test_lrc_gives_each_line_its_first_words_time() -> None:
    words = (Word(" one", 61.239, 62.0, 1.0),)
    segments = (Segment(0, 60.0, 62.0, " one", "en", words=words), Segment(1, 4000.0, 4001.0, " two", "en"))
    text = write_transcript(writer_for("lrc"), Transcript(segments, "en", 4001.0, "nano"))
    assert text == "[by:sottovoce]\n[01:01.24]one\n[66:40.00]two\n[66:41.00]\n"


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
