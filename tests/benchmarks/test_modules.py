"""Every benchmark finds what it takes from the library: nobody runs them all at each change."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks

NEEDS_REFERENCES = "benchmarks.language.fit"
"""It imports scipy, which `make test-all` installs."""
MODULES = pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")
NAMES = [module.name for module in MODULES if not module.ispkg and not module.name.endswith("__main__")]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) if name == NEEDS_REFERENCES else name for name in NAMES],
)
def test_a_benchmark_is_imported(name: str) -> None:
    assert importlib.import_module(name).__doc__, "it says what it measures"
