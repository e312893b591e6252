"""Markdown tables, row by row as they come, and the JSON line that ends a benchmark."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sottovoce.evaluation.wer import Comparison


def show_heads(*heads: object) -> None:
    """Begin a table."""
    show_row(*heads)
    print("|---" * len(heads) + "|", flush=True)


def show_row(*cells: object) -> None:
    """Print one row of a table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a whole table."""
    show_heads(*heads)
    for row in rows:
        show_row(*row)


def show_json(benchmark: str, figures: Mapping[str, Any]) -> None:
    """Print the last line: every figure, and what it was measured on."""
    print(json.dumps({"benchmark": benchmark, **figures, "on": machine()}, ensure_ascii=False))


def machine() -> dict[str, object]:
    """The processor, threads and version of PyTorch, and the commit (None outside of a checkout)."""
    return {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "commit": _commit(),
    }


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        told = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return told.stdout.strip()


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def apart(one: Comparison) -> str:
    """A difference with its interval."""
    return f"{one.difference:+.1%} ({one.low:+.1%} to {one.high:+.1%})"
