"""The tuner finds weights, keeps speakers together, and estimates errors on utterances that chose nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import pytest

from sottovoce.ctc.tuning import RANGES, Range, folds_of, tune
from sottovoce.errors import OptionError

pytestmark = pytest.mark.skipif(find_spec("cmaes") is None, reason="the extra tune is not installed")

N = 12


def errors(weights: Mapping[str, float]) -> npt.NDArray[np.int64]:
    """Two weights that depend on each other: each utterance is best where they sum to 1, near 0.3 and 0.7."""
    wide = 10 * abs(weights["lm_weight"] + weights["word_score"] - 1)
    far = 10 * abs(weights["lm_weight"] - 0.3)
    return np.array([int(wide + far + (i % 3)) for i in range(N)])


START = {"lm_weight": 1.5, "word_score": -1.0}
BOTH = {name: RANGES[name] for name in START}


def test_dependent_weights_are_found() -> None:
    result = tune(errors, START, BOTH, [0] * N, n_decodings=200)
    assert result.errors.sum() == errors({"lm_weight": 0.3, "word_score": 0.7}).sum() == 12
    assert (result.errors == errors(result.weights)).all()
    assert result.held_out is None
    assert result.n_decodings <= 200 + 8


def test_the_start_is_kept_where_nothing_is_better() -> None:
    best = {"lm_weight": 0.3, "word_score": 0.7}
    assert tune(errors, best, BOTH, [0] * N, n_decodings=20).weights == best


@pytest.mark.parametrize(("n_better", "n_worse"), [(1, 0), (2, 0), (3, 2), (4, 1), (6, 3), (5, 3)])
def test_the_start_is_kept_for_less_than_a_standard_error(n_better: int, n_worse: int) -> None:
    """Other weights make one error fewer in some of twelve utterances, and one more in others."""
    gains = np.array([1] * n_better + [-1] * n_worse + [0] * (N - n_better - n_worse))

    def doubtful(weights: Mapping[str, float]) -> npt.NDArray[np.int64]:
        return 1 - gains * (weights["lm_weight"] < 0.9)

    result = tune(doubtful, {"lm_weight": 1.0}, {"lm_weight": RANGES["lm_weight"]}, [0] * N, n_decodings=16)
    error = gains.std(ddof=1) * math.sqrt(N)
    assert (result.weights["lm_weight"] == 1.0) == (gains.sum() < error + 1e-9)
    assert (result.errors == doubtful(result.weights)).all()


def test_a_run_can_be_repeated() -> None:
    runs = [tune(errors, START, BOTH, [0] * N, n_decodings=40, seed=3) for _ in range(2)]
    assert runs[0].weights == runs[1].weights
    assert tune(errors, START, BOTH, [0] * N, n_decodings=40, seed=4).weights != runs[0].weights


def test_held_out_errors_are_of_weights_that_the_utterance_did_not_choose() -> None:
    """Two halves that want opposite weights: each is decoded with what the other one wants."""

    def torn(weights: Mapping[str, float]) -> npt.NDArray[np.int64]:
        share = RANGES["lm_weight"].share_of(weights["lm_weight"])
        return np.array([round(10 * share)] * 6 + [round(10 * (1 - share))] * 6)

    result = tune(torn, {"lm_weight": 1.0}, {"lm_weight": RANGES["lm_weight"]}, [0] * 6 + [1] * 6)
    assert result.held_out is not None
    assert result.held_out.tolist() == [10] * 12


def test_of_equal_beams_the_narrower_one_is_taken() -> None:
    def wide_enough(weights: Mapping[str, float]) -> npt.NDArray[np.int64]:
        return np.array([int(weights["beam_size"] < 20)])

    result = tune(wide_enough, {"beam_size": 100}, {"beam_size": RANGES["beam_size"]}, [0], n_decodings=100)
    assert 20 <= result.weights["beam_size"] <= 24
    assert isinstance(result.weights["beam_size"], int)


def test_speakers_stay_together_in_even_folds() -> None:
    speakers = list("aaaabbbccd")
    folds = folds_of(speakers, 2)
    assert {
        speaker: {f for f, s in zip(folds, speakers, strict=True) if s == speaker} for speaker in "abcd"
    } == {"a": {0}, "b": {1}, "c": {1}, "d": {0}}
    assert folds_of(["x", "y"], 5) == [0, 1]
    assert folds_of(["x", "x"], 5) == [0, 0]


def test_ranges() -> None:
    scale = Range(0.25, 4.0, is_log=True)
    assert [scale.at(share) for share in (0, 0.5, 1)] == [0.25, 1.0, 4.0]
    assert scale.share_of(1.0) == 0.5
    assert scale.share_of(100.0) == 1.0
    for item in RANGES.values():
        assert item.share_of(item.at(0.5)) == pytest.approx(0.5, abs=0.01)
    with pytest.raises(OptionError, match="at least one weight"):
        tune(errors, START, {}, [0] * N)
