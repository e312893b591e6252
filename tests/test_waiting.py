"""PyTorch's threads wait briefly beside those of the kernels, unless somebody chose otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from sottovoce.waiting import CHOICES, SPIN_COUNT


@pytest.mark.skipif(find_spec("sottovoce_kernels") is None, reason="sottovoce-kernels is not installed")
@pytest.mark.parametrize(
    ("chosen", "spins"),
    [({}, SPIN_COUNT), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_the_import_shortens_it_before_torch_is_loaded(chosen: dict[str, str], spins: str | None) -> None:
    code = "import os, sys, sottovoce; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
    others = {name: value for name, value in os.environ.items() if name not in CHOICES}
    said = subprocess.run(
        [sys.executable, "-c", code], env={**others, **chosen}, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["False", str(spins)]
