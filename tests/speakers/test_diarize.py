"""Who speaks when, with networks that hear tones: turns, overlaps, and how many there are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.speakers.errors import diarization_errors
from sottovoce.audio.io import Recording
from sottovoce.options.transcribe import SpeakerOptions
from sottovoce.speakers.diarize import ClusteringDiarizer, DiarizedWindow, assign_speakers, most_active
from sottovoce.speakers.labels import letter, letter_index, name_turns
from sottovoce.types import Turn
from tests.speakers.tones import ToneSpeakers, ToneVoices, recording

TALK = (
    Turn(0.5, 4.0, "middle"),
    Turn(4.3, 9.0, "low"),
    Turn(8.0, 12.0, "middle"),
    Turn(12.5, 17.0, "high"),
    Turn(17.4, 22.0, "low"),
)
AUTO = SpeakerOptions()


def turns_of_talk(options: SpeakerOptions = AUTO, seconds: float = 23.0) -> list[Turn]:
    samples = recording(TALK, seconds)
    return ClusteringDiarizer(ToneSpeakers(), ToneVoices(), options).turns(Recording(samples))


@pytest.mark.parametrize("n_speakers", [None, 3])
def test_turns_are_found_with_their_overlap(n_speakers: int | None) -> None:
    turns = turns_of_talk(replace(AUTO, n_speakers=n_speakers))
    assert {turn.speaker for turn in turns} == {"A", "B", "C"}
    assert turns[0].speaker == "A"
    assert turns == sorted(turns, key=lambda turn: (turn.start, turn.end))
    errors = diarization_errors(TALK, turns, collar_s=0.1)
    assert errors.rate < 0.03
    both = [turn for turn in turns if turn.start < 8.5 < turn.end]
    assert {turn.speaker for turn in both} == {"A", "B"}


def test_fewer_speakers_are_found_where_fewer_are_asked_for() -> None:
    turns = turns_of_talk(replace(AUTO, n_speakers=2))
    assert {turn.speaker for turn in turns} == {"A", "B"}
    assert len({turn.speaker for turn in turns_of_talk(replace(AUTO, most=2))}) == 2


def test_a_speaker_of_too_little_speech_is_merged() -> None:
    assert len({turn.speaker for turn in turns_of_talk(replace(AUTO, least_speech_s=4.4))}) == 2


@pytest.mark.parametrize("seconds", [0.1, 3.0, 30.0])
def test_silence_has_no_speakers(seconds: float) -> None:
    silence = np.zeros(int(seconds * 16_000), np.float32)
    assert ClusteringDiarizer(ToneSpeakers(), ToneVoices(), AUTO).turns(Recording(silence)) == []


def test_a_recording_shorter_than_a_window() -> None:
    samples = recording((Turn(0.5, 2.5, "low"),), 3.0)
    (turn,) = ClusteringDiarizer(ToneSpeakers(), ToneVoices(), AUTO).turns(Recording(samples))
    assert (turn.start, turn.end) == pytest.approx((0.5, 2.5), abs=0.05)
    assert turn.speaker == "A"


def test_windows_cover_the_recording_however_it_is_read() -> None:
    diarizer = ClusteringDiarizer(ToneSpeakers(), ToneVoices(), AUTO)
    step = 59 * 270
    for n_samples in (1, 80_000, 80_001, 80_000 + step, 80_001 + step, 200_000):
        samples = np.arange(1, n_samples + 1, dtype=np.float32) / 2**20
        with Recording(samples).open() as reader:
            windows = [window for batch in diarizer.batches(reader) for window in batch]
        assert all(len(window) == 80_000 for window in windows)
        starts = [int(window[0] * 2**20) - 1 for window in windows]
        assert starts == [index * step for index in range(len(windows))]
        assert starts[-1] < n_samples <= starts[-1] + 80_000


def test_no_two_of_a_window_are_one_speaker_while_there_are_enough() -> None:
    centres = np.eye(2, 3, dtype=np.float32)
    vectors = np.array([[1, 0, 0], [0.9, 0.1, 0], [0.8, 0, 0.2]], np.float32)
    window = DiarizedWindow(np.zeros((4, 3), np.float32), vectors, np.array([2.0, 2.0, 0.0], np.float32))
    assert dict(assign_speakers(window, centres)) == {0: 0, 1: 1}
    everybody = replace(window, alone_s=np.ones(3, np.float32))
    assert sorted(dict(assign_speakers(everybody, centres))) == [0, 1, 2]


def test_as_many_are_heard_as_speak() -> None:
    scores = np.array([[0.9, 0.8, 0.0], [0.2, 0.7, 0.1], [0.0, 0.0, 0.0]], np.float32)
    heard = most_active(scores, np.array([2, 1, 1]))
    assert heard.tolist() == [[True, True, False], [False, True, False], [False, False, False]]


def test_known_voices_have_their_names() -> None:
    voice = recording((Turn(0.0, 2.0, "low"),), 2.0)
    known = {"Anna": voice, "Nobody": np.zeros(32_000, np.float32)}
    turns = turns_of_talk(replace(AUTO, known=known))
    ints = (voice * 32768).astype(np.int16)
    assert turns_of_talk(replace(AUTO, known={**known, "Anna": np.stack([ints, ints], axis=1)})) == turns
    assert {turn.speaker for turn in turns} == {"A", "Anna", "B"}
    assert [turn.speaker for turn in turns if turn.start < 4.5 < turn.end] == ["Anna"]


def test_names_are_letters_in_the_order_of_turns() -> None:
    places = (0, 1, 25, 26, 27, 701, 702)
    assert [letter(place) for place in places] == ["A", "B", "Z", "AA", "AB", "ZZ", "AAA"]
    assert [letter_index(letter(place)) for place in places] == list(places)
    turns = [(5.0, 6.0, 7), (1.0, 2.0, 8)]
    assert name_turns(turns) == [Turn(1.0, 2.0, "A"), Turn(5.0, 6.0, "B")]
    assert name_turns(turns, {7: "A"}) == [Turn(1.0, 2.0, "B"), Turn(5.0, 6.0, "A")]
