from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.decoding.alignment import (
    RunningStatistics,
    alignment_matrix,
    cut_frames,
    dtw,
    median_filter,
    normalize_over_tokens,
)
from sottovoce.types import Floats, Ints
from tests.conftest import Reference, some


def cheapest_path(cost: Floats) -> tuple[float, list[tuple[int, int]]]:
    """The best of all monotonic paths, by trying them."""
    n_tokens, n_frames = cost.shape
    best: tuple[float, list[tuple[int, int]]] = (float("inf"), [])
    stack = [(float(cost[0, 0]), [(0, 0)])]
    while stack:
        total, path = stack.pop()
        token, frame = path[-1]
        if (token, frame) == (n_tokens - 1, n_frames - 1):
            best = min(best, (total, path))
        for step in ((token, frame + 1), (token + 1, frame), (token + 1, frame + 1)):
            if step[0] < n_tokens and step[1] < n_frames:
                stack.append((total + float(cost[step]), [*path, step]))
    return best


def cells(first: Ints, last: Ints) -> list[tuple[int, int]]:
    return [
        (token, frame)
        for token, (start, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True))
        for frame in range(start, end + 1)
    ]


@pytest.mark.parametrize(("n_tokens", "n_frames"), [(1, 1), (1, 5), (4, 1), (3, 6), (5, 4), (4, 6)])
def test_the_path_is_the_cheapest_of_all(n_tokens: int, n_frames: int) -> None:
    cost = torch.randn(n_tokens, n_frames).numpy()
    first, last = dtw(cost[None])
    assert cells(first[0], last[0]) == cheapest_path(cost)[1]


def test_ties_cost_nothing_and_the_path_stays_connected() -> None:
    for seed in range(20):
        cost = torch.randint(0, 3, (4, 5), generator=torch.Generator().manual_seed(seed)).float().numpy()
        first, last = dtw(cost[None])
        visited = cells(first[0], last[0])
        assert sum(float(cost[cell]) for cell in visited) == cheapest_path(cost)[0]
        assert all((b[0] - a[0], b[1] - a[1]) in {(0, 1), (1, 0), (1, 1)} for a, b in pairwise(visited))


def test_matrices_of_different_sizes_share_a_batch() -> None:
    sizes = [(3, 9), (7, 20), (5, 4)]
    matrices = [torch.randn(size).numpy() for size in sizes]
    batch = np.zeros((3, 7, 20), np.float32)
    for row, matrix in enumerate(matrices):
        batch[row, : matrix.shape[0], : matrix.shape[1]] = matrix
    together = dtw(batch, *(np.array(sides) for sides in zip(*sizes, strict=True)))
    for row, matrix in enumerate(matrices):
        alone = dtw(matrix[None])
        for many, item in zip(together, alone, strict=True):
            np.testing.assert_array_equal(many[row, : len(matrix)], item[0])


@pytest.mark.reference
@pytest.mark.parametrize("seed", range(8))
def test_dtw_and_median_equal_openai_whispers(seed: int, reference: Reference) -> None:
    generator = torch.Generator().manual_seed(seed)
    n_tokens = int(torch.randint(1, 80, (1,), generator=generator))
    cost = torch.randn((n_tokens, 700), generator=generator)
    heads = torch.randn((3, n_tokens, 700), generator=generator)

    def compute() -> list[Any]:
        timing = pytest.importorskip("whisper.timing", reason="openai-whisper is not installed")
        tokens, frames = timing.dtw(cost)
        begins = np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)
        return [frames[begins].tolist(), some(timing.median_filter(heads, 7))]

    frames, medians = reference(compute)
    assert dtw(cost[None].numpy())[0][0].tolist() == frames
    assert some(median_filter(heads.numpy())) == pytest.approx(medians, abs=1e-6)


def test_median_filter_equals_sorting() -> None:
    values, width, half = torch.randn(2, 3, 40).numpy(), 7, 3
    mirrored = np.pad(values, ((0, 0), (0, 0), (half, half)), mode="reflect")
    for frame in range(40):
        expected = np.sort(mirrored[..., frame : frame + width], axis=-1)[..., half]
        np.testing.assert_array_equal(median_filter(values)[..., frame], expected)


def test_cutting_frames_is_softmax_over_fewer() -> None:
    logits = torch.randn(2, 5, 30)
    cut, expected = cut_frames(logits.softmax(-1).numpy(), 12), logits[..., :12].softmax(-1).numpy()
    np.testing.assert_allclose(cut, expected, atol=1e-6)


def test_running_statistics_equal_those_of_the_whole_history() -> None:
    attention = torch.rand(2, 3, 25, 17).numpy()  # (R, heads, tokens, frames)
    running = RunningStatistics.of(attention[:, :, :4])
    for token in range(4, 25):
        running = running.updated(attention[:, :, token : token + 1])
    whole = normalize_over_tokens(attention)
    np.testing.assert_allclose(running.normalize(attention[:, :, -1:]), whole[:, :, -1:], atol=1e-4)


def test_attention_that_never_changes_gives_numbers() -> None:
    matrix = alignment_matrix(np.full((2, 6, 40), 1 / 40, np.float32), 30)
    assert matrix.shape == (6, 30)
    assert not matrix.any()


def test_a_diagonal_is_found_again() -> None:
    attention = np.full((2, 9, 100), 1e-4, np.float32)
    for token in range(9):
        attention[:, token, token * 10 : token * 10 + 10] = 0.1
    first, _ = dtw(-alignment_matrix(attention, 90)[None])
    assert first[0].tolist() == pytest.approx([10 * token for token in range(9)], abs=3)
