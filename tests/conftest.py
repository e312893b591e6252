"""Fixtures shared by all tests."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import sottovoce
from sottovoce import Model, load_model

for name in sottovoce.__all__:
    getattr(sottovoce, name)  # at the first use it stays what it is then: a test's stand-in, if it is one
N_THREADS = os.environ.get("OMP_NUM_THREADS") or str(min(2, os.cpu_count() or 1))
try:
    import torch
except ModuleNotFoundError:
    torch = None  # type: ignore[assignment]
else:
    torch.set_num_threads(int(N_THREADS))
# openai-whisper's word times are compiled to run in parallel: at the first of them numba gives PyTorch, too,
# a thread a core, and with a test process a core these wait for each other, five times as slow.
os.environ.setdefault("NUMBA_NUM_THREADS", N_THREADS)
# Commands in processes of their own run the source of this checkout too.
ROOT = Path(__file__).parents[1]
SOURCE = str(ROOT / "src")
os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])])

N_EXAMPLES = int(os.environ.get("SOTTOVOCE_EXAMPLES", "40"))
"""Of a test with drawn examples; `make test-all` tries more."""
settings.register_profile(
    "any machine", max_examples=N_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
"""How fast examples are drawn and tried says what else a machine does, and nothing of what is tested."""


Reference: TypeAlias = Callable[[Callable[[], Any]], Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--references",
        choices=("recorded", "live", "record"),
        default="recorded",
        help="outputs of other programs: those of references.json, computed, or computed and recorded",
    )


@pytest.fixture
def reference(request: pytest.FixtureRequest) -> Iterator[Reference]:
    """Gives the output of another program as JSON has it: of `references.json` in the folder of the test,
    or, with `--references live` or `record`, of a call."""
    how = request.config.getoption("references")
    path = request.path.with_name("references.json")
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    key = f"{request.path.stem}::{request.node.name}"
    outputs: list[Any] = []

    def output_of(compute: Callable[[], Any]) -> Any:
        if how == "recorded":
            assert len(recorded.get(key, ())) > len(outputs), f"{key}: not recorded (`make references`)"
            outputs.append(recorded[key][len(outputs)])
        else:
            outputs.append(json.loads(json.dumps(compute())))
        return outputs[-1]

    yield output_of
    if how == "record" and outputs:
        recorded[key] = outputs
        lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in sorted(recorded.items())]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def digest(value: object) -> str:
    """A hash of text, bytes or what JSON holds, for outputs that are long and equal or not."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def some(values: object) -> list[float]:
    """A hundred of an array's values, or all."""
    flat = np.asarray(values).ravel()
    return [round(float(value), 7) for value in flat[:: max(1, len(flat) // 100)]]


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
    return load_model("nano", device="cpu", dtype="auto" if torch is None else "float32")


@cache
def _nano(**options: Any) -> Model:
    return load_model("nano", **options)


@pytest.fixture(autouse=True)
def commands_load_nano_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that are run in this process share the bundled model, once with the same options.

    A file whose tests pickle models has an empty fixture of this name: `load_model` is pickled by its place.
    """

    def load(name: str, **options: Any) -> Model:
        return _nano(**options) if name == "nano" else load_model(name, **options)

    monkeypatch.setattr("sottovoce.api.load_model", load)


@pytest.fixture
def kernels() -> None:
    """For tests of the CTC search, which needs the native kernels."""
    pytest.importorskip("sottovoce_kernels.ctc", reason="sottovoce-kernels is not installed")


USERS_OF_TORCH = r"torch|safetensors\.torch|transformers|sottovoce\.(?:runtime\.torch|speakers)"
NEEDS_TORCH = re.compile(rf"^(?:import|from) (?:{USERS_OF_TORCH})\b", re.MULTILINE)
OF_TESTS = re.compile(r"^from (tests\.[\w.]+) import \(?\s*(\w+)", re.MULTILINE)


@cache
def needs_torch(path: Path) -> bool:
    """Whether a test file imports PyTorch or a package that needs it, itself or through another test file."""
    text = path.read_text(encoding="utf-8")
    places = [ROOT.joinpath(*module.split(".")) for module, _ in OF_TESTS.findall(text)]
    places += [ROOT.joinpath(*module.split("."), name) for module, name in OF_TESTS.findall(text)]
    files = [place.with_suffix(".py") for place in places]
    return bool(NEEDS_TORCH.search(text)) or any(file.exists() and needs_torch(file) for file in files)


ALL_LONG = re.compile(r"^pytestmark = \[?\s*[^]]*pytest\.mark\.long\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that need PyTorch where it is not installed.

    Also those of long tests alone where none is run: Ray takes every process seconds to import.
    """
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    is_long = config.option.markexpr == "not long" and ALL_LONG.search(text)
    return bool(is_long or (torch is None and needs_torch(collection_path))) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark further cases of a test as long, and leave out what takes many minutes, unless it is asked for."""
    n_cases: Counter[str] = Counter()
    for item in items:
        if (quick := item.get_closest_marker("quick")) is not None:
            test = item.nodeid.partition("[")[0]
            n_cases[test] += 1
            if n_cases[test] > quick.args[0]:
                item.add_marker(pytest.mark.long)
    if os.environ.get("SOTTOVOCE_LARGE"):
        return
    for item in items:
        if item.get_closest_marker("large"):
            item.add_marker(pytest.mark.skip(reason="minutes and gigabytes: set SOTTOVOCE_LARGE=1"))


@pytest.fixture(autouse=True)
def _same_process() -> Iterator[None]:
    """Leave the root logger and the number of threads as they were: commands in this process set them."""
    root, n_threads = logging.getLogger(), torch and torch.get_num_threads()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    if torch and torch.get_num_threads() != n_threads:
        torch.set_num_threads(n_threads)


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
    if torch is not None:
        torch.manual_seed(0)
