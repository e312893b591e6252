"""Repeats and parts of a window; the peak of memory, until it is forgotten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sottovoce.api import Model
from sottovoce.errors import OptionError
from sottovoce.evaluation.speed import STEPS, Timing, forget_peak, model_parts, peak_bytes, timed


def test_warm_ups_are_not_counted() -> None:
    calls: list[int] = []
    timing = timed(lambda: calls.append(1), 3, warm_ups=2)
    assert len(calls) == 5
    assert 0 <= timing.lowest_s <= timing.median_s <= timing.highest_s
    with pytest.raises(OptionError, match="repeats: expected at least 1, got 0"):
        timed(lambda: None, 0)


def test_the_median_of_repeats_and_of_their_pieces() -> None:
    timing = Timing.of([3.0, 1.0, 2.0])
    assert timing == Timing(2.0, 1.0, 3.0)
    assert timing.each(2) == Timing(1.0, 0.5, 1.5)


@pytest.mark.long
@pytest.mark.parametrize(("n_rows", "last"), [(1, "decoder, a token"), (3, "decoder, a token of 3 rows")])
def test_every_part_of_a_window_is_measured(model: Model, n_rows: int, last: str) -> None:
    parts = dict(model_parts(model.backend, n_rows, 1))
    assert list(parts)[:3] == ["spectrogram, 30 s", "encoder, 30 s", "decoder, 100 tokens at once"]
    assert list(parts)[-1] == last
    assert all(timing.median_s > 0 for timing in parts.values())
    assert parts["decoder, a token"].median_s * STEPS > 0


def test_a_search_needs_a_row(model: Model) -> None:
    with pytest.raises(OptionError, match="rows: expected at least 1, got 0"):
        next(model_parts(model.backend, 0, 1))


N_BYTES = 200_000_000
HOLD_FOR_A_MOMENT = f"""
import numpy as np
from sottovoce.evaluation.speed import forget_peak, peak_bytes
forget_peak()
before = peak_bytes()
held = np.ones({N_BYTES}, np.uint8)
del held
during = peak_bytes()
forget_peak()
print(before, during, peak_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells and forgets")
def test_what_was_held_counts_until_it_is_forgotten() -> None:
    """In a process of its own, where nothing else keeps or takes memory meanwhile."""
    ran = subprocess.run(
        [sys.executable, "-c", HOLD_FOR_A_MOMENT], capture_output=True, text=True, check=True, timeout=60
    )
    before, during, after = (int(number) for number in ran.stdout.split())
    assert during - before > N_BYTES / 2
    assert during - after > N_BYTES / 2


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    forget_peak(tmp_path / "none")
    assert peak_bytes(tmp_path / "none") is None
    (tmp_path / "status").write_text("Name: x\n")
    assert peak_bytes(tmp_path) is None
