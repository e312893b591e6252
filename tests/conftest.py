"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", min(2, os.cpu_count() or 1))))


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with real recordings and known answers beside the checkout, or a skip."""
    folder = Path(os.environ.get("SOTTOVOCE_SHARED", Path(__file__).parents[2] / "shared"))
    if not (folder / "data" / "manifest.jsonl").exists():
        pytest.skip("the data folder `shared` does not lie beside the checkout")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what takes many minutes, unless it is asked for."""
    if os.environ.get("SOTTOVOCE_LARGE"):
        return
    for item in items:
        if item.get_closest_marker("large"):
            item.add_marker(pytest.mark.skip(reason="minutes and gigabytes: set SOTTOVOCE_LARGE=1"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
