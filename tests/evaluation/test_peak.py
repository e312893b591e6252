"""The peak of memory: what was held for a moment counts, until it is forgotten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sottovoce.evaluation.speed import forget_peak, peak_bytes

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
