"""What every benchmark has: arguments, a log that a later run goes on with, Markdown tables, and the JSON
line at its end.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from sottovoce.evaluation.wer import Comparison

T = TypeVar("T")


def benchmark_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of the benchmark, as it is written."""
    raw = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=(doc or "").replace("%", "%%"), formatter_class=raw)


def add_shared(parser: argparse.ArgumentParser) -> None:
    """The folder of the recordings."""
    parser.add_argument("shared", type=Path, help="folder that holds data/manifest.jsonl")


def listed(kind: Callable[[str], T] = str) -> Callable[[str], list[T]]:  # type: ignore[assignment]
    """The type of an argument that is a list with commas."""
    return lambda text: [kind(one) for one in text.split(",")]


def add_part(parser: argparse.ArgumentParser, default: str = "test") -> None:
    """Which clips: those that choose settings, or those that report (`harness.clips`)."""
    told = f"dev: clips that choose settings; test: clips that report [{default}]"
    parser.add_argument("--part", choices=("dev", "test"), default=default, help=told)


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


def resident_bytes(process: int | str = "self") -> int:
    """Resident memory of a process now (Linux)."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def apart(one: Comparison) -> str:
    """A difference with its interval."""
    return f"{one.difference:+.1%} ({one.low:+.1%} to {one.high:+.1%})"
