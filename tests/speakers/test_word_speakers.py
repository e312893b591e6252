"""Words and segments get the speaker who says them, and segments are cut where the speaker changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sottovoce.speakers.labels import SpeakerLabels, shared_out
from sottovoce.types import Segment, Token, Turn, Word


def words(text: str, start: float = 0.0, each: float = 0.5) -> tuple[Word, ...]:
    """Words of half a second; a `|` is a pause of a second. Tokens are counted from 100."""
    made: list[Word] = []
    for piece in text.split():
        if piece == "|":
            start += 1.0
            continue
        token = Token(100 + len(made), " " + piece, start, start + each, 1.0)
        made.append(Word(" " + piece, start, start + each, 0.9, tokens=(token,)))
        start += each
    return tuple(made)


def segment(said: tuple[Word, ...]) -> Segment:
    tokens = (50_364, *(token.id for word in said for token in word.tokens), 50_400)
    text = "".join(word.word for word in said)
    return Segment(3, said[0].start, said[-1].end, text, "en", tokens=tokens, words=said)


def test_a_segment_is_cut_where_the_speaker_changes() -> None:
    turns = [Turn(0.0, 1.4, "A"), Turn(1.6, 3.0, "B")]
    said = segment(words("How are you? Fine, thank you."))
    first, second = SpeakerLabels(turns).split(said)
    assert (first.text, second.text) == (" How are you?", " Fine, thank you.")
    assert (first.speaker, second.speaker) == ("A", "B")
    assert {word.speaker for word in first.words or ()} == {"A"}
    assert (first.start, first.end, second.start, second.end) == (0.0, 1.5, 1.5, 3.0)
    assert first.tokens == (50_364, 100, 101, 102)
    assert second.tokens == (103, 104, 105, 50_400)


def test_a_change_waits_for_the_end_of_a_sentence_nearby() -> None:
    """The turn begins 0.2 s before the sentence ends: word times are no better than that."""
    turns = [Turn(0.0, 1.3, "A"), Turn(1.3, 3.0, "B")]
    first, second = SpeakerLabels(turns).split(segment(words("How are you? Fine, thank you.")))
    assert (first.text, second.text) == (" How are you?", " Fine, thank you.")


def test_one_speaker_leaves_the_segment_whole() -> None:
    said = segment(words("one two three"))
    (whole,) = SpeakerLabels([Turn(0.0, 9.0, "A")]).split(said)
    assert replace(whole, speaker=None, words=said.words) == said
    assert whole.speaker == "A"


def test_words_between_turns_go_to_the_nearest() -> None:
    turns = [Turn(0.0, 1.0, "A"), Turn(8.0, 9.0, "B")]
    (near_a,) = SpeakerLabels(turns).split(segment(words("um", 1.5)))
    (near_b,) = SpeakerLabels(turns).split(segment(words("well", 7.0)))
    (far,) = SpeakerLabels(turns).split(segment(words("later", 100.0)))
    assert (near_a.speaker, near_b.speaker, far.speaker) == ("A", "B", "B")


def test_where_two_speak_at_once_the_one_who_spoke_goes_on() -> None:
    turns = [Turn(0.0, 4.0, "A"), Turn(2.0, 3.0, "B")]
    (whole,) = SpeakerLabels(turns).split(segment(words("a b c d e f g")))
    assert whole.speaker == "A"


def test_without_turns_nothing_has_a_speaker() -> None:
    said = segment(words("one two"))
    assert list(SpeakerLabels([]).split(said)) == [said]


def test_a_segment_without_words_is_whose_it_is_most() -> None:
    turns = [Turn(0.0, 1.0, "A"), Turn(1.0, 4.0, "B")]
    (whole,) = SpeakerLabels(turns).split(Segment(0, 0.0, 4.0, " hello", "en"))
    assert whole.speaker == "B"


def test_tokens_of_words_without_tokens_stay_with_the_first() -> None:
    said = [words("a b")[:1], (replace(words("a b")[1], tokens=()),)]
    assert shared_out((50_364, 100, 7, 50_400), said) == [(50_364, 100, 7, 50_400), ()]


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
    now, made = 0.0, []
    for number, (pause, length, text) in enumerate(said):
        token = Token(100 + number, text, now, now, 1.0)
        made.append(Word(" " + text, now + pause, now + pause + length, 0.5, tokens=(token,)))
        now += pause + length
    whole = segment(tuple(made))
    parts = list(SpeakerLabels(sorted(turns, key=lambda turn: turn.start)).split(whole))
    assert "".join(part.text for part in parts) == whole.text
    assert [token for part in parts for token in part.tokens] == list(whole.tokens)
    found = [word for part in parts for word in part.words or ()]
    assert [replace(word, speaker=None) for word in found] == made
    assert all((part.speaker is None) == (not turns) for part in parts)
    assert all(one.speaker != other.speaker for one, other in pairwise(parts))
    assert (parts[0].start, parts[-1].end) == (whole.start, whole.end)
