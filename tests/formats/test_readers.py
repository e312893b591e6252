"""What others read out of our documents is what was said: parsers that are not ours, any text."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sottovoce
from sottovoce.formats.ass import JOINER
from sottovoce.formats.base import write_transcript
from sottovoce.formats.subtitles import width
from sottovoce.formats.writers import writer_for
from sottovoce.options.writer import WriterOptions
from sottovoce.types import Segment, Token, Transcript, Word
from tests.formats.transcripts import spoken, transcripts

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
SCHEMA = Path(__file__).parents[2] / "docs" / "transcript.schema.json"
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
BROAD = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def module(name: str) -> ModuleType:
    return pytest.importorskip(name, reason=f"{name} is not installed")


def one_line(text: str) -> str:
    """What subtitles and tables make of a text."""
    return " ".join(" ".join(text.splitlines()).replace("-->", "->").split())


def said(transcript: Transcript) -> list[str]:
    return [text for segment in transcript.segments if (text := one_line(segment.text))]


@BROAD
@given(transcripts(NASTY))
def test_srt(transcript: Transcript) -> None:
    cues = list(module("srt").parse(write_transcript(writer_for("srt"), transcript), ignore_errors=False))
    assert [one_line(cue.content) for cue in cues] == said(transcript)
    assert [cue.index for cue in cues] == list(range(1, len(cues) + 1))
    assert all(cue.start <= cue.end for cue in cues)
    assert all(one.end <= following.start for one, following in pairwise(cues))


@BROAD
@given(transcripts(NASTY))
def test_webvtt(transcript: Transcript) -> None:
    document = module("webvtt").from_string(write_transcript(writer_for("vtt"), transcript))
    unescaped = [c.text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for c in document]
    assert [one_line(text) for text in unescaped] == said(transcript)


@BROAD
@given(transcripts(NASTY))
def test_ass(transcript: Transcript) -> None:
    document = module("pysubs2").SSAFile.from_string(write_transcript(writer_for("ass"), transcript))
    braces = str.maketrans("{}", "｛｝")
    found = [one_line(event.plaintext.replace(JOINER, "")) for event in document]
    assert found == [text.translate(braces).replace(JOINER, "") for text in said(transcript)]
    assert all(event.start <= event.end and not event.is_comment for event in document)


@pytest.mark.parametrize("seed", range(6))
def test_karaoke_takes_as_long_as_its_words(seed: int) -> None:
    """The commands of a cue add up to its length, within the hundredth that times are rounded to."""
    transcript = spoken(seed)
    document = module("pysubs2").SSAFile.from_string(write_transcript(writer_for("ass"), transcript))
    for event in document:
        total = sum(int(piece.split("}")[0]) for piece in event.text.split("{\\k")[1:])
        assert abs(total - (event.end - event.start) / 10) <= 1


@BROAD
@given(transcripts(NASTY))
def test_lrc(transcript: Transcript) -> None:
    lines = module("pylrc").parse(write_transcript(writer_for("lrc"), transcript))
    found = [(" ".join(line.text.split()), line.time) for line in lines]
    ends = max((segment.end for segment in transcript.segments), default=0.0)
    texts = [(" ".join(segment.text.split()), segment.start) for segment in transcript.segments]
    assert [text for text, _ in found] == [text for text, _ in texts] + [""] * bool(ends)
    assert [time for _, time in found[: len(texts)]] == pytest.approx([time for _, time in texts], abs=0.0051)


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


def test_full_json_lists_tokens() -> None:
    tokens = (Token(1, " H", 0.0, 0.25, 0.5), Token(2, "i", 0.25, 0.5, 0.75))
    word = Word(" Hi", 0.0, 0.5, 0.625, tokens=tokens)
    segment = Segment(0, 0.0, 0.5, " Hi", "en", (1, 2), words=(word,))
    found = json.loads(write_transcript(writer_for("json-full"), Transcript((segment,), "en", 1.0, "nano")))
    assert found["segments"][0]["token_details"] == [
        {"id": 1, "text": " H", "start": 0.0, "end": 0.25, "probability": 0.5},
        {"id": 2, "text": "i", "start": 0.25, "end": 0.5, "probability": 0.75},
    ]
    assert found["segments"][0]["words"][0]["tokens"] == [1, 2]


@pytest.mark.parametrize("words", [True, False])
def test_full_json_lists_the_tokens_of_a_recording(words: bool) -> None:
    """All of them, timestamps too; times and probabilities are those of words."""
    model = sottovoce.load_model("nano")
    heard = model.transcribe(CLIPS / "de.flac", language="de", word_timestamps=words).collect()
    found = json.loads(write_transcript(writer_for("json-full"), heard))
    module("jsonschema").validate(found, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert found["segments"]
    for segment in found["segments"]:
        details = segment["token_details"]
        assert [one["id"] for one in details] == segment["tokens"]
        texts = [one["text"] for one in details]
        assert texts[0].startswith("<|")
        assert "".join(text for text in texts if not text.startswith("<|")) == segment["text"]
        timed = [one for one in details if one["start"] is not None]
        assert [one["text"] for one in timed] == (
            [t for t in texts if not t.startswith("<|")] if words else []
        )
        assert all(0 <= one["probability"] <= 1 for one in timed)


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


@pytest.mark.parametrize("seed", range(12))
def test_readable_subtitles_keep_their_limits(seed: int) -> None:
    """Every word in its order, lines and cues in their limits, nothing on the screen beside anything else."""
    transcript = spoken(seed)
    options = WriterOptions(reading_speed=17)
    cues = list(module("srt").parse(write_transcript(writer_for("srt", options), transcript)))
    words = [w.word.strip() for s in transcript.segments for w in s.words or ()]
    assert "".join("".join(cue.content.split()) for cue in cues) == "".join(words)
    for cue in cues:
        lines = cue.content.split("\n")
        assert len(lines) <= 2
        assert all(width(line) <= 42 for line in lines)
    assert all(a.end <= b.start for a, b in pairwise(cues))
