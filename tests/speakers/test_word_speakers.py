"""Words and segments get their speakers; transcriptions with speakers that are handed in."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce import FallbackOptions, Model, TranscribeOptions
from sottovoce.audio.io import Recording
from sottovoce.errors import AudioError
from sottovoce.options.transcribe import SpeakerOptions
from sottovoce.speakers.diarize import ClusteringDiarizer
from sottovoce.speakers.labels import SpeakerLabels
from sottovoce.types import Segment, Token, Turn, Word
from tests.speakers.tones import ToneSpeakers, ToneVoices


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


CLIP = Path(__file__).parents[2] / "examples" / "clips" / "de.flac"
ONCE = TranscribeOptions(fallback=FallbackOptions(temperatures=(0.0,)))


class Known:
    """Tells the turns that it was made with, and how often it was asked."""

    def __init__(self, *turns: Turn) -> None:
        self.n_asked = 0
        self._turns = turns

    def turns(self, recording: Recording) -> list[Turn]:
        self.n_asked += 1
        return list(self._turns)


@pytest.fixture(scope="module")
def plain(model: Model) -> tuple[Segment, ...]:
    return model.transcribe(CLIP, language="de", word_timestamps=True, options=ONCE).collect().segments


def middle(segments: tuple[Segment, ...]) -> float:
    """Where a word of the recording ends, in its middle."""
    words = [word for segment in segments for word in segment.words or ()]
    return words[len(words) // 2].end


def test_segments_are_cut_where_the_speaker_changes(model: Model, plain: tuple[Segment, ...]) -> None:
    at = middle(plain)
    turns = (Turn(0.0, at, "A"), Turn(at, 60.0, "B"))
    known = Known(*turns)
    transcript = model.transcribe(CLIP, language="de", speakers=known, options=ONCE).collect()
    assert known.n_asked == 1
    assert transcript.turns == turns
    assert transcript.text == "".join(segment.text for segment in plain).strip()
    assert len(transcript.segments) == len(plain) + 1
    assert [segment.id for segment in transcript.segments] == list(range(len(transcript.segments)))
    assert [segment.speaker for segment in transcript.segments] == sorted(
        s.speaker or "" for s in transcript.segments
    )
    assert {segment.speaker for segment in transcript.segments} == {"A", "B"}
    tokens = [token for segment in transcript.segments for token in segment.tokens]
    assert tokens == [token for segment in plain for token in segment.tokens]


@pytest.mark.parametrize("options", [ONCE, replace(ONCE, mode="vad", batch_size=2)])
def test_several_recordings_and_modes(model: Model, options: TranscribeOptions) -> None:
    known = Known(Turn(0.0, 60.0, "A"))
    wish = replace(options, speakers=known)
    for _, transcript in model.transcribe_files([CLIP, CLIP], language="de", options=wish, batch_size=2):
        assert not isinstance(transcript, Exception)
        assert {word.speaker for segment in transcript.segments for word in segment.words or ()} == {"A"}
    assert known.n_asked == 2


def test_our_own_hears_a_recording_piece_by_piece(model: Model) -> None:
    """Tones are not in speech: there is nobody, and words have no speaker."""
    diarizer = ClusteringDiarizer(ToneSpeakers(), ToneVoices(), SpeakerOptions())
    transcript = model.transcribe(CLIP, language="de", speakers=diarizer, options=ONCE).collect()
    assert transcript.turns == ()
    assert {segment.speaker for segment in transcript.segments} == {None}


def test_a_transcription_that_stops_early_tells_no_speakers_apart(model: Model) -> None:
    known = Known(Turn(0.0, 60.0, "A"))
    with model.transcribe(CLIP, language="de", speakers=known):
        pass
    assert known.n_asked == 0
    assert model.transcribe(CLIP, language="de", speakers=known, abort=lambda: True).collect().segments == ()


def test_a_recording_that_cannot_be_read_is_said_once(model: Model, tmp_path: Path) -> None:
    (tmp_path / "x.wav").write_bytes(b"no sound")
    diarizer = ClusteringDiarizer(ToneSpeakers(), ToneVoices(), SpeakerOptions())
    with pytest.raises(AudioError, match=r"x\.wav"):
        list(model.transcribe(tmp_path / "x.wav", speakers=diarizer))
