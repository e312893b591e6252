"""Tests of the CTC search need the native kernels."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _needs_kernels(kernels: None) -> None: ...
