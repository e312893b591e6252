"""`make live-tables` makes every table of live speech that a page gives a command for."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"python -m benchmarks (live \w+)")


def commands(text: str) -> set[str]:
    """The benchmarks of live speech that a text runs."""
    return set(COMMAND.findall(re.sub(r"\s+", " ", text)))


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_every_command_of_the_pages_is_made() -> None:
    told = subprocess.run(
        ["make", "--dry-run", "live-tables", "PYTHON=python3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    pages = [ROOT / "docs/streaming.md", *(ROOT / "docs/figures").glob("live*.md")]
    written = commands(" ".join(page.read_text(encoding="utf-8") for page in pages))
    assert len(written) >= 10
    assert written <= commands(told.stdout)
