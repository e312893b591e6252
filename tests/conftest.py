"""Fixtures shared by all tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from sottovoce.api import Model, load_model

N_THREADS = os.environ.get("OMP_NUM_THREADS") or str(min(2, os.cpu_count() or 1))
torch.set_num_threads(int(N_THREADS))
# openai-whisper's word times are compiled to run in parallel: at the first of them numba gives PyTorch, too,
# a thread a core, and with a test process a core these wait for each other, five times as slow.
os.environ.setdefault("NUMBA_NUM_THREADS", N_THREADS)
# Commands in processes of their own run the source of this checkout too.
SOURCE = str(Path(__file__).parents[1] / "src")
os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])])

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
"""How fast examples are drawn and tried says what else a machine does, and nothing of what is tested."""


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with real recordings and known answers beside the checkout, or a skip."""
    folder = Path(os.environ.get("SOTTOVOCE_SHARED", Path(__file__).parents[2] / "shared"))
    if not (folder / "data" / "manifest.jsonl").exists():
        pytest.skip("the data folder `shared` does not lie beside the checkout")
    return folder


@pytest.fixture(scope="session")
def model() -> Model:
    """The bundled model."""
    return load_model("nano", device="cpu", dtype="float32")


@pytest.fixture
def kernels() -> None:
    """For tests of the CTC search, which needs the native kernels."""
    pytest.importorskip("sottovoce_kernels.ctc", reason="sottovoce-kernels is not installed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what takes many minutes, unless it is asked for."""
    if os.environ.get("SOTTOVOCE_LARGE"):
        return
    for item in items:
        if item.get_closest_marker("large"):
            item.add_marker(pytest.mark.skip(reason="minutes and gigabytes: set SOTTOVOCE_LARGE=1"))


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """Leave the root logger's level as it was: a command that is run in this process sets it by its `-v`."""
    root = logging.getLogger()
    before = root.level
    yield
    root.setLevel(before)


@pytest.fixture(autouse=True)
def _batches_succeed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail where calls that failed together were repeated one by one: results are right, but take longer."""
    failed: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        if "calls together failed" in record.msg:
            failed.append(record.getMessage())
        return True

    logger = logging.getLogger("sottovoce.runtime.batching")
    logger.addFilter(note)
    yield
    logger.removeFilter(note)
    assert not failed or request.node.get_closest_marker("failing_batch")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
