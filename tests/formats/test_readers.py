"""What others read out of our documents is what was said: parsers that are not ours, any text."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sottovoce.formats.files import writer_for
from sottovoce.formats.output import write_transcript
from sottovoce.formats.subtitles import JOINER
from sottovoce.options.transcribe import WriterOptions
from sottovoce.types import Transcript
from tests.formats.transcripts import SCHEMA, module, spoken, transcripts

NASTY = st.one_of(
    st.sampled_from(
        [
            *("", " ", "-->", "00:00:01,000 --> 00:00:02,000", "1\n2", "\n\n", "{\\b1}x", "\\N"),
            *("\\", '"', '""x"', "<i>", "</script>", "<!--", "]]>", "&amp;", "&", "a\tb", "a\rb"),
            *("NOTE x", "WEBVTT", "[x]", ";", "שלום, עולם!", "مرحبا", "你好。", "ﾊﾛｰ", "e\u0301"),
            *("\u202eabc", "👩‍👩‍👧", "\u2028", "Dialogue: 0"),
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30),
)
AS_SEGMENTS = WriterOptions(layout="segments")
BROAD = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def one_line(text: str) -> str:
    """What subtitles and tables make of a text."""
    return " ".join(" ".join(text.splitlines()).replace("-->", "->").split())


def said(transcript: Transcript) -> list[str]:
    return [text for segment in transcript.segments if (text := one_line(segment.text))]


@BROAD
@given(transcripts(NASTY))
def test_srt(transcript: Transcript) -> None:
    cues = list(
        module("srt").parse(write_transcript(writer_for("srt", AS_SEGMENTS), transcript), ignore_errors=False)
    )
    assert [one_line(cue.content).replace(JOINER, "") for cue in cues] == said(transcript)
    assert [cue.index for cue in cues] == list(range(1, len(cues) + 1))
    assert all(cue.start <= cue.end for cue in cues)
    assert all(cue.end <= following.start for cue, following in pairwise(cues))


@BROAD
@given(transcripts(NASTY))
def test_ass(transcript: Transcript) -> None:
    document = module("pysubs2").SSAFile.from_string(
        write_transcript(writer_for("ass", AS_SEGMENTS), transcript)
    )
    braces = str.maketrans("{}", "｛｝")
    texts = [one_line(event.plaintext.replace(JOINER, "")) for event in document]
    assert texts == [text.translate(braces).replace(JOINER, "") for text in said(transcript)]
    assert all(event.start <= event.end and not event.is_comment for event in document)


@pytest.mark.parametrize("seed", range(6))
def test_karaoke_takes_as_long_as_its_words(seed: int) -> None:
    """The commands of a cue add up to its length, within the hundredth that times are rounded to."""
    transcript = spoken(seed)
    document = module("pysubs2").SSAFile.from_string(
        write_transcript(writer_for("ass", AS_SEGMENTS), transcript)
    )
    for event in document:
        total = sum(int(piece.split("}")[0]) for piece in event.text.split("{\\k")[1:])
        assert abs(total - (event.end - event.start) / 10) <= 1


@BROAD
@given(transcripts(NASTY))
def test_lrc(transcript: Transcript) -> None:
    lines = module("pylrc").parse(write_transcript(writer_for("lrc"), transcript))
    timed = [(" ".join(line.text.split()), line.time) for line in lines]
    ends = max((segment.end for segment in transcript.segments), default=0.0)
    texts = [(" ".join(s.text.split()), s.start) for s in transcript.segments if s.text.strip()]
    assert [text for text, _ in timed] == [text for text, _ in texts] + [""] * bool(ends)
    assert [time for _, time in timed[: len(texts)]] == pytest.approx([time for _, time in texts], abs=0.0051)


@BROAD
@given(transcript=transcripts(NASTY))
def test_textgrid(transcript: Transcript, tmp_path: Path) -> None:
    path = tmp_path / "talk.TextGrid"
    path.write_text(write_transcript(writer_for("textgrid"), transcript), encoding="utf-8", newline="\n")
    grid = module("tgt").io.read_textgrid(str(path))
    tier = grid.get_tier_by_name("segments")
    assert [interval.text for interval in tier] == [
        text for segment in transcript.segments if (text := " ".join(segment.text.split()))
    ]
    assert all(interval.start_time < interval.end_time for interval in tier)
    assert all(float(a.end_time) <= float(b.start_time) + 1e-9 for a, b in pairwise(tier))


@BROAD
@given(transcripts(NASTY))
def test_ttml_and_eaf_are_xml_with_all_words(transcript: Transcript) -> None:
    def words(text: str) -> list[str]:
        return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\U0010ffff]|[\ufffe\uffff]", "\ufffd", text).split()

    spoken_words = [words(each.text) for each in transcript.segments if each.text.strip()]
    document = ET.fromstring(write_transcript(writer_for("ttml", AS_SEGMENTS), transcript))
    cues = document.findall(".//{http://www.w3.org/ns/ttml}p")
    assert [words(" ".join(cue.itertext())) for cue in cues] == spoken_words
    eaf = ET.fromstring(write_transcript(writer_for("eaf"), transcript))
    slots = {slot.get("TIME_SLOT_ID"): int(slot.get("TIME_VALUE", "")) for slot in eaf.iter("TIME_SLOT")}
    tiers = [tier for tier in eaf.iter("TIER") if "segments" in tier.get("TIER_ID", "")]
    annotations = [each for tier in tiers for each in tier.iter("ALIGNABLE_ANNOTATION")]
    read = sorted(
        (slots[each.get("TIME_SLOT_REF1")], words("".join(each.itertext()))) for each in annotations
    )
    assert sorted(text for _, text in read) == sorted(spoken_words)
    identifiers = [each.get("ANNOTATION_ID") for each in eaf.iter("ALIGNABLE_ANNOTATION")]
    assert len({*identifiers}) == len(identifiers)
    named = replace(transcript, segments=[replace(each, speaker="A & <B>") for each in transcript.segments])
    tiers = ET.fromstring(write_transcript(writer_for("eaf"), named)).findall("TIER")
    assert {tier.get("PARTICIPANT") for tier in tiers} <= {"A & <B>", None}


@BROAD
@given(transcripts(NASTY))
def test_labels(transcript: Transcript) -> None:
    lines = write_transcript(writer_for("labels"), transcript).split("\n")[:-1]
    rows = list(csv.reader(io.StringIO("\n".join(lines)), delimiter="\t", quoting=csv.QUOTE_NONE))
    assert [row[2] for row in rows] == [" ".join(segment.text.split()) for segment in transcript.segments]
    assert [float(row[0]) for row in rows] == pytest.approx([s.start for s in transcript.segments])


@BROAD
@given(transcripts(NASTY))
def test_json_keeps_to_its_schema(transcript: Transcript) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    checker = module("jsonschema").Draft202012Validator(schema)
    for name in ("json", "json-full"):
        checker.validate(json.loads(write_transcript(writer_for(name), transcript)))


@pytest.mark.parametrize("words", [True, False])
def test_full_json_lists_the_tokens_of_a_recording(words: bool, heard: Transcript) -> None:
    """All of them, timestamps too; times and probabilities are those of words."""
    if not words:
        heard = replace(heard, segments=tuple(replace(segment, words=None) for segment in heard.segments))
    document = json.loads(write_transcript(writer_for("json-full"), heard))
    module("jsonschema").validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert document["segments"]
    for segment in document["segments"]:
        details = segment["token_details"]
        assert [token["id"] for token in details] == segment["tokens"]
        texts = [token["text"] for token in details]
        assert texts[0].startswith("<|")
        assert "".join(text for text in texts if not text.startswith("<|")) == segment["text"]
        timed = [token for token in details if token["start"] is not None]
        assert [token["text"] for token in timed] == (
            [t for t in texts if not t.startswith("<|")] if words else []
        )
        assert all(0 <= token["probability"] <= 1 for token in timed)


class Page(HTMLParser):
    """The text of every segment; fails on a tag that the writer does not write."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self._inside = self._at = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "p" and ("class", "segment") in attrs:
            self._inside = True
            self.texts.append("")
        self._at = tag == "a"

    def handle_endtag(self, tag: str) -> None:
        self._at = False
        if tag == "p":
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside and not self._at:
            self.texts[-1] += data


@BROAD
@given(transcripts(NASTY))
def test_html(transcript: Transcript) -> None:
    page = Page()
    page.feed(write_transcript(writer_for("html"), transcript))
    assert [" ".join(text.split()) for text in page.texts] == [
        " ".join(segment.text.split()) for segment in transcript.segments
    ]
    assert not {"i", "img", "iframe"} & page.tags


def test_a_page_loads_nothing_from_elsewhere() -> None:
    text = write_transcript(writer_for("html"), spoken(1))
    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in text
    assert "<link" not in text
    assert "src=" not in text.split("<main")[0].replace("-src", "")
