"""Who speaks when: turns and overlaps of tones, and voices joined to speakers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.speakers.errors import diarization_errors
from sottovoce.audio.io import Recording
from sottovoce.options.transcribe import SpeakerOptions
from sottovoce.speakers.diarize import (
    ClusteringDiarizer,
    DiarizedWindow,
    assign_speakers,
    groups_after,
    mean_linkage,
    most_active,
    speaker_vectors,
    unit,
)
from sottovoce.speakers.labels import letter, letter_index, name_turns
from sottovoce.types import Floats, Turn
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


def plain_joins(vectors: Floats) -> list[tuple[frozenset[int], float]]:
    """What is joined at which distance, looking for the nearest pair of groups each time."""
    groups = [frozenset([index]) for index in range(len(vectors))]
    joins = []
    while len(groups) > 1:
        pairs = [
            (np.mean([1 - vectors[i] @ vectors[j] for i in first for j in second]), first, second)
            for first, second in itertools.combinations(groups, 2)
        ]
        distance, first, second = min(pairs, key=lambda pair: pair[0])
        groups = [group for group in groups if group not in (first, second)] + [first | second]
        joins.append((first | second, float(distance)))
    return joins


@pytest.mark.parametrize("seed", range(8))
def test_chains_of_neighbours_find_the_tree_of_the_plain_algorithm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = unit(rng.standard_normal((rng.integers(2, 14), 4)).astype(np.float32))
    joins = mean_linkage(vectors)
    expected = plain_joins(vectors)
    assert [join.distance for join in joins] == pytest.approx([d for _, d in expected], abs=1e-5)
    for n_joins in range(len(joins) + 1):
        labels = groups_after(len(vectors), joins[:n_joins])
        assert len(set(labels)) == len(vectors) - n_joins


def voices(n_each: list[int], spread: float = 0.1, seed: int = 0) -> tuple[Floats, list[int]]:
    """Unit vectors around so many directions, and which is whose."""
    rng = np.random.default_rng(seed)
    owners = [owner for owner, n in enumerate(n_each) for _ in range(n)]
    centres = np.eye(len(n_each), 16)
    vectors = centres[owners] + spread * rng.standard_normal((len(owners), 16))
    return unit(vectors.astype(np.float32)), owners


def speakers(vectors: Floats, **wish: object) -> Floats:
    settings: dict[str, object] = {"n_speakers": None, "most": 10, "distance": 0.4, "least_weight": 2.0}
    weights = np.ones(len(vectors), np.float32)
    return speaker_vectors(vectors, weights, **{**settings, **wish})  # type: ignore[arg-type]


def agree(vectors: Floats, centres: Floats, owners: list[int]) -> bool:
    """Whether vectors are nearest to one centre exactly where they have one owner."""
    nearest = np.argmax(vectors @ centres.T, axis=1)
    pairs = set(zip(owners, nearest.tolist(), strict=True))
    return len(pairs) == len(set(owners))


@pytest.mark.parametrize("n_each", [[6], [5, 7], [9, 3, 4], [3, 8, 5, 4]])
def test_the_number_of_speakers_is_found(n_each: list[int]) -> None:
    vectors, owners = voices(n_each)
    centres = speakers(vectors)
    assert len(centres) == len(n_each)
    assert agree(vectors, centres, owners)
    assert np.linalg.norm(centres, axis=1) == pytest.approx(1.0, abs=1e-5)


def test_a_given_number_holds_and_an_odd_sound_is_nobody() -> None:
    vectors, owners = voices([8, 8])
    odd = np.zeros((1, 16), np.float32)
    odd[0, 9] = 1.0
    centres = speakers(np.concatenate([vectors, odd]), n_speakers=2)
    assert len(centres) == 2
    assert agree(vectors, centres, owners)


def test_the_number_of_speakers_is_within_its_limits() -> None:
    vectors, _ = voices([8, 6, 4, 1])
    assert len(speakers(vectors)) == 3
    assert len(speakers(vectors, most=2)) == 2
    assert len(speakers(vectors, least_weight=0.0)) == 4
    assert len(speakers(vectors[-1:])) == 1
    assert len(speakers(vectors[:0])) == 0
    assert len(speakers(voices([1, 1])[0], n_speakers=5)) == 2


def test_at_least_so_many_speakers_are_found() -> None:
    """Two voices nearer than the distance are one, unless there are two at least."""
    angles = np.array([0.0, 0.02, 0.04, 0.5, 0.52, 0.54], np.float32)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert len(speakers(vectors, least=1, distance=0.5)) == 1
    centres = speakers(vectors, least=2, distance=0.5)
    assert sorted(np.argmax(vectors @ centres.T, axis=1).tolist()) == [0, 0, 0, 1, 1, 1]


def test_a_long_recording_is_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.speakers.diarize.MOST_VECTORS", 30)
    vectors, owners = voices([90, 60, 50])
    assert agree(vectors, speakers(vectors, least_weight=10.0), owners)
