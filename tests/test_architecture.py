"""The contracts of import-linter in pyproject.toml: layers, no circles, confined dependencies."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_imports_keep_the_contracts(monkeypatch: pytest.MonkeyPatch) -> None:
    linter = pytest.importorskip("importlinter.cli", reason="the extra check is not installed")
    monkeypatch.chdir(Path(__file__).parents[1])
    assert linter.lint_imports(no_cache=True) == 0
