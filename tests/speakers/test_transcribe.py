"""Transcriptions with speakers: what tells them apart is handed in, so that no weights are needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce import FallbackOptions, Model, TranscribeOptions
from sottovoce.audio.io import Recording
from sottovoce.errors import AudioError
from sottovoce.options.transcribe import SpeakerOptions
from sottovoce.speakers.diarize import ClusteringDiarizer
from sottovoce.types import Segment, Turn
from tests.speakers.tones import ToneSpeakers, ToneVoices

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
