"""The contracts of import-linter in pyproject.toml: layers, no circles, confined dependencies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_imports_keep_the_contracts() -> None:
    pytest.importorskip("importlinter.cli", reason="the extra check is not installed")
    # In a process of its own: import-linter disables the loggers of the process.
    script = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
