"""Subtitles for reading: cut where people would cut, wide characters counted, nothing invented."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sottovoce.formats.subtitles import LONGEST_RUN, Cue, CueMaker, one_line
from sottovoce.options.transcribe import WriterOptions
from sottovoce.text.normalize import width
from sottovoce.types import Segment, Word

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


@pytest.mark.parametrize(
    ("language", "n_letters"), [("ja", 13), ("zh", 16), ("yue", 16), ("ko", 16), ("en", 21)]
)
def test_lines_are_as_long_as_in_subtitles_of_their_language(language: str, n_letters: int) -> None:
    """Full-width characters take two cells."""
    text = "橋" * 2 * n_letters
    untimed = Segment(0, 0.0, 9.0, text, language)
    for spoken in (segment(words_of(text), language=language), untimed):
        assert [cue.text for cue in cues(spoken)] == ["橋" * n_letters + "\n" + "橋" * n_letters]


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
        assert all(width(line) <= most_cells or len(line.split()) == 1 for line in lines)
