"""`make live-tables` makes every table that docs/streaming.md gives a command for."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"python benchmarks/(live\.py \w+|(?!live\.py)\w+\.py)")


def commands(text: str) -> set[str]:
    """Scripts, and of live.py its command."""
    return set(COMMAND.findall(re.sub(r"\s+", " ", text)))


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_every_command_of_the_page_is_made() -> None:
    told = subprocess.run(
        ["make", "--dry-run", "live-tables", "PYTHON=python3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    written = commands((ROOT / "docs/streaming.md").read_text(encoding="utf-8"))
    assert len(written) >= 10
    assert written <= commands(told.stdout)
