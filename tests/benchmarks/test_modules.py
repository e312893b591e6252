"""Every benchmark finds what it takes from the library: nobody runs them all at each change."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks

NAMES = [one.name for one in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.") if not one.ispkg]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("__main__")])
def test_a_benchmark_is_imported(name: str) -> None:
    assert importlib.import_module(name).__doc__, "it says what it measures"
