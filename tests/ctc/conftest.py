"""Tests of the CTC search need the native kernels."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def kernels() -> None:
    pytest.importorskip("sottovoce_kernels.ctc", reason="sottovoce-kernels is not installed")
