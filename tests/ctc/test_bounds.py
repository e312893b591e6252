"""The compiled search keeps within its arrays: tests of it once more, compiled with every index checked.

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
TESTS = [
    "tests/ctc/test_kernel.py",
    "tests/ctc/test_kenlm.py::test_each_state_and_word_is_asked_for_once",
    *(
        f"tests/ctc/test_exact.py::test_{name}"
        for name in (
            "equals_enumeration",
            "token_models_equal_enumeration",
            "hotwords_of_pieces_are_whole_words",
            "lexicon_equals_enumeration",
            "word_sequences_equal_enumeration",
            "the_best_is_no_worse_because_more_are_listed",
        )
    ),
]
"""Between them they run every compiled function."""


@pytest.mark.slow
def test_no_index_is_out_of_bounds(tmp_path: Path) -> None:
    folder = CACHE if os.access(sys.prefix, os.W_OK) else tmp_path
    checked = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(folder)}
    plain = ["-p", "no:xdist", "-p", "no:cacheprovider", "-q"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *plain, *TESTS, "-k", "not tensors"],
        cwd=ROOT,
        env={**os.environ, **checked},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stdout
    assert any(folder.rglob("*.nbi")), "nothing was compiled"
