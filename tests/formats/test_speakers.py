"""Speakers in every format that can show them, read back by other programs where there are any."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.formats.files import FORMATS, load_transcript, writer_for
from sottovoce.formats.output import write_document, write_transcript
from sottovoce.options.transcribe import WriterOptions
from sottovoce.types import Transcript, Turn
from tests.cli.conftest import Call, call  # noqa: F401 - a fixture
from tests.formats.transcripts import SCHEMA, module, shown, timed_segment


def talk(*, timed: bool = True, speakers: tuple[str | None, ...] = ("A", "A", "B & Co")) -> Transcript:
    texts = ("Good morning.", "How are you?", "Well, thanks.")
    segments = tuple(
        timed_segment(text, 2.0 * number, id=number, speaker=speaker)
        for number, (text, speaker) in enumerate(zip(texts, speakers, strict=True))
    )
    if not timed:
        segments = tuple(replace(segment, words=None) for segment in segments)
    turns = (Turn(0.0, 3.5, "A"), Turn(3.25, 5.0, "B & Co"))
    return Transcript(segments, "en", 6.0, "nano", turns=turns if speakers[0] else ())


def written(name: str, transcript: Transcript, **options: object) -> str:
    return shown(write_document(writer_for(name, WriterOptions(**options)), transcript))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"tsv"}))
@pytest.mark.parametrize("timed", [True, False])
def test_every_format_but_one_shows_who_speaks(name: str, timed: bool) -> None:
    text = written(name, talk(timed=timed))
    assert "B & Co" in text or "B &amp; Co" in text or "B_&_Co" in text
    assert "B & Co" not in written(name, talk(timed=timed, speakers=(None, None, None)))


def test_text_reads_like_a_play() -> None:
    assert written("txt", talk()) == "A: Good morning.\nA: How are you?\nB & Co: Well, thanks.\n"
    assert written("lrc", talk()).splitlines()[1] == "[00:00.00]A: Good morning."
    assert written("srt", talk()).split("\n\n")[2].splitlines()[2] == "B & Co: Well, thanks."


def test_names_leave_the_direction_of_text_alone() -> None:
    """A full stop at the end of Hebrew stands on its left, also behind a name in Latin letters."""
    hebrew = Transcript((timed_segment("שלום, עולם.", speaker="A"),), "he", 2.0, "nano")
    assert written("txt", hebrew) == "\u200fA: שלום, עולם.\n"
    assert "\u200fA: שלום" in written("srt", hebrew)
    assert "\u200f" not in written("vtt", hebrew) + written("json", hebrew)


@pytest.mark.parametrize("options", [{}, {"max_line_width": 9}, {"highlight_words": True}])
def test_a_voice_of_webvtt(options: dict[str, object]) -> None:
    document = module("webvtt").from_string(written("vtt", talk(), **options))
    assert [caption.voice for caption in document if "thanks" in caption.text] != []
    voices = {caption.voice for caption in document}
    assert voices == {"A", "B &amp; Co"}


def test_the_name_of_an_event() -> None:
    events = list(module("pysubs2").SSAFile.from_string(written("ass", talk())))
    assert [event.name for event in events] == ["A", "A", "B & Co"]
    assert events[0].plaintext == "A: Good morning."
    odd = written("ass", talk(speakers=("A", "A", "{b}, c\nDialogue: x")))
    assert [event.name for event in module("pysubs2").SSAFile.from_string(odd)][2] == "｛b｝ c Dialogue: x"


@pytest.mark.parametrize("name", ["srt", "vtt"])
@pytest.mark.parametrize(
    "options",
    [{"max_line_width": 80, "max_line_count": 2}, {"reading_speed": 17.0}, {"max_words_per_line": 9}],
)
def test_cues_that_run_across_segments_end_with_the_speaker(name: str, options: dict[str, object]) -> None:
    blocks = written(name, talk(), **options).split("\n\n")
    assert not any("you?" in block and "thanks" in block for block in blocks)
    assert any("thanks" in block and ("B & Co:" in block or "<v B" in block) for block in blocks)
    assert all("A:" in block or "<v A>" in block for block in blocks if "morning" in block or "you?" in block)


def test_turns_are_in_the_json_document() -> None:
    document = json.loads(written("json", talk()))
    assert document["turns"] == [
        {"start": 0.0, "end": 3.5, "speaker": "A"},
        {"start": 3.25, "end": 5.0, "speaker": "B & Co"},
    ]
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    module("jsonschema").validate(document, schema)
    assert "turns" not in json.loads(written("json", talk(speakers=(None, None, None))))


def test_rttm() -> None:
    lines = written("rttm", talk()).splitlines()
    assert lines[1] == "SPEAKER recording 1 3.250 1.750 <NA> <NA> B_&_Co <NA> <NA>"
    without_turns = replace(talk(), turns=())
    document = write_transcript(writer_for("rttm"), without_turns, source="my talk.mp3")
    assert document.splitlines()[0] == "SPEAKER my_talk 1 0.000 0.800 <NA> <NA> A <NA> <NA>"
    assert all(len(line.split()) == 10 for line in document.splitlines())


def test_corrected_turns_are_read_back(tmp_path: Path, call: Call) -> None:  # noqa: F811
    (tmp_path / "talk.json").write_text(written("json", talk()))
    words = ["convert", tmp_path / "talk.json", "-f", "rttm,json", "-o", tmp_path / "out"]
    call(*words)
    rttm = (tmp_path / "out" / "talk.rttm").read_text().replace("B_&_Co", "Zoe")
    (tmp_path / "talk.rttm").write_text(rttm)
    call(*words, "--turns", tmp_path / "talk.rttm")
    assert (tmp_path / "out" / "talk.rttm").read_text() == rttm
    named = load_transcript(tmp_path / "out" / "talk.json").segments
    assert [each.speaker for each in named] == ["A", "A", "Zoe"]
    (tmp_path / "talk.rttm").write_text("SPEAKER talk 1 now 2")
    assert "line 1: expected a turn" in call(*words, "--turns", tmp_path / "talk.rttm", code=2).err
