"""Agglomerative clustering of voice vectors by mean cosine distance.

The number of speakers is given, or follows from a distance beyond which voices differ.

Source: F. Murtagh and P. Contreras, Algorithms for hierarchical clustering (arXiv 1105.0121): chains of
    nearest neighbours, which find the same tree as looking for the nearest pair each time, in quadratic time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sottovoce.speakers.base import Floats

Labels = npt.NDArray[np.intp]
MOST_VECTORS = 4000
"""So many are joined, evenly spread over the recording; the others go to the nearest speaker (64 MB)."""
N_ROUNDS = 4
LEAST_SHARE = 0.15
"""Of the mean of given speakers: who weighs less is an odd sound rather than one of them."""


@dataclass(frozen=True, slots=True)
class Join:
    """A merge of two clusters, each given by one member, at their mean distance."""

    first: int
    second: int
    distance: float


def mean_linkage(vectors: Floats) -> list[Join]:
    """Merge unit vectors (n, size) float32 into one cluster: all joins, the nearest first, by one minus the
    cosine.
    """
    n = len(vectors)
    distances = 1.0 - vectors @ vectors.T
    np.fill_diagonal(distances, np.inf)
    sizes = np.ones(n)
    joins: list[Join] = []
    chain: list[int] = []
    while len(joins) < n - 1:
        if not chain:
            chain.append(int(np.flatnonzero(sizes)[0]))
        tip = chain[-1]
        nearest = int(np.argmin(distances[tip]))
        if len(chain) > 1 and distances[tip, chain[-2]] <= distances[tip, nearest]:
            nearest = chain[-2]
            del chain[-2:]
            joins.append(Join(nearest, tip, float(distances[tip, nearest])))
            _join(distances, sizes, nearest, tip)
        else:
            chain.append(nearest)
    return sorted(joins, key=lambda join: join.distance)


def _join(distances: Floats, sizes: npt.NDArray[np.float64], retained: int, gone: int) -> None:
    """Merge cluster `gone` into cluster `retained`: distances of the whole are means over its members."""
    total = sizes[retained] + sizes[gone]
    row = (sizes[retained] * distances[retained] + sizes[gone] * distances[gone]) / total
    row[retained] = np.inf
    distances[retained], distances[:, retained] = row, row
    distances[gone], distances[:, gone] = np.inf, np.inf
    sizes[retained], sizes[gone] = total, 0


def groups_after(n: int, joins: Sequence[Join]) -> Labels:
    """Return the cluster (n,) of each of n vectors after some joins, counted from 0."""
    parents = list(range(n))

    def root(index: int) -> int:
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    for join in joins:
        parents[root(join.second)] = root(join.first)
    _, labels = np.unique([root(index) for index in range(n)], return_inverse=True)
    return np.asarray(labels, dtype=np.intp)


def speaker_vectors(
    vectors: Floats,
    weights: Floats,
    *,
    n_speakers: int | None,
    least: int = 1,
    most: int,
    distance: float,
    least_weight: float,
) -> Floats:
    """Cluster voices; return one unit vector for each speaker: (n_speakers, size).

    vectors: (n, size) of unit length; weights (n,): seconds of speech of each. n_speakers: how many, None: as
    many as differ by more than `distance` and weigh at least `least_weight`, from `least` to `most`.
    """
    if len(vectors) == 0:
        return vectors
    chosen = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), MOST_VECTORS)).round().astype(int))
    vectors, weights = vectors[chosen], weights[chosen] * (len(vectors) / len(chosen))
    joins = mean_linkage(vectors.astype(np.float32))
    if n_speakers is None:
        labels = groups_after(len(vectors), [join for join in joins if join.distance <= distance])
        retained = _heaviest(labels, weights, most, least_weight)
        n_speakers = least if len(retained) < least else None
    if n_speakers is not None:
        labels, retained = _given(joins, weights, min(n_speakers, len(vectors)))
    return _refined(vectors, weights, _centres(vectors, weights, labels, retained))


def _given(joins: Sequence[Join], weights: Floats, n_speakers: int) -> tuple[Labels, list[int]]:
    """Cut the tree for n_speakers: the latest cut whose n-th cluster is heavy enough not to be an odd
    sound.
    """
    n = len(weights)
    least = LEAST_SHARE * weights.sum() / n_speakers
    for n_groups in range(n_speakers, n + 1):
        labels = groups_after(n, joins[: n - n_groups])
        retained = _heaviest(labels, weights, n_speakers, least)
        if len(retained) == n_speakers:
            return labels, retained
        if n_groups > 4 * n_speakers + 20:
            break
    labels = groups_after(n, joins[: n - n_speakers])
    return labels, _heaviest(labels, weights, n_speakers, 0.0)


def _heaviest(labels: Labels, weights: Floats, most: int, least_weight: float) -> list[int]:
    """Order clusters by weight; keep the first `most`, and after the first only those of at least
    least_weight.
    """
    sums = np.bincount(labels, weights)
    order = [int(group) for group in np.argsort(-sums, kind="stable")]
    return order[:1] + [group for group in order[1:most] if sums[group] >= least_weight]


def _centres(vectors: Floats, weights: Floats, labels: Labels, retained: Sequence[int]) -> Floats:
    sums = [(vectors[labels == group] * weights[labels == group, None]).sum(axis=0) for group in retained]
    return unit(np.stack(sums))


def _refined(vectors: Floats, weights: Floats, centres: Floats) -> Floats:
    """Refine by k-means: assign each vector to the nearest centre and move the centres, a few times."""
    for _ in range(N_ROUNDS):
        labels = np.argmax(vectors @ centres.T, axis=1)
        present = np.unique(labels)
        moved = centres.copy()
        moved[present] = _centres(vectors, weights, labels, [int(group) for group in present])
        centres = moved
    return centres


def unit(vectors: Floats) -> Floats:
    """Scale rows (n, size) to length 1; rows of zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-9), dtype=np.float32)
