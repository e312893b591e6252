"""What was measured so far, in a file of JSON lines that a later run goes on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_rows(path: Path | None) -> list[dict[str, Any]]:
    """The rows of a log; none where there is no file, or no log is kept (None)."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def add_row(path: Path | None, row: Mapping[str, Any]) -> None:
    """Add a row to a log, if one is kept."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
