"""Voices joined to speakers: the tree is that of the plain algorithm, and numbers of speakers hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sottovoce.speakers.diarize import groups_after, mean_linkage, speaker_vectors, unit
from sottovoce.types import Floats


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
