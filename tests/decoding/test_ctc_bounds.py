"""The compiled search keeps within its arrays: its comparisons once more, compiled with every index checked.

Compiled functions check none, so one that is wrong reads what lies beside an array, and crashes now and then.
What is compiled is kept beside the interpreter: a search that has not changed is not compiled again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="the extra fast is not installed")

ROOT = Path(__file__).parents[2]


CACHE = Path(sys.prefix) / "numba-checked"


@pytest.mark.slow
def test_no_index_is_out_of_bounds(tmp_path: Path) -> None:
    folder = CACHE if os.access(sys.prefix, os.W_OK) else tmp_path
    checked = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(folder)}
    plain = ["-p", "no:xdist", "-p", "no:cacheprovider", "-q"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *plain, "tests/decoding/test_ctc_rules.py"],
        cwd=ROOT,
        env={**os.environ, **checked},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stdout
    assert any(folder.rglob("*.nbi")), "nothing was compiled"
