"""The benchmarks of speakers and of turns."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness.report import Log
from benchmarks.live.runs import Bench
from benchmarks.live.turns import (
    Pause,
    answers_of,
    at_false_ends,
    auc,
    delays,
    false_ends,
    fitted,
    outcome,
    score_clips,
    score_pauses,
    survival,
    turns_of,
)
from benchmarks.speakers.errors import DiarizationErrors, best_pairs, diarization_errors
from sottovoce.audio.io import load_audio
from sottovoce.streaming.options import FittedTurnRule, TextEnd
from sottovoce.types import SAMPLE_RATE, Samples, Turn
from tests.audio.media import encoded_bytes
from tests.server.servers import CLIPS

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


def test_pauses_last_as_long_as_those_of_conversation() -> None:
    for pause_s, share in ((0.1, 1.0), (0.3, 0.556), (0.6, 0.217), (1.0, 0.1), (1.6, 0.05)):
        assert survival(pause_s) == pytest.approx(share, abs=0.015)


def test_a_fitted_rule_has_the_false_ends_that_were_asked_for() -> None:
    rng = random.Random(0)
    pauses = []
    for language in ("en", "de"):
        for number in range(200):
            is_end = number % 2 == 0
            word = min(0.9, rng.lognormvariate(-3.0 if is_end else -1.5, 1.0))
            mark = max(0.0, 0.97 - word)
            pauses.append(Pause(is_end, "", language, "", TextEnd(mark, 0.02, 0.01), 0.1))
    rule = fitted(pauses)
    assert auc(pauses, rule) > 0.8
    for share in (0.1, 0.2, 0.4):
        chosen = at_false_ends(rule, pauses, share)
        assert false_ends(chosen, pauses) == pytest.approx(share, abs=1e-3)
        fixed_s = 0.2 * share ** (-1 / 1.44) + 0.1
        assert float(np.median(delays(chosen, pauses))) < fixed_s


def encoded(samples: Samples) -> dict[str, bytes]:
    return {"bytes": encoded_bytes(samples, rate=SAMPLE_RATE, container="flac", codec="flac")}


@pytest.mark.long
def test_conversation_is_scored_where_its_data_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    clip = load_audio(CLIPS / "en.flac")[: round(2.25 * SAMPLE_RATE)]  # the rest is silence
    quiet = np.zeros(SAMPLE_RATE, np.float32)
    turn = np.concatenate([clip, quiet, clip, quiet])
    first, second = len(clip) / SAMPLE_RATE, 2 * len(clip) / SAMPLE_RATE + 1
    spans = [{"start": first, "end": first + 1}, {"start": second, "end": second + 1}]
    row = {"id": "a", "language": "en", "audio": encoded(turn), "silence_spans": spans}
    parquet.write_table(arrow.Table.from_pylist([row]), tmp_path / "validation.parquet")
    bench = Bench(Log(None))
    (result,) = turns_of(tmp_path)
    assert result.pauses_s == ((first, first + 1), (second, second + 1))
    answered = [(result, answers_of(bench, "nano", result))]
    assert len(answered[0][1]) >= 2
    hasty = FittedTurnRule(0.5, bias=50.0, weights=(0.0, 0.0))
    share, delay_s = outcome(answered, hasty)
    assert share == 1.0
    assert delay_s == pytest.approx(0.2, abs=0.3)
    share, delay_s = outcome(answered, FittedTurnRule(0.5, bias=-50.0, weights=(0.0, 0.0)))
    assert share == 0.0
    assert delay_s == pytest.approx(3.0, abs=0.3)
    score_pauses(answered)
    assert "| en | 1, 1 |" in capsys.readouterr().out


@pytest.mark.long
def test_clips_of_smart_turn_are_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    clip = load_audio(CLIPS / "en.flac")
    rows = [
        {"id": "a", "language": "eng", "audio": encoded(clip), "endpoint_bool": True},
        {"id": "b", "language": "eng", "audio": encoded(clip[: len(clip) // 2]), "endpoint_bool": False},
    ]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "train-0.parquet")
    bench = Bench(Log(None))
    turns = list(turns_of(tmp_path))
    assert [turn.is_complete for turn in turns] == [True, False]
    score_clips([(turn, answers_of(bench, "nano", turn)) for turn in turns])
    assert "| eng | 2 |" in capsys.readouterr().out
