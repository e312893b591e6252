"""The peak of memory: what was held for a moment counts, until it is forgotten."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from sottovoce.evaluation.peak import forget_peak, peak_bytes

N_BYTES = 200_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells and forgets")
def test_what_was_held_counts_until_it_is_forgotten() -> None:
    forget_peak()
    before = peak_bytes()
    held = np.ones(N_BYTES, np.uint8)
    del held
    during = peak_bytes()
    assert before is not None
    assert during is not None
    assert during - before > N_BYTES / 2
    forget_peak()
    after = peak_bytes()
    assert after is not None
    assert during - after > N_BYTES / 2


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    forget_peak(tmp_path / "none")
    assert peak_bytes(tmp_path / "none") is None
    (tmp_path / "status").write_text("Name: x\n")
    assert peak_bytes(tmp_path) is None
