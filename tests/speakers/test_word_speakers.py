"""Words and segments get the speaker who says them, and segments are cut where the speaker changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.speakers.labels import SpeakerLabels
from sottovoce.types import Segment, Token, Turn, Word


def words(text: str, start: float = 0.0, each: float = 0.5) -> tuple[Word, ...]:
    """Words of half a second; a `|` is a pause of a second. Tokens are counted from 100."""
    words_of_text: list[Word] = []
    for piece in text.split():
        if piece == "|":
            start += 1.0
            continue
        token = Token(100 + len(words_of_text), " " + piece, start, start + each, 1.0)
        words_of_text.append(Word(" " + piece, start, start + each, 0.9, tokens=(token,)))
        start += each
    return tuple(words_of_text)


def segment(said: tuple[Word, ...]) -> Segment:
    tokens = (50_364, *(token.id for word in said for token in word.tokens), 50_400)
    text = "".join(word.word for word in said)
    return Segment(3, said[0].start, said[-1].end, text, "en", tokens=tokens, words=said)


@pytest.mark.parametrize(("end_s", "start_s"), [(1.4, 1.6), (1.3, 1.3)])
def test_a_segment_is_cut_where_the_speaker_changes(end_s: float, start_s: float) -> None:
    """Or at the end of a sentence that is 0.2 s away: word times are no better than that."""
    whole = segment(words("How are you? Fine, thank you."))
    first, second = SpeakerLabels([Turn(0.0, end_s, "A"), Turn(start_s, 3.0, "B")]).split(whole)
    assert (first.text, second.text) == (" How are you?", " Fine, thank you.")
    assert (first.speaker, second.speaker) == ("A", "B")
    assert {word.speaker for word in first.words or ()} == {"A"}
    assert (first.start, first.end, second.start, second.end) == (0.0, 1.5, 1.5, 3.0)
    assert first.tokens == (50_364, 100, 101, 102)
    assert second.tokens == (103, 104, 105, 50_400)


SPEAKERS = {
    "a word between turns is of the nearest": ([(0.0, 1.0, "A"), (8.0, 9.0, "B")], words("um", 1.5), "A"),
    "or of the turn that follows": ([(0.0, 1.0, "A"), (8.0, 9.0, "B")], words("well", 7.0), "B"),
    "or of the last": ([(0.0, 1.0, "A"), (8.0, 9.0, "B")], words("later", 100.0), "B"),
    "who spoke goes on where two speak": ([(0.0, 4.0, "A"), (2.0, 3.0, "B")], words("a b c d e f g"), "A"),
    "one speaker leaves it whole": ([(0.0, 9.0, "A")], words("one two three"), "A"),
}


@pytest.mark.parametrize(("turns", "said", "speaker"), SPEAKERS.values(), ids=SPEAKERS)
def test_a_segment_of_one_speaker(
    turns: list[tuple[float, float, str]], said: tuple[Word, ...], speaker: str
) -> None:
    (whole,) = SpeakerLabels([Turn(*turn) for turn in turns]).split(segment(said))
    assert replace(whole, speaker=None, words=said) == segment(said)
    assert whole.speaker == speaker


def test_a_segment_without_words_is_whose_it_is_most() -> None:
    turns = [Turn(0.0, 1.0, "A"), Turn(1.0, 4.0, "B")]
    (whole,) = SpeakerLabels(turns).split(Segment(0, 0.0, 4.0, " hello", "en"))
    assert whole.speaker == "B"


SPANS = st.tuples(st.floats(0, 60), st.floats(0, 5), st.sampled_from("ABC"))


@given(
    st.lists(SPANS, max_size=12),
    st.lists(
        st.tuples(st.floats(0, 2), st.floats(0, 1), st.sampled_from(["ja", "nein.", "so,"])), min_size=1
    ),
)
def test_nothing_is_lost_whatever_the_turns(
    spans: list[tuple[float, float, str]], said: list[tuple[float, float, str]]
) -> None:
    turns = [Turn(start, start + length, speaker) for start, length, speaker in spans]
    now, expected = 0.0, []
    for number, (pause, length, text) in enumerate(said):
        tokens = (Token(100 + number, text, now, now, 1.0),) if number % 3 != 1 else ()
        expected.append(Word(" " + text, now + pause, now + pause + length, 0.5, tokens=tokens))
        now += pause + length
    whole = segment(tuple(expected))
    parts = list(SpeakerLabels(sorted(turns, key=lambda turn: turn.start)).split(whole))
    assert "".join(part.text for part in parts) == whole.text
    assert [token for part in parts for token in part.tokens] == list(whole.tokens)
    for part in parts:
        assert {token.id for word in part.words or () for token in word.tokens} <= set(part.tokens)
    labelled = [word for part in parts for word in part.words or ()]
    assert [replace(word, speaker=None) for word in labelled] == expected
    assert all((part.speaker is None) == (not turns) for part in parts)
    assert all(before.speaker != other.speaker for before, other in pairwise(parts))
    assert (parts[0].start, parts[-1].end) == (whole.start, whole.end)
