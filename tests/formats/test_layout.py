"""Cues keep every word and its order, end where people cut, and hold both languages of a translation."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sottovoce.errors import OptionError
from sottovoce.formats.files import writer_for, writers_for
from sottovoce.formats.output import TranscriptInfo, write_transcript
from sottovoce.formats.subtitle_files import SrtWriter, VttWriter, transcript_of_cues
from sottovoce.formats.subtitles import LONGEST_RUN, Cue, CueMaker, one_line, timestamp
from sottovoce.options.transcribe import WriterOptions
from sottovoce.text.normalize import shared_out, unbreakable, width
from sottovoce.types import Segment, Transcript, Word
from tests.conftest import Reference, digest
from tests.formats.transcripts import as_result, module, spoken, timed_segment

SPEED = 17.0


def words_of(text: str, *, start: float = 0.0, per_letter_s: float = 0.06) -> tuple[Word, ...]:
    """Words as they would be said, one after the other; unspaced text a character each."""
    pieces = [" " + piece for piece in text.split()] if " " in text else list(text)
    words = []
    for piece in pieces:
        end = start + per_letter_s * len(piece)
        words.append(Word(piece, start, end, 1.0))
        start = end
    return tuple(words)


def segment(words: tuple[Word, ...], **more: str) -> Segment:
    text = "".join(word.word for word in words)
    return Segment(0, words[0].start, words[-1].end, text, more.pop("language", "en"), words=words, **more)


def cues(*segments: Segment, **limits: int) -> list[Cue]:
    maker = CueMaker(WriterOptions(**limits))
    return [*(cue for each in segments for cue in maker.segment(each)), *maker.flush()]


EXAMPLES = {
    "cues end with sentences": [
        "We went there in the morning.",
        "Nobody had told us about the bridge,\nso we had to walk back home.",
    ],
    "balanced lines end with punctuation": ["And today, as I promised you,\nit is about what holds them up."],
    "a title ends no sentence": [
        "I could not help watching\nyour face with some anxiety,",
        "when Mr. Thornton made\nhis confession of it.",
    ],
    "a quotation mark follows the sentence": [
        'She said.\n"Dr. Who and J. Smith came to the house."',
        "Then they all went home and slept.",
    ],
    "no word alone on a line": ["It is about all of those\nthings that hold bridges up"],
}


@pytest.mark.parametrize("texts", EXAMPLES.values(), ids=EXAMPLES)
def test_cues_and_lines_end_where_people_would_cut(texts: list[str]) -> None:
    words = words_of(" ".join(texts).replace("\n", " "))
    assert [cue.text for cue in cues(segment(words))] == texts


def test_a_short_cue_stays_long_enough_to_be_read_but_not_into_the_next() -> None:
    hello, there = words_of("Hello everybody!", per_letter_s=0.01), words_of("Well now then.", start=9.0)
    first, _ = cues(segment(hello), segment(there))
    assert first.end == pytest.approx(len("Hello everybody!") / SPEED)
    soon = words_of("Well now then.", start=hello[-1].end + 0.3)
    first, second = cues(segment(hello, speaker="A"), segment(soon, speaker="B"))
    assert hello[-1].end < first.end < second.start


def test_speakers_and_languages_do_not_share_a_cue() -> None:
    yes, no = words_of("Yes we do."), words_of("No we don't.", start=0.7)
    assert len(cues(segment(yes), segment(no))) == 1
    assert len(cues(segment(yes, speaker="A"), segment(no, speaker="B"))) == 2
    assert len(cues(segment(yes), segment(no, language="de"))) == 2


def test_short_turns_of_two_speakers_share_a_cue() -> None:
    texts = (
        ("Ann", "Who is it?", 0.0),
        ("Bob", "It is me.", 0.8),
        ("Ann", "Come in.", 1.5),
        ("Ann", "Sit down.", 9.0),
    )
    segments = tuple(
        replace(segment(words_of(text, start=start)), speaker=speaker, id=number)
        for number, (speaker, text, start) in enumerate(texts)
    )
    maker = CueMaker(WriterOptions(dialogue=True))
    cues = [cue for each in segments for cue in maker.segment(each)] + maker.flush()
    assert [cue.text for cue in cues] == ["-Who is it?\n-It is me.", "Come in.", "Sit down."]
    assert {cue.speaker for cue in cues} == {None}
    assert all(before.end <= after.start for before, after in pairwise(cues))
    assert [cue.start for cue in cues] == [0.0, 1.5, 9.0]


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("srt", "\n{\\an8}Yes"),
        ("vtt", "2.000 line:0\n"),
        ("ass", ",8,80,80,60,"),
        ("ttml", 'displayAlign="before"'),
    ],
)
def test_subtitles_at_the_top_have_the_text_and_times_of_others(name: str, mark: str) -> None:
    transcript = Transcript((Segment(0, 1.0, 2.0, " Yes", "en"),), "en", 2.0, "nano")
    top, bottom = (
        write_transcript(writer_for(name, WriterOptions(at_top=at_top)), transcript)
        for at_top in (True, False)
    )
    assert mark in top
    assert mark not in bottom
    if name in ("srt", "vtt"):
        assert transcript_of_cues(top) == transcript_of_cues(bottom)


@pytest.mark.parametrize(
    ("language", "n_letters"), [("ja", 13), ("zh", 16), ("yue", 16), ("ko", 16), ("en", 21)]
)
def test_lines_are_as_long_as_in_subtitles_of_their_language(language: str, n_letters: int) -> None:
    """Full-width characters take two cells."""
    text = "橋" * 2 * n_letters
    untimed = Segment(0, 0.0, 9.0, text, language)
    for said in (segment(words_of(text), language=language), untimed):
        assert [cue.text for cue in cues(said)] == ["橋" * n_letters + "\n" + "橋" * n_letters]


def test_widths_are_those_of_a_terminal() -> None:
    assert [width(text) for text in ("ab", "橋", "ﾊ", "e\u0301", "\u200f")] == [2, 2, 1, 1, 0]


def test_talk_without_end_is_laid_out_on_the_way() -> None:
    """Memory does not grow with somebody who never pauses; no word is lost."""
    segments = [segment(words_of("word " * 20, start=6.0 * number)) for number in range(20)]
    maker = CueMaker()
    early = [cue for spoken in segments for cue in maker.segment(spoken)]
    assert sum(len(cue.words) for cue in early) >= 400 - LONGEST_RUN - 40
    laid_out = [*early, *maker.flush()]
    assert sum(len(cue.words) for cue in laid_out) == 400
    assert all(a.end <= b.start + 1e-6 for a, b in pairwise(laid_out))


LETTERS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=60)
LIMITS = st.sampled_from([{}, {"max_line_width": 10, "max_line_count": 1}])


@settings(deadline=None)
@given(
    st.lists(st.tuples(LETTERS, st.floats(0, 3), st.floats(0, 2)), min_size=1, max_size=40),
    st.booleans(),
    LIMITS,
)
@example([("\u00ad", 0.0, 0.0)], False, {})
@example([("000000000", 0.0, 0.0), (".", 0.0, 0.0)], True, {"max_line_width": 10, "max_line_count": 1})
def test_any_text_keeps_its_words_their_order_and_the_limits(
    said: list[tuple[str, float, float]], is_spaced: bool, limits: dict[str, int]
) -> None:
    words, now = [], 0.0
    for text, pause, length in said:
        words.append(Word(f" {text}" if is_spaced else text, now + pause, now + pause + length, 1.0))
        now += pause + length
    laid_out = cues(segment(tuple(words)), **limits)
    texts = [word.text.strip() for cue in laid_out for word in cue.words]
    assert "".join(texts) == one_line("".join(text for text, _, _ in said))
    assert all(cue.start <= cue.end for cue in laid_out)
    assert all(first.end <= second.start + 1e-6 for first, second in pairwise(laid_out))
    most_cells, n_lines = limits.get("max_line_width", 42), limits.get("max_line_count", 2)
    for cue in laid_out:
        lines = cue.text.split("\n")
        assert len(lines) <= n_lines or any(width(word.text) > most_cells for word in cue.words)
        for line in lines:
            parts = unbreakable([f" {part}" for part in line.split()], str)
            assert width(line) <= most_cells or len(parts) == 1


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


def subtitles_cues(transcript: Transcript, options: WriterOptions) -> list[Cue]:
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
    laid_out = subtitles_cues(Transcript(segments, "en", 2.0, "nano"), WriterOptions())
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
