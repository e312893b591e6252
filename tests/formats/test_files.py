"""A transcript in a file comes back as it was, whoever wrote it and in whatever it was kept."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from sottovoce.errors import OptionError
from sottovoce.formats import FORMATS, WriterOptions, save_transcript, write_document, writer_for
from sottovoce.formats.document import document
from sottovoce.formats.files import format_of
from sottovoce.types import Segment, Token, Transcript, Turn, Word
from tests.formats.transcripts import transcripts

BROAD = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def full() -> Transcript:
    """Everything that a transcript can hold."""
    tokens = (Token(7, " H", 0.0, 0.25, 0.5), Token(8, "i", 0.25, 0.5, 0.75))
    words = (
        Word(" Hi", 0.0, 0.5, 0.625, "en", "A", tokens),
        Word(" there", 0.5, 1.0, 0.5, None, None, (Token(9, " there", 0.5, 1.0, 0.5),)),
    )
    first = Segment(
        0,
        0.0,
        1.0,
        " Hi there",
        "en",
        (50364, 7, 8, 9, 50414),
        0.2,
        -0.25,
        0.75,
        0.125,
        words,
        "A",
        "Hallo",
        0.875,
    )
    silent = Segment(1, 1.0, 1.5, "", "de", (), 0.0, -1.0, 0.0, 0.5, (), None, None)
    return Transcript(
        segments=(first, silent),
        language="en",
        duration=2.125,
        model="nano",
        language_probability=0.75,
        language_probabilities={"en": 0.75, "de": 0.25},
        turns=(Turn(0.0, 1.0, "A"), Turn(0.5, 1.5, "B & <C>")),
        token_texts={50364: "<|0.00|>", 7: " H", 8: "i", 9: " there", 50414: "<|1.00|>"},
    )


@pytest.mark.parametrize("name", ["talk.json", "talk.full.json"])
def test_everything_comes_back(tmp_path: Path, name: str) -> None:
    """Single tokens and their texts from the full document alone."""
    full().save(tmp_path / name)
    loaded = Transcript.load(str(tmp_path / name))
    assert loaded == full()
    assert loaded.segments[1].words == ()
    words, expected = (transcript.segments[0].words or () for transcript in (loaded, full()))
    is_full = "full" in name
    assert [word.tokens for word in words] == [word.tokens if is_full else () for word in expected]
    assert loaded.token_texts == (full().token_texts if is_full else {})


@BROAD
@given(transcripts())
def test_any_text_comes_back(tmp_path: Path, transcript: Transcript) -> None:
    transcript.save(tmp_path / "talk.json")
    loaded = Transcript.load(tmp_path / "talk.json")
    assert document(loaded) == document(transcript)  # times to the millisecond
    for read, written in zip(loaded.segments, transcript.segments, strict=True):
        assert (read.text, read.language) == (written.text, written.language)
        assert read.words is not None or not written.words


def test_a_score_that_is_no_number_stays_none(tmp_path: Path) -> None:
    segment = Segment(0, 0.0, 1.0, " x", "en", avg_logprob=-math.inf)
    Transcript((segment,), "en", 1.0, "nano").save(tmp_path / "a.json")
    loaded = Transcript.load(tmp_path / "a.json")
    assert math.isnan(loaded.segments[0].avg_logprob)
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_the_model_and_the_file_give_one_transcript(tmp_path: Path, heard: Transcript) -> None:
    """`language_probabilities` of a detection come back as they were written: to six digits."""
    heard.save(tmp_path / "de.full.json")
    loaded = Transcript.load(tmp_path / "de.full.json")
    assert loaded.language_probability == pytest.approx(heard.language_probability, abs=1e-6)
    assert loaded.language_probabilities == pytest.approx(dict(heard.language_probabilities), abs=1e-6)
    assert loaded.text == heard.text
    assert loaded.token_texts == heard.token_texts


def test_the_ending_tells_the_format(tmp_path: Path) -> None:
    others = {"json-full": "full.json", "labels": "labels.txt", "textgrid": "TextGrid"}
    for kind in FORMATS:
        path = tmp_path / f"talk.{others.get(kind, kind)}"
        assert writer_for(kind).extension == others.get(kind, kind)
        assert format_of(path) == kind
        full().save(path)
        assert path.read_bytes() == write_document(writer_for(kind), full(), source=path.name)
    assert format_of(Path("TALK.FULL.JSON")) == "json-full"
    with pytest.raises(OptionError, match=r"'talk.xyz': expected a name that ends in \.txt, \.srt"):
        full().save("talk.xyz")


def test_options_of_a_layout_are_taken(tmp_path: Path) -> None:
    save_transcript(full(), tmp_path / "talk.srt", WriterOptions(offset_n=41))
    assert (tmp_path / "talk.srt").read_text().startswith("42\n")
    with pytest.raises(OptionError, match="line breaking"):
        save_transcript(full(), tmp_path / "talk.txt", WriterOptions(max_line_width=9))
    assert os.listdir(tmp_path) == ["talk.srt"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("talk.json", "{", "expected JSON, got something else (Expecting property name"),
        ("talk.json", "5", "the document: expected an object, got a number"),
        ("talk.json", '{"segments": [{"end": 1, "text": ""}]}', "'start' is missing"),
        ("talk.json", '{"segments": 5}', "'segments': expected a list, got a number"),
        (
            "talk.json",
            '{"segments": [{"start": 0, "end": 1, "text": 5}]}',
            "'text': expected a text, got a number",
        ),
        ("talk.json", "[" * 100_000, "expected JSON"),
        ("talk.txt", "{}", "expected a name that ends in .json, .srt, .vtt"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(OptionError, match="transcript ") as caught:
        Transcript.load(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
