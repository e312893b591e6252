"""Cues keep every word and its order; times never go back; options are kept or refused."""

from __future__ import annotations

import io
from typing import Any

import pytest

from sottovoce.errors import OptionError
from sottovoce.formats.base import TranscriptInfo, write_transcript
from sottovoce.formats.files import writer_for, writers_for
from sottovoce.formats.srt_vtt import SrtWriter, VttWriter
from sottovoce.formats.subtitles import Cue, CueMaker, timestamp
from sottovoce.options.transcribe import WriterOptions
from sottovoce.types import Segment, Transcript, Word
from tests.conftest import Reference, digest
from tests.formats.transcripts import as_result, spoken

OPTIONS = [
    WriterOptions(layout="segments"),
    WriterOptions(layout="segments", max_line_width=20),
    WriterOptions(max_words_per_line=3),
    WriterOptions(max_line_width=12, max_words_per_line=5),
    WriterOptions(layout="segments", max_line_width=24, max_line_count=1),
    WriterOptions(layout="segments", max_line_width=24, max_line_count=2),
    WriterOptions(layout="segments", max_line_width=1, max_line_count=3),
    WriterOptions(highlight_words=True),
    WriterOptions(max_line_width=24, max_line_count=2, highlight_words=True),
]


def cues(transcript: Transcript, options: WriterOptions) -> list[Cue]:
    maker = CueMaker(options)
    return [*(cue for s in transcript.segments for cue in maker.segment(s)), *maker.flush()]


def test_a_subtitle_waits_for_the_next_segment_only_while_it_may_grow() -> None:
    first = Segment(0, 0.0, 1.0, " one", "en", words=(Word(" one", 0.0, 1.0, 1.0),))
    second = Segment(1, 9.0, 9.5, " two", "en", words=(Word(" two", 9.0, 9.5, 1.0),))
    writer = SrtWriter(WriterOptions(layout="segments", max_line_width=40, max_line_count=2))
    info = TranscriptInfo("nano")
    assert writer.begin(info) == ""
    assert writer.segment(first) == ""
    assert writer.segment(second) == "1\n00:00:00,000 --> 00:00:01,000\none\n\n"  # a pause over 3 s
    assert writer.end(info) == "2\n00:00:09,000 --> 00:00:09,500\ntwo\n\n"


def test_segments_with_and_without_words_can_follow_each_other() -> None:
    with_words = Segment(0, 0.0, 1.0, " one", "en", words=(Word(" one", 0.1, 0.9, 1.0),))
    without = Segment(1, 1.0, 2.0, " two", "en")
    segments = (with_words, without, with_words)
    laid_out = cues(Transcript(segments, "en", 2.0, "nano"), WriterOptions())
    assert [(cue.start, cue.text) for cue in laid_out] == [(0.1, "one"), (1.0, "two"), (0.1, "one")]


@pytest.mark.parametrize("translation", [None, "eins"])
@pytest.mark.parametrize("options", [WriterOptions(max_line_width=10), WriterOptions(reading_speed=17.0)])
def test_options_that_place_words_need_word_times(options: WriterOptions, translation: str | None) -> None:
    segment = Segment(0, 0.0, 1.0, " one", "en", translation=translation)
    with pytest.raises(OptionError, match="subtitle layout needs word times: ask for word timestamps"):
        CueMaker(options).segment(segment)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_line_width": 0}, "max_line_width: expected at least 1, got 0"),
        ({"offset_n": -1}, "offset_n: expected at least 0, got -1"),
        ({"layout": "segments", "max_line_count": 2}, "needs max_line_width"),
        ({"layout": "segments", "reading_speed": 17}, "needs layout 'reading', got 'segments'"),
        ({"layout": "reading", "highlight_words": True}, "layout 'reading': cannot be combined"),
        ({"max_line_width": 9, "max_line_count": 2, "max_words_per_line": 3}, "cannot be combined"),
        ({"reading_speed": 0.5}, "reading_speed: expected at least 1 a second, got 0.5"),
        ({"reading_speed": 17, "max_words_per_line": 3}, "reading_speed: cannot be combined"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        WriterOptions(**options)


def test_srt_counts_on_from_another_document() -> None:
    segments = tuple(Segment(i, float(i), i + 1.0, " one", "en") for i in range(2))
    transcript = Transcript(segments, "en", 2.0, "nano")
    writer = SrtWriter(WriterOptions(offset_n=7))
    for _ in range(2):
        document = write_transcript(writer, transcript)
        assert [line for line in document.splitlines() if line.isdigit()] == ["8", "9"]
    with pytest.raises(OptionError, match="offset_n numbers the subtitles of srt"):
        writer_for("vtt", WriterOptions(offset_n=7))
    assert len(writers_for("srt,vtt,json", WriterOptions(offset_n=7))) == 3


def test_timestamps_carry_their_rounding() -> None:
    assert timestamp(0.0, marker=",", hours=True) == "00:00:00,000"
    assert timestamp(59.9996, marker=".", hours=False) == "01:00.000"
    assert timestamp(3599.9999, marker=".", hours=False) == "01:00:00.000"
    assert timestamp(360_000.001, marker=",", hours=True) == "100:00:00,001"


@pytest.mark.parametrize("is_highlighted", [False, True])
def test_vtt_escapes_what_a_player_would_swallow(is_highlighted: bool) -> None:
    word = Word(" <i>&-->", 0.0, 1.0, 1.0)
    transcript = Transcript((Segment(0, 0.0, 1.0, word.word, "en", words=(word,)),), "en", 1.0, "nano")
    text = write_transcript(VttWriter(WriterOptions(highlight_words=is_highlighted)), transcript)
    line = "&lt;i&gt;&amp;--&gt;"
    assert text.splitlines()[3] == (f"<u>{line}</u>" if is_highlighted else line)


def documents_of_whisper(name: str, transcripts: list[Transcript], **options: Any) -> list[str]:
    """Hashes of what openai-whisper writes."""
    theirs = pytest.importorskip("whisper.utils", reason="openai-whisper is not installed")
    written = [io.StringIO() for _ in transcripts]
    for transcript, file in zip(transcripts, written, strict=True):
        theirs.get_writer(name, ".").write_result(as_result(transcript), file, **options)
    return [digest(file.getvalue()) for file in written]


@pytest.mark.reference
@pytest.mark.parametrize("name", ["txt", "srt", "vtt", "tsv"])
@pytest.mark.parametrize("seed", range(8))
def test_documents_equal_openai_whispers(name: str, seed: int, reference: Reference) -> None:
    """Segments without text are left out of the subtitles here; there they are empty cues."""
    transcripts = [spoken(seed, with_words=with_words) for with_words in (True, False)]
    if name in ("srt", "vtt"):
        transcripts = [
            Transcript(tuple(s for s in transcript.segments if s.text), "en", transcript.duration, "nano")
            for transcript in transcripts
        ]
    options = WriterOptions(layout="segments") if name in ("srt", "vtt") else None
    ours = [digest(write_transcript(writer_for(name, options), transcript)) for transcript in transcripts]
    assert ours == reference(lambda: documents_of_whisper(name, transcripts))


@pytest.mark.reference
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["srt", "vtt"])
def test_lines_are_broken_as_openai_whisper_breaks_them(
    name: str, options: WriterOptions, reference: Reference
) -> None:
    names = ("max_line_width", "max_line_count", "max_words_per_line", "highlight_words")
    given = {option: getattr(options, option) for option in names}
    transcripts = [spoken(seed) for seed in range(12)]
    ours = [digest(write_transcript(writer_for(name, options), transcript)) for transcript in transcripts]
    assert ours == reference(lambda: documents_of_whisper(name, transcripts, **given))
