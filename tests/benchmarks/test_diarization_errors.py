"""The diarization error rate, against counting in small steps over every way of pairing names."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from benchmarks.speakers.errors import DiarizationErrors, best_pairs, diarization_errors
from sottovoce.types import Turn

STEP = 0.05


def at(turns: Sequence[Turn], time: float) -> set[str]:
    return {turn.speaker for turn in turns if turn.start < time < turn.end}


def counted(truth: Sequence[Turn], result: Sequence[Turn], collar_s: float, with_overlap: bool) -> float:
    """Wrong steps over steps of speech, under the best of all pairings."""
    edges = [edge for turn in truth for edge in (turn.start, turn.end)]
    times = [(index + 0.5) * STEP for index in range(int(30 / STEP))]
    times = [time for time in times if all(abs(time - edge) > collar_s for edge in edges)]
    if not with_overlap:
        times = [time for time in times if len(at(truth, time)) <= 1]
    names = sorted({turn.speaker for turn in truth})
    others = sorted({turn.speaker for turn in result}) + [f"nobody {name}" for name in names]
    least = None
    for chosen in itertools.permutations(others, len(names)):
        pairs = dict(zip(names, chosen, strict=True))
        wrong = 0
        for time in times:
            true, heard = at(truth, time), at(result, time)
            n_right = sum(pairs[name] in heard for name in true)
            wrong += max(len(true), len(heard)) - n_right
        least = wrong if least is None else min(least, wrong)
    speech = sum(len(at(truth, time)) for time in times)
    return (least or 0) / speech if speech else float(bool(least))


def turns(rng: random.Random, names: str, n_turns: int) -> list[Turn]:
    created = []
    for _ in range(n_turns):
        start = rng.randrange(500) * STEP
        created.append(Turn(start, start + rng.randrange(1, 100) * STEP, rng.choice(names)))
    return created


@pytest.mark.parametrize("seed", range(12))
def test_rates_are_those_of_counting(seed: int) -> None:
    rng = random.Random(seed)
    truth = turns(rng, "abc"[: rng.randint(1, 3)], rng.randint(1, 7))
    result = turns(rng, "xyz"[: rng.randint(1, 3)], rng.randint(0, 7))
    for collar_s in (0.0, 0.25):
        for with_overlap in (True, False):
            errors = diarization_errors(truth, result, collar_s=collar_s, with_overlap=with_overlap)
            assert errors.rate == pytest.approx(counted(truth, result, collar_s, with_overlap), abs=1e-6)


def test_kinds_of_errors() -> None:
    truth = [Turn(0.0, 10.0, "a"), Turn(10.0, 20.0, "b")]
    result = [Turn(0.0, 8.0, "x"), Turn(8.0, 12.0, "y"), Turn(12.0, 22.0, "y")]
    errors = diarization_errors(truth, result, collar_s=0.0)
    assert errors == DiarizationErrors(speech=20.0, missed=0.0, false_alarm=2.0, confused=2.0)
    assert errors.rate == pytest.approx(0.2)
    assert diarization_errors(truth, truth).rate == 0.0
    assert diarization_errors([], []).rate == 0.0
    assert diarization_errors([], truth).rate == 1.0
    assert diarization_errors(truth, []).rate == 1.0


@pytest.mark.parametrize("seed", range(10))
def test_the_best_pairs_are_the_best(seed: int) -> None:
    rng = random.Random(seed)
    first, second = range(rng.randint(1, 4)), range(rng.randint(1, 4))
    weights = {(f"a{i}", f"b{j}"): rng.random() for i in first for j in second if rng.random() < 0.8}
    pairs = best_pairs(weights)
    assert len(set(pairs.values())) == len(pairs)
    best = max(
        sum(weights.get((f"a{i}", f"b{j}"), 0.0) for i, j in zip(first, chosen, strict=False))
        for chosen in itertools.permutations([*second, *range(10, 10 + len(first))], len(first))
    )
    assert sum(weights.get(pair, 0.0) for pair in pairs.items()) == pytest.approx(best)
