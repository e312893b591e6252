"""Two languages in laid out subtitles: nothing is lost, limits hold, and each cue has its part of both."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.formats.base import write_transcript
from sottovoce.formats.files import writer_for
from sottovoce.formats.subtitles import Cue, CueMaker
from sottovoce.options.transcribe import WriterOptions
from sottovoce.text.normalize import shared_out, width
from sottovoce.types import Segment, Transcript
from tests.formats.transcripts import module, timed_segment

SAID = "The quick brown fox jumps over the lazy dog, and nobody sees it there at all."
MEANT = "Der schnelle braune Fuchs springt über den faulen Hund, und niemand sieht ihn dort."
LAYOUTS = (
    WriterOptions(max_line_width=20),
    WriterOptions(max_line_width=20, max_line_count=2),
    WriterOptions(max_words_per_line=4),
    WriterOptions(reading_speed=17.0),
    WriterOptions(reading_speed=17.0, max_line_width=24, max_line_count=1),
)


@pytest.mark.parametrize("options", LAYOUTS)
def test_both_languages_are_whole_in_every_layout(options: WriterOptions) -> None:
    transcript = Transcript(
        (timed_segment(SAID, translation=MEANT), timed_segment(SAID, 20.0, translation=MEANT)),
        "en",
        40.0,
        "nano",
    )
    cues = list(module("srt").parse(write_transcript(writer_for("srt", options), transcript)))
    words = " ".join(cue.content.replace("\n", " ") for cue in cues).split()
    assert sorted(words) == sorted(2 * (SAID + " " + MEANT).split())
    assert [word for word in words if word in MEANT.split() and word not in SAID.split()] == [
        word for word in 2 * MEANT.split() if word not in SAID.split()
    ]
    if options.max_line_width:
        lines = [line for cue in cues for line in cue.content.splitlines()]
        assert max(map(len, lines)) <= options.max_line_width
    assert all(cue.end <= after.start for cue, after in pairwise(cues))


def cues_of(segments: Sequence[Segment], options: WriterOptions) -> list[Cue]:
    maker = CueMaker(options)
    return [*(cue for segment in segments for cue in maker.segment(segment)), *maker.flush()]


def test_each_word_is_underlined_once_and_the_translation_below_never() -> None:
    cues = cues_of([timed_segment("One two.", translation="Eins zwei.")], WriterOptions(highlight_words=True))
    assert [(cue.start, cue.end, cue.text) for cue in cues] == [
        (0.0, 0.3, "<u>One</u> two.\nEins zwei."),
        (0.3, 0.4, "One two.\nEins zwei."),
        (0.4, 0.7, "One <u>two.</u>\nEins zwei."),
    ]


def test_segments_without_translation_are_as_ever() -> None:
    options = WriterOptions(reading_speed=17.0)
    alone = cues_of([timed_segment(SAID)], options)
    mixed = cues_of([timed_segment(SAID), timed_segment(SAID, 20.0, translation=MEANT)], options)
    assert mixed[: len(alone)] == alone


@pytest.mark.parametrize("options", [WriterOptions(), *LAYOUTS])
def test_a_translation_of_nothing_has_no_cue(options: WriterOptions) -> None:
    empty = Segment(0, 0.0, 1.0, " ", "en", words=(), translation=MEANT)
    assert write_transcript(writer_for("srt", options), Transcript((empty,), "en", 1.0, "nano")) == ""


def test_languages_without_spaces_are_cut_between_characters() -> None:
    assert shared_out("你好世界", [1, 1]) == [["你", "好"], ["世", "界"]]


@given(st.text(), st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_nothing_of_a_translation_is_lost(text: str, widths: list[int]) -> None:
    parts = shared_out(text, widths)
    assert len(parts) == len(widths)
    joined = "".join(piece for part in parts for piece in part)
    assert "".join(joined.split()) == "".join(text.replace("-->", "->").split())
    assert width(joined) >= 0
