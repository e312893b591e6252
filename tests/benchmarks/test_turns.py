"""The benchmark of the end of turns: what it counts, and the two layouts of conversation that it reads."""

from __future__ import annotations

import random
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
from sottovoce.audio.io import load_audio
from sottovoce.streaming.options import FittedTurnRule, TextEnd
from sottovoce.types import SAMPLE_RATE, Samples
from tests.audio.media import encoded_bytes
from tests.server.servers import CLIPS


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
