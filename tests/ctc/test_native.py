"""Parts of the native search against what they stand for."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest

from sottovoce.ctc.emissions import (
    CUT_MARGIN,
    TokenSpans,
    align,
    are_plausible,
    checked,
    common_cut,
    log_softmax,
)
from sottovoce.errors import InputError
from tests.ctc.enumeration import emissions

kernels = pytest.importorskip("sottovoce_kernels.ctc", reason="sottovoce-kernels is not installed")


@pytest.mark.parametrize("n_labels", [3, 40, 200])
@pytest.mark.parametrize("least", [-np.inf, -4.0, 10.0])
def test_likeliest_tokens_and_the_others_are_those_above_a_bar(n_labels: int, least: float) -> None:
    # Few different values, so that many are equal.
    frame = np.random.default_rng(0).integers(-9, 0, n_labels).astype(np.float32)
    blank = n_labels // 2
    above = [token for token in range(n_labels) if token != blank and frame[token] > least]
    ranked = sorted(above, key=lambda token: (-frame[token], token))
    for most in (n_labels, 20):
        result = kernels.likeliest(frame.ctypes.data, n_labels, least, blank, 7, most)
        assert list(result[:7]) == ranked[:7]
        assert sorted(-frame[list(result[7:])]) == [-frame[token] for token in ranked[7 : 7 + most]]
        assert set(result[7:]) <= set(ranked[7:])


V, BLANK, SEPARATOR = 5, 0, 4


def test_emissions_that_are_trusted_would_pass_the_full_check() -> None:
    rows = np.stack([emissions(9, V, seed) for seed in range(3)])
    lengths = np.array([9, 4, 0])
    assert are_plausible(rows, lengths)
    checked(rows, lengths, V)
    broken = rows.copy()
    broken[2, 5, 1] = float("nan")
    for wrong in (rows + 1.0, rows * 3, broken):
        assert not are_plausible(wrong, np.array([9, 9, 9]))
        with pytest.raises(InputError):
            checked(wrong, None, V)
    assert are_plausible(broken, np.array([9, 9, 5]))


def test_sums_of_probabilities_equal_logaddexp() -> None:
    first, second = -40 * np.random.default_rng(1).random((2, 40), np.float32)
    first[:5], second[3:8] = -math.inf, -math.inf
    first[8:10], first[10] = second[8:10], second[10] + 1e-3
    first[11:15] = second[11:15] + np.array([17.9999, 18.0, 18.0001, 30.0])
    ours = [kernels.log_add(a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    assert ours == pytest.approx(np.logaddexp(first, second).tolist())


def texts_to_align() -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int | np.ndarray]]:
    """Emissions (3, 12, V), label sequences (9, 4), their lengths, and labels of the blanks around them."""
    random = np.random.default_rng(1)
    rows = np.stack([emissions(12, V, seed) for seed in range(3)])
    labels, counts = random.integers(1, V, (9, 4)), random.integers(0, 5, 9)
    mixed = np.where(random.integers(0, 2, (9, 5)) == 1, SEPARATOR, BLANK)
    return rows, labels, counts, [BLANK, mixed]


def plainly(*given: object, **named: object) -> TokenSpans:
    """Align without the kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "sottovoce_kernels", None)
        return align(*given, **named)  # type: ignore[arg-type]


def test_alignments_equal_the_plain_ones() -> None:
    rows, labels, counts, blanks = texts_to_align()
    of, lengths = np.arange(9) % 3, np.array([12, 9, 11])
    inside = np.arange(4) < counts[:, None]
    for blank in blanks:
        ours, theirs = (
            each(rows, lengths, labels, counts, rows=of, blank=blank) for each in (align, plainly)
        )
        np.testing.assert_allclose(ours.score, theirs.score, atol=1e-4, rtol=0)
        for mine, others in zip(ours[:3], theirs[:3], strict=True):
            assert np.array_equal(mine[inside], others[inside])


def test_texts_longer_than_their_emissions_have_no_path() -> None:
    """No step leads to their ends, and none that memory held before is followed."""
    random = np.random.default_rng(2)
    for n_frames in range(1, 8):
        for n_tokens in range(n_frames + 1, 12):
            rows = np.stack([emissions(n_frames, V, seed) for seed in range(2)])
            labels = random.integers(1, V, (6, n_tokens))
            counts, of = np.array([n_tokens, 0, 1] * 2), np.arange(6) % 2
            lengths = np.full(2, n_frames)
            junk = [np.full((n_frames, 2 * n_tokens + 1), 255, np.uint8) for _ in range(20)]
            del junk
            ours, theirs = (
                each(rows, lengths, labels, counts, rows=of, blank=BLANK) for each in (align, plainly)
            )
            np.testing.assert_allclose(ours.score, theirs.score, atol=1e-4, rtol=0)
            assert ((ours.score == -math.inf) == (counts == n_tokens)).all()
            assert (ours.first >= 0).all()
            assert (ours.last < n_frames).all()


Path_ = tuple[float, tuple[int, ...]]


def best_paths(frames: list[list[float]], labels: list[int], blanks: list[int]) -> list[Path_]:
    """The best path to each state of a text, by its score and its states; the first of equal ones."""
    path = [each for pair in zip(blanks, [*labels, -1], strict=True) for each in pair][:-1]
    result: list[Path_] = [(0.0, ()), *[(-math.inf, ())] * (2 * len(labels))]
    for frame in frames:
        before, result = result, []
        for state, label in enumerate(path):
            may_skip = state > 2 and state % 2 == 1 and label != path[state - 2]
            ways = before[max(state - 1 - may_skip, 0) : state + 1][::-1]
            score, states = max(ways, key=lambda way: way[0])
            result.append((score + frame[label], (*states, state)))
    return result


def test_common_cuts_are_where_all_paths_meet() -> None:
    rows, labels, counts, blanks = texts_to_align()
    for sharpness in (3, 300):  # where one path is hundreds of nats before the others, few are walked
        frames = log_softmax(sharpness * rows[0])
        for n_shared, blank, is_late in itertools.product(range(5), blanks, (False, True)):
            around = np.broadcast_to(blank, (9, 5))
            paths = []
            for said, n, of_text in zip(labels.tolist(), counts.tolist(), around.tolist(), strict=True):
                ends = best_paths(frames.tolist(), said[:n], of_text[: n + 1])
                ends = ends[max(2 * n - 1, 0) :] if is_late else ends
                top = max(score for score, _ in ends)
                paths += [states for score, states in ends if score > top - CUT_MARGIN]
            met = [
                (t + 1, at[0] // 2)
                for t, at in enumerate(zip(*paths, strict=True))
                if len(set(at)) == 1 and at[0] % 2 == 0 and at[0] // 2 <= n_shared
            ]
            result = common_cut(frames, labels, counts, n_shared=n_shared, is_late=is_late, blank=blank)
            assert result == max(met, default=(0, 0))
    # A text that no path spells.
    result = common_cut(frames[:2], labels[:1], np.array([4]), n_shared=0, is_late=True, blank=BLANK)
    assert result == (0, 0)
