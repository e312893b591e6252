"""Every format in every layout: starts never decrease, lines begin well, text and times stay as they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from html import unescape
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.formats.files import SUBTITLES, load_transcript, parse_transcript, writer_for
from sottovoce.formats.output import write_transcript
from sottovoce.offline.regroup import parse_rules, regrouped
from sottovoce.options.transcribe import WriterOptions
from sottovoce.types import Segment, Transcript, Word

LAYOUTS = {
    "plain": WriterOptions(),
    "width": WriterOptions(max_line_width=12),
    "lines": WriterOptions(max_line_width=12, max_line_count=2),
    "words": WriterOptions(max_words_per_line=3),
    "highlighted": WriterOptions(highlight_words=True),
    "reading": WriterOptions(reading_speed=17.0),
    "narrow": WriterOptions(reading_speed=17.0, max_line_width=8, max_line_count=1),
}
RULES = ("", "split words=3", "split letters=8; merge pause=0.5 letters=20")
CLOSING = tuple("。，、！？」）.,?!…।ๆ々ーっ\u0e35\u0e48")
FIRST_WORDS = {"en": " One", "fr": " Quoi", "hi": " स्वामी", "ja": "今", "th": "ว"}
WORDS = {
    "en": (" two,", " incomprehensibilities", " three.", " four?", " Mr.", " five"),
    "fr": (" ?", " Rien", " !", " longtemps"),
    "hi": (" विवेकानंद", "।", " अक्सर"),
    "ja": (*"日は良い天気っー々、。", "「", "」", "！"),
    "th": (*"ันนี้อร่อยๆ",),
}


class Entry(NamedTuple):
    """One item of a sequence in time: its start in seconds, and its lines without the speaker."""

    start: float
    lines: tuple[str, ...]


@st.composite
def conversations(draw: st.DrawFn) -> Transcript:
    """People who speak at once, each in one language; words may have no duration."""
    segments = []
    for speaker in draw(st.sampled_from([(None,), ("A", "B"), ("A", "B", None)])):
        language, now_ms = draw(st.sampled_from(sorted(WORDS))), 0
        for following in draw(st.lists(st.lists(st.sampled_from(WORDS[language]), max_size=11), max_size=3)):
            words = []
            for text in (FIRST_WORDS[language], *following):
                start_ms = now_ms + draw(st.sampled_from([0, 0, 0, 20, 500, 3500]))
                now_ms = start_ms + draw(st.sampled_from([0, 20, 300]))
                words.append(Word(text, start_ms / 1000, now_ms / 1000, 0.9))
            text = "".join(word.word for word in words)
            times = (words[0].start, words[-1].end)
            segments.append(Segment(0, *times, text, language, words=tuple(words), speaker=speaker))
    return Transcript(tuple(segments), "en", 60.0, "nano")


def subtitles(document: str) -> Iterator[Entry]:
    if document.startswith("[Script Info]"):
        for start, name, text in re.findall(r"Dialogue: 0,(.+?),.+?,.+?,(.*?),0,0,0,,(.*)", document):
            lines = re.sub(r"\{.*?\}", "", text).removeprefix(f"{name}: ").split("\\N")
            yield Entry(seconds_of(start), tuple(lines))
        return
    for start, text in re.findall(r"^(\S+) --> .*\n((?:.+\n)+)", document, re.MULTILINE):
        yield Entry(seconds_of(start), tuple(re.sub(r"^\u200f?[AB]: |<.*?>", "", text).splitlines()))


def rows(pattern: str, scale: float = 1.0) -> Callable[[str], Iterator[Entry]]:
    def read(document: str) -> Iterator[Entry]:
        for start, text in re.findall(pattern, document, re.MULTILINE):
            yield Entry(seconds_of(start) * scale, (re.sub(r"^[AB]: |<b .*?</b> ", "", text),))

    return read


def seconds_of(time: str) -> float:
    parts = time.replace(",", ".").split(":")
    return sum(float(part) * 60**power for power, part in enumerate(reversed(parts)))


def json_rows(document: str) -> Iterator[Entry]:
    for segment in parse_transcript(document.encode(), "document").segments:
        yield Entry(segment.start, (segment.text,))


ENTRIES: dict[str, Callable[[str], Iterator[Entry]]] = {
    "srt": subtitles,
    "vtt": subtitles,
    "ass": subtitles,
    "lrc": rows(r"^\[(\d+:\d+\.\d+)\](.+)"),
    "tsv": rows(r"^(\d+)\t\d+\t(.*)", 0.001),
    "csv": rows(r'^(\d+),\d+,\w*,\w*,"?(.*?)"?$', 0.001),
    "labels": rows(r"^(\S+)\t\S+\t(.*)"),
    "json": json_rows,
    "json-full": json_rows,
    "html": rows(
        r'data-s="(\S+)" data-e="\S+" lang="\w*"(?: data-speaker="\w")?>.*?said" dir="...">(.*?)</span></p>'
    ),
    "md": rows(r"(\d+:\d+)(?: · \w+)?\n\n(.+)"),
    "txt": lambda document: (Entry(0.0, (re.sub(r"^[AB]: ", "", row),)) for row in document.splitlines()),
}


def letters(texts: Iterable[str]) -> Counter[str]:
    return Counter("".join("".join(texts).split()))


@settings(deadline=None)
@given(conversations(), st.sampled_from(RULES), st.sampled_from([*ENTRIES]), st.sampled_from([*LAYOUTS]))
def test_order_text_and_times_stay(transcript: Transcript, rules: str, name: str, layout: str) -> None:
    check(transcript, rules, name, layout)


def check(transcript: Transcript, rules: str, name: str, layout: str) -> None:
    segments = sorted(transcript.segments, key=lambda segment: segment.start)
    if rules:
        transcript = replace(transcript, segments=tuple(regrouped(segments, parse_rules(rules))))
    options = LAYOUTS[layout] if name in SUBTITLES else WriterOptions()
    entries = list(ENTRIES[name](write_transcript(writer_for(name, options), transcript)))
    assert all(first.start <= second.start for first, second in pairwise(entries))
    lines = [
        unescape(re.sub(r"<.*?>|[\\\u2060]", "", line)).strip() for entry in entries for line in entry.lines
    ]
    assert not [line for line in lines if line.startswith(CLOSING)]
    if not options.highlight_words:
        assert letters(lines) == letters(segment.text for segment in segments)
    if name in SUBTITLES:
        words = [word for segment in segments for word in segment.words or ()]
        known = {round(time, 2) for word in words for time in (word.start, word.end)}
        assert {round(entry.start, 2) for entry in entries} <= known


ODD = ("0-500 500-500 500-500 400-1000 3000-2500 3000-3000", "1000-1000 1000-1000 1000-2000")


@pytest.mark.parametrize("times", ODD)
@pytest.mark.parametrize("name", ["srt", "vtt", "ass", "textgrid"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_no_item_ends_before_its_start(times: str, name: str, layout: WriterOptions) -> None:
    spans = [[int(ms) / 1000 for ms in span.split("-")] for span in times.split()]
    words = tuple(Word(f" w{number}", *span, 0.9) for number, span in enumerate(spans))
    segments = (Segment(0, spans[0][0], 3.0, "".join(word.word for word in words), "en", words=words),)
    options = layout if name in SUBTITLES else WriterOptions()
    document = write_transcript(writer_for(name, options), Transcript(segments, "en", 3.0, "nano"))
    pattern = (
        r"xmin = (\S+)\n *xmax = (\S+)" if name == "textgrid" else r"(\d+:\S+?)(?: --> |,)(\d+:[\d:.,]*\d)"
    )
    spans_s = [(seconds_of(start), seconds_of(end)) for start, end in re.findall(pattern, document)]
    assert spans_s
    assert all(start <= end for start, end in spans_s)
    if name != "textgrid":
        assert spans_s == sorted(spans_s, key=lambda span: span[0])


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_segments_that_overlap_share_no_subtitle(layout: WriterOptions) -> None:
    """Also without speakers."""
    segments = []
    for i, start in enumerate((0.0, 1.0, 1.2)):
        words = (Word(f" a{i}", start, start + 1.0, 0.9), Word(f" b{i}", start + 1.0, start + 2.0, 0.9))
        segments.append(Segment(i, start, start + 2.0, f" a{i} b{i}", "en", words=words))
    document = write_transcript(writer_for("srt", layout), Transcript(tuple(segments), "en", 3.2, "nano"))
    for cue in document.split("\n\n"):
        assert len(set(re.findall(r"[ab](\d)", cue.partition("-->")[2]))) <= 1


@pytest.mark.shared
@pytest.mark.parametrize("stem", ["overlap", "zero", "odd-words", "ja", "th", "hi", "longword"])
def test_reported_documents(stem: str, shared_dir: Path) -> None:
    transcript = replace(load_transcript(shared_dir / "fixtures" / "reports5" / f"{stem}.json"), model="nano")
    for rules, name, layout in product(RULES, ENTRIES, LAYOUTS):
        if name in SUBTITLES or layout == "plain":
            check(transcript, rules, name, layout)


@settings(deadline=None)
@given(conversations())
def test_a_textgrid_has_tiers_for_each_speaker_and_moves_no_word(transcript: Transcript) -> None:
    document = write_transcript(writer_for("textgrid"), transcript)
    intervals: dict[str, list[tuple[float, float, str]]] = {}
    for tier in document.split("item [")[2:]:
        name = re.findall(r'name = "(.*?)(?: \d)?"', tier)[0]
        rows_of_tier = re.findall(r'xmin = (\S+)\n *xmax = (\S+)\n *text = "(.+)"', tier)
        assert all(float(first[1]) <= float(second[0]) for first, second in pairwise(rows_of_tier))
        intervals.setdefault(name, []).extend(
            (float(start), float(end), text) for start, end, text in rows_of_tier
        )
    for speaker in {segment.speaker for segment in transcript.segments}:
        segments = [segment for segment in transcript.segments if segment.speaker == speaker]
        words = [word for segment in segments for word in segment.words or ()]
        rows_of_tier = intervals[f"{speaker} - words" if speaker else "words"]
        assert sorted(text for _, _, text in rows_of_tier) == sorted(word.word.strip() for word in words)
        for place, times in ((0, [word.start for word in words]), (1, [word.end for word in words])):
            assert sorted(interval[place] for interval in rows_of_tier) == pytest.approx(times, abs=0.012)
