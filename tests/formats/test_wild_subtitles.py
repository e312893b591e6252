"""Subtitles of other programs and people: read as pysubs2 or webvtt-py read them, or refused by line."""

from __future__ import annotations

import html
import io
from collections.abc import Callable

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import OptionError
from sottovoce.formats import write_transcript, writer_for
from sottovoce.formats.files import parse_transcript
from sottovoce.formats.subtitles import JOINER
from sottovoce.types import Segment, Transcript, Word
from tests.formats.test_readers import AS_SEGMENTS, NASTY, one_line
from tests.formats.transcripts import module, transcripts

Cue = tuple[float, float, str]
T1, T2, T3 = (f"00:00:0{n},000 --> 00:00:0{n + 1},500" for n in (1, 4, 7))
V1, V2, V3 = (times.replace(",", ".") for times in (T1, T2, T3))
A, B, C = (1.0, 2.5, "First."), (4.0, 5.5, "Second."), (7.0, 8.5, "Third.")


def srt(times: str, text: str = "First.") -> str:
    return f"1\n{times}\n{text}\n"


def vtt(*blocks: str) -> str:
    return "\n\n".join(["WEBVTT", *blocks, ""])


# Name: the file, the cues in it, and which of the two references read the same.
SRT: dict[str, tuple[str, list[Cue], str]] = {
    "plain": (f"1\n{T1}\nFirst.\n\n2\n{T2}\nSecond.\n\n", [A, B], "pysubs2 webvtt"),
    "two lines": (srt(T1, "First\nand more."), [(1.0, 2.5, "First and more.")], "pysubs2 webvtt"),
    "CRLF": (f"1\r\n{T1}\r\nFirst.\r\n\r\n2\r\n{T2}\r\nSecond.\r\n", [A, B], "pysubs2 webvtt"),
    "CR alone": (f"1\r{T1}\rFirst.\r\r2\r{T2}\rSecond.\r", [A, B], "pysubs2 webvtt"),
    "CR CR LF": (f"1\r\r\n{T1}\r\r\nFirst.\r\r\n\r\r\n2\r\r\n{T2}\r\r\nSecond.", [A, B], "pysubs2"),
    "byte order mark": (f"\ufeff1\n{T1}\nFirst.\n", [A], "pysubs2 webvtt"),
    "no last line break": (f"1\n{T1}\nFirst.\n\n2\n{T2}\nSecond.", [A, B], "pysubs2 webvtt"),
    "blank lines first": (f"\n\n1\n{T1}\nFirst.\n", [A], "pysubs2"),
    "every line followed by a blank one": (
        f"1\n\n{T1}\n\nFirst.\n\n\n\n2\n\n{T2}\n\nSecond.\n\n",
        [A, B],
        "pysubs2",
    ),
    "spaces behind lines": (f"1 \n{T1}  \nFirst. \n \n2\t\n{T2}\t\nSecond.\n", [A, B], "pysubs2"),
    "spaces before lines": (f"  1\n  {T1}\n  First.\n\n  2\n  {T2}\n  Second.\n", [A, B], "pysubs2"),
    "blank line inside": (
        f"1\n{T1}\nFirst\n\nand more.\n\n2\n{T2}\nSecond.\n",
        [(1.0, 2.5, "First and more."), B],
        "pysubs2 webvtt",
    ),
    "blank line under the times": (f"1\n{T1}\n\nFirst.\n\n2\n{T2}\nSecond.\n", [A, B], "pysubs2 webvtt"),
    "no blank lines": (f"1\n{T1}\nFirst.\n2\n{T2}\nSecond.\n3\n{T3}\nThird.\n", [A, B, C], "pysubs2 webvtt"),
    "neither numbers nor blank lines": (f"{T1}\nFirst.\n{T2}\nSecond.\n", [A, B], "pysubs2"),
    "no numbers": (f"{T1}\nFirst.\n\n{T2}\nSecond.\n", [A, B], "pysubs2"),
    "one number missing": (f"1\n{T1}\nFirst.\n\n{T2}\nSecond.\n\n3\n{T3}\nThird.\n", [A, B, C], "pysubs2"),
    "numbers repeated": (f"1\n{T1}\nFirst.\n\n1\n{T2}\nSecond.\n", [A, B], "pysubs2 webvtt"),
    "numbers from 0": (f"0\n{T1}\nFirst.\n\n1\n{T2}\nSecond.\n", [A, B], "pysubs2 webvtt"),
    "numbers with a full stop": (f"1.\n{T1}\nFirst.\n\n2.\n{T2}\nSecond.\n", [A, B], ""),
    "number before the times": (f"1 {T1}\nFirst.\n\n2 {T2}\nSecond.\n", [A, B], "pysubs2"),
    "two files joined": (f"\ufeff1\n{T1}\nFirst.\n\n\ufeff1\n{T2}\nSecond.\n", [A, B], ""),
    "text of digits": (
        f"1\n{T1}\n1984\n\n2\n{T2}\n2\n",
        [(1.0, 2.5, "1984"), (4.0, 5.5, "2")],
        "pysubs2 webvtt",
    ),
    "digits in the last line": (
        f"1\n{T1}\nIn the year\n2000\n\n2\n{T2}\nSecond.\n",
        [(1.0, 2.5, "In the year 2000"), B],
        "webvtt",
    ),
    "empty cue": (f"1\n{T1}\n\n2\n{T2}\nSecond.\n", [B], "pysubs2 webvtt"),
    "empty cue without a blank line": (f"1\n{T1}\n2\n{T2}\nSecond.\n", [B], "webvtt"),
    "number alone at the end": (f"1\n{T1}\nFirst.\n\n2\n", [A], "pysubs2"),
    "tags": (
        srt(T1, '<i>First</i> <font color="#fff">and</font> <b>more</b>.'),
        [(1.0, 2.5, "First and more.")],
        "pysubs2",
    ),
    "places": (srt(T1, "{\\an8}First."), [A], "pysubs2"),
    "coordinates": (srt(f"{T1} X1:100 X2:200 Y1:0 Y2:50"), [A], "pysubs2 webvtt"),
    "a line break as a tag": (srt(T1, "First<br/>and more."), [(1.0, 2.5, "First and more.")], ""),
    "less than": (srt(T1, "I <3 you, a < b"), [(1.0, 2.5, "I <3 you, a < b")], "pysubs2"),
    "an arrow in the text": (srt(T1, "right --> left"), [(1.0, 2.5, "right --> left")], "pysubs2"),
    "a speaker in the text": (srt(T1, "Ann: First."), [(1.0, 2.5, "Ann: First.")], "pysubs2 webvtt"),
    "overlapping": (
        srt("00:00:01,000 --> 00:00:05,000") + f"\n2\n{T2}\nSecond.\n",
        [(1.0, 5.0, "First."), B],
        "pysubs2 webvtt",
    ),
    "out of order": (f"1\n{T2}\nSecond.\n\n2\n{T1}\nFirst.\n", [B, A], "pysubs2 webvtt"),
    "no length": (srt("00:00:01,000 --> 00:00:01,000"), [(1.0, 1.0, "First.")], "pysubs2 webvtt"),
    "short numbers": (srt("0:0:1,0 --> 0:0:2,5"), [A], "pysubs2"),
    "two digits of a fraction": (srt("00:00:01,00 --> 00:00:02,50"), [A], "pysubs2"),
    "four digits of a fraction": (srt("00:00:01,0000 --> 00:00:02,5000"), [A], ""),
    "no fraction": (srt("00:00:01 --> 00:00:02"), [(1.0, 2.0, "First.")], ""),
    "full stop": (srt(V1), [A], "pysubs2 webvtt"),
    "colon before the fraction": (srt("00:00:01:000 --> 00:00:02:500"), [A], ""),
    "no spaces around the arrow": (srt("00:00:01,000-->00:00:02,500"), [A], "pysubs2 webvtt"),
    "short arrow": (srt("00:00:01,000 -> 00:00:02,500"), [A], "pysubs2"),
    "arrow in pieces": (srt("00:00:01,000 -- > 00:00:02,500"), [A], "pysubs2"),
    "dash for an arrow": (srt("00:00:01,000 –> 00:00:02,500"), [A], "pysubs2"),
    "arrow as one character": (srt("00:00:01,000 → 00:00:02,500"), [A], "pysubs2"),
    "arrow escaped": (srt("00:00:01,000 --&gt; 00:00:02,500"), [A], "pysubs2"),
    "no arrow": (srt("00:00:01,000 00:00:02,500"), [A], "pysubs2"),
    "comma for an arrow": (
        "0:00:01.000,0:00:02.500\nFirst.\n\n0:00:04.000,0:00:05.500\nSecond.\n",
        [A, B],
        "pysubs2",
    ),
    "spaces around colons": (srt("00: 00: 01,000 --> 00 : 00 : 02, 500"), [A], ""),
    "full width": (srt("００：００：０１，０００ --> ００：００：０２，５００"), [A], ""),
    "no hours": (srt("00:01,000 --> 00:02,500"), [A], ""),
    "100 hours": (srt("100:00:01,000 --> 100:00:02,500"), [(360001.0, 360002.5, "First.")], "webvtt"),
    "sixty seconds": (srt("00:00:60,000 --> 00:00:61,000"), [(60.0, 61.0, "First.")], "pysubs2"),
    "marks of direction": (
        f"\u202b1\n\u202b{T1}\nשלום.\n\n\u200f2\n\u200f{T2}\nSecond.\n",
        [(1.0, 2.5, "שלום."), B],
        "",
    ),
    "zeros at the end": (f"1\n{T1}\nFirst.\n\0\0\0\0", [A], ""),
    "end of file as in DOS": (f"1\n{T1}\nFirst.\n\x1a", [A], ""),
    "empty": ("", [], ""),
    "blank": ("\n \n\n", [], ""),
}
VTT: dict[str, tuple[str, list[Cue], str]] = {
    "plain": (vtt(f"{V1}\nFirst.", f"{V2}\nSecond."), [A, B], "pysubs2 webvtt"),
    "title, note and settings": (
        f"WEBVTT - title\nKind: captions\n\nNOTE nothing\nof it\n\n{V1} align:start line:0%\nFirst.\n",
        [A],
        "pysubs2 webvtt",
    ),
    "styles and regions": (
        vtt("STYLE\n::cue { color: red }", "REGION\nid:fred\nwidth:40%", f"{V1} region:fred\nFirst."),
        [A],
        "pysubs2 webvtt",
    ),
    "a style with a blank line": (vtt("STYLE\n::cue {\n\n}", f"{V1}\nFirst."), [A], "pysubs2 webvtt"),
    "identifiers": (vtt(f"intro\n{V1}\nFirst.", f"b1-2/3\n{V2}\nSecond."), [A, B], "webvtt"),
    "numbers": (vtt(f"1\n{V1}\nFirst.", f"2\n{V2}\nSecond."), [A, B], "pysubs2 webvtt"),
    "note between cues": (vtt(f"{V1}\nFirst.", "NOTE x\ny", f"{V2}\nSecond."), [A, B], "webvtt"),
    "no blank line under the title": (f"WEBVTT\n{V1}\nFirst.\n", [A], "pysubs2 webvtt"),
    "no blank lines": (f"WEBVTT\n\n1\n{V1}\nFirst.\n2\n{V2}\nSecond.\n", [A, B], "pysubs2"),
    "blank line inside": (
        vtt(f"{V1}\nFirst", "and more.", f"{V2}\nSecond."),
        [(1.0, 2.5, "First and more."), B],
        "pysubs2",
    ),
    "blank line under the times": (vtt(V1, "First.", f"{V2}\nSecond."), [A, B], "pysubs2"),
    "a line of one space": (vtt(f"{V1}\n \nFirst.", f"{V2}\nSecond."), [A, B], "pysubs2 webvtt"),
    "hours missing": (vtt("00:01.000 --> 00:02.500\nFirst."), [A], "webvtt"),
    "short numbers": (vtt("0:0:1.0 --> 0:0:2.5\nFirst."), [A], "webvtt"),
    "commas": (vtt(f"{T1}\nFirst."), [A], ""),
    "words with times": (vtt(f"{V1}\nso<00:00:01.400><c> today</c>"), [(1.0, 2.5, "so today")], "webvtt"),
    "references": (vtt(f"{V1}\na &lt; b &amp; c --&gt; d"), [(1.0, 2.5, "a < b & c --> d")], "webvtt"),
    "CRLF and a byte order mark": (f"\ufeffWEBVTT\r\n\r\n{V1}\r\nFirst.\r\n", [A], "pysubs2 webvtt"),
    "two files joined": (vtt(f"{V1}\nFirst.") + "\n" + vtt(f"{V2}\nSecond."), [A, B], "webvtt"),
    "time map of HLS": (
        f"WEBVTT\nX-TIMESTAMP-MAP=MPEGTS:900000,LOCAL:00:00:00.000\n\n{V1}\nFirst.\n",
        [A],
        "pysubs2 webvtt",
    ),
    "a zero byte": (vtt(f"{V1}\nFir\0st."), [(1.0, 2.5, "Fir\ufffdst.")], ""),
    "two byte order marks": (f"\ufeff\ufeffWEBVTT\n\n{V1}\nFirst.\n", [A], ""),
    "empty": ("WEBVTT\n", [], "pysubs2 webvtt"),
}
# What no reader can know: the line that is named, and a part of the message.
REFUSED: dict[str, tuple[str, int, str]] = {
    "not subtitles": ("Dear all,\nplease read this.\n", 1, "got 'Dear all,'"),
    "text before the first cue": (f"Subtitles by Ann\n\n1\n{T1}\nFirst.\n", 1, "got 'Subtitles by Ann'"),
    "WebVTT without cues": ("WEBVTT\n\nHello.\n", 3, "got 'Hello.'"),
    "frames": (srt("00:00:01:12 --> 00:00:02:10"), 2, "expected times such as"),
    "frames in WebVTT": (vtt("00:00:01:12 --> 00:00:02:10\nFirst."), 3, "expected times such as"),
    "negative": (srt("-00:00:01,000 --> 00:00:02,500"), 2, "expected times such as"),
    "start missing": (srt("--> 00:00:02,500"), 2, "expected times such as"),
    "end missing": (srt("00:00:01,000 -->"), 2, "expected times such as"),
    "seconds alone": (srt("1.0 --> 2.5"), 2, "expected times such as"),
    "letters": (srt("00:00:O1,000 --> 00:00:02,500"), 2, "expected times such as"),
    "times of a later cue": (
        f"1\n{T1}\nFirst.\n\n2\n00:00:04,000 --> 00:00:05,x\nSecond.\n",
        6,
        "got '00:00:04,000 --> 00:00:05,x'",
    ),
    "half the times of a later cue": (
        f"1\n{T1}\nFirst.\n\n2\n00:00:04,000\nSecond.\n",
        6,
        "got '00:00:04,000'",
    ),
    "no times of a later cue": (f"1\n{T1}\nFirst.\n\n2\nSecond.\n\n3\n{T3}\nThird.\n", 6, "got 'Second.'"),
    "no times within text": (
        f"1\n{T1}\nFirst.\n00:00:04:12 --> 00:00:05:10\nSecond.\n",
        4,
        "expected times such as",
    ),
    "text behind the times": (srt(f"{T1} Hello there"), 2, "behind the times, got 'Hello there'"),
    "end before start": (srt("00:00:02,500 --> 00:00:01,000"), 2, "ends after its start"),
    "times in brackets": ("[00:00:01.000 --> 00:00:02.500]  First.\n", 1, "expected times such as"),
    "text of a word processor": (
        "{\\rtf1\\ansi\n1\\\n00:00:01,000 --> 00:00:02,500\\\nFirst.\\\n}",
        3,
        "expected times such as",
    ),
}


def read(content: str, encoding: str = "utf-8") -> list[tuple[float, float, str]]:
    segments = parse_transcript(content.encode(encoding), "talk", is_json=False).segments
    return [(round(segment.start, 3), round(segment.end, 3), segment.text.strip()) for segment in segments]


def by_pysubs2(content: str, kind: str) -> list[Cue]:
    lines = io.TextIOWrapper(io.BytesIO(content.encode()), encoding="utf-8-sig")
    events = module("pysubs2").SSAFile.from_file(lines, format_=kind)
    cues = [(event.start / 1000, event.end / 1000, " ".join(event.plaintext.split())) for event in events]
    return [cue for cue in cues if cue[2]]


def by_webvtt(content: str, kind: str) -> list[Cue]:
    captions = module("webvtt").from_buffer(io.StringIO(content.removeprefix("\ufeff")), format=kind)

    def seconds(time: str) -> float:
        hours, minutes, rest = time.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(rest)

    cues = [
        (seconds(caption.start), seconds(caption.end), " ".join(html.unescape(caption.text).split()))
        for caption in captions
    ]
    return [cue for cue in cues if cue[2]]


REFERENCES: dict[str, Callable[[str, str], list[Cue]]] = {"pysubs2": by_pysubs2, "webvtt": by_webvtt}
CASES = [
    *(pytest.param("srt", *row, id=f"srt {name}") for name, row in SRT.items()),
    *(pytest.param("vtt", *row, id=f"vtt {name}") for name, row in VTT.items()),
]


@pytest.mark.parametrize(("kind", "content", "cues", "references"), CASES)
def test_files_in_the_wild(kind: str, content: str, cues: list[Cue], references: str) -> None:
    assert read(content) == cues
    for name in references.split():
        assert REFERENCES[name](content, kind) == cues, name


@pytest.mark.parametrize(("content", "line", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_cue_that_cannot_be_read_is_named(content: str, line: int, message: str) -> None:
    with pytest.raises(OptionError, match=rf"^talk: line {line}: ") as caught:
        read(content)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_encodings(encoding: str) -> None:
    assert read(srt(T1, "Käse, 你好."), encoding) == [(1.0, 2.5, "Käse, 你好.")]


def test_other_encodings_are_named_with_the_line() -> None:
    with pytest.raises(OptionError, match="the byte 0xe4, which is not UTF-8, in line 3"):
        read(srt(T1, "Käse."), "cp1252")


def test_voices_are_speakers() -> None:
    content = vtt(f"{V1}\n<v Ann Lee>First.</v>", f"{V2}\n<v.loud Bob>Second\n</v><v.loud Bob>line</v>")
    for text in (content, content.replace("WEBVTT", "")):  # the same where the title is missing
        segments = parse_transcript(text.encode(), "talk").segments
        assert [(segment.text, segment.speaker) for segment in segments] == [
            (" First.", "Ann Lee"),
            (" Second line", "Bob"),
        ]


@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_broken_lines_are_joined_as_they_were(kind: str) -> None:
    """With a space, or without one where the script has none."""
    texts = [
        "これはとても古い橋ですが、明日も見に行きましょうと彼は言いました。",
        "I could not help watching your face with anxiety.",
    ]
    segments = tuple(
        Segment(i, 9.0 * i, 9.0 * i + 5, text, "ja" if i == 0 else "en") for i, text in enumerate(texts)
    )
    written = write_transcript(writer_for(kind), Transcript(segments, "ja", 14.0, "nano"))
    assert max(map(len, written.splitlines())) < 42
    read = parse_transcript(written.encode(), "talk").segments
    assert [(segment.text.strip(), segment.start, segment.end) for segment in read] == [
        (text, 9.0 * i, 9.0 * i + 5) for i, text in enumerate(texts)
    ]


@given(transcripts(NASTY))
def test_subtitles_are_read_as_they_were_written(transcript: Transcript) -> None:
    """Text that looks like cues and markup too."""
    expected = [segment for segment in transcript.segments if one_line(segment.text)]
    for kind in ("srt", "vtt"):
        written = write_transcript(writer_for(kind, AS_SEGMENTS), transcript)
        segments = parse_transcript(written.encode(), "talk").segments
        assert [one_line(segment.text) for segment in segments] == [
            one_line(segment.text) for segment in expected
        ]
        assert [segment.start for segment in segments] == pytest.approx(
            [segment.start for segment in expected]
        )
        assert [segment.end for segment in segments] == pytest.approx([segment.end for segment in expected])


MARKUP = (
    *(
        "the <b> tag",
        "</div> ends",
        "<font color=red>x</font>",
        "{\\an8}top",
        "< b>",
        "1 <2> 3",
        "<_x>",
        "a<b",
    ),
    *("&lt;b&gt; &amp; R&D", "<<i>>", "<00:01>", "x <3 y", "<!-- c", "<b"),
)


def test_players_show_markup_that_was_said() -> None:
    """As FFmpeg, which mpv uses too, shows subtitles; without the joiner it hides half of these."""
    segments = [Segment(at, at, at + 0.5, f" {text}", "en") for at, text in enumerate(MARKUP)]
    split = [
        Word(part, 99.0 + at, 99.5 + at, 1.0) for at, part in enumerate((" <", "b", ">", " {", "\\an8", "}"))
    ]
    segments.append(Segment(99, 99.0, 105.0, " <b> {\\an8}", "en", words=tuple(split)))
    written = write_transcript(writer_for("srt"), Transcript(tuple(segments), "en", 99.0, "nano"))
    with av.open(io.BytesIO(written.encode()), format="srt") as container:
        packets = container.demux(container.streams.subtitles[0])
        shown = [cue.ass.decode().split(",", 8)[-1] for packet in packets for cue in packet.decode()]
    assert [text.replace(JOINER, "") for text in shown] == [*MARKUP, "<b> {\\an8}"]
    segments = parse_transcript(written.encode(), "talk").segments
    assert [segment.text.strip() for segment in segments] == [*MARKUP, "<b> {\\an8}"]


PIECES = (
    *("1", "2", "3", " ", "", "\ufeff", "Text.", "a --> b", "NOTE x", "STYLE", "WEBVTT", "-->", "00:01"),
    *(T1, T2, V3, "00:00:04:12 --> 00:00:05:10", "00:00:06,000 -> 00:00:07,000", "00:00:08,000"),
    *("<v Ann>", T1 + " align:start"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=12))
def test_no_line_of_text_is_lost(lines: list[str]) -> None:
    """Whatever the order of lines is: a file is refused, or all of its text is in a cue."""
    try:
        segments = parse_transcript("\n".join(lines).encode(), "talk", is_json=False).segments
    except OptionError:
        return
    is_vtt = next((line for line in lines if line.strip("\ufeff ")), "") == "WEBVTT"
    text = "".join(segment.text for segment in segments)
    for piece in ("Text.", "a --> b"):
        assert is_vtt or text.count(piece) == lines.count(piece)


def test_a_translation_that_looks_like_times_comes_back() -> None:
    segment = Segment(0, 0.0, 1.0, " 1", "en", translation="00:00:05,000 --> 00:00:06,000")
    written = write_transcript(writer_for("srt"), Transcript((segment,), "en", 1.0, "nano"))
    assert read(written) == [(0.0, 1.0, "1 00:00:05,000 -> 00:00:06,000")]
