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

from sottovoce.evaluation.scores import Comparison

T = TypeVar("T")


def benchmark_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of the benchmark, as it is written."""
    raw = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=(doc or "").replace("%", "%%"), formatter_class=raw)


def add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shared", type=Path, help="folder that holds data/manifest.jsonl")


def listed(kind: Callable[[str], T] = str) -> Callable[[str], list[T]]:  # type: ignore[assignment]
    """The type of an argument that is a list with commas."""
    return lambda text: [kind(item) for item in text.split(",") if item]


def add_part(parser: argparse.ArgumentParser, default: str = "test") -> None:
    """Which clips: those that choose settings, or those that report (`harness.clips`)."""
    reported = f"dev: clips that choose settings; test: clips that report [{default}]"
    parser.add_argument("--part", choices=("dev", "test"), default=default, help=reported)


class Log:
    """Results by key and recording, kept in a file of JSON lines if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.found: dict[tuple[str, str], Any] = {}
        if path is not None and path.exists():
            rows = map(json.loads, filter(None, path.read_text(encoding="utf-8").splitlines()))
            self.found = {(row["key"], row["item"]): row["value"] for row in rows}

    def get(self, key: str, item: str) -> Any:
        return self.found.get((key, item))

    def add(self, key: str, item: str, value: Any) -> None:
        self.found[key, item] = value
        if self._path is not None:
            row = {"key": key, "item": item, "value": value}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def show_heads(*heads: object) -> None:
    show_row(*heads)
    print("|---" * len(heads) + "|", flush=True)


def show_row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def show_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
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
        reported = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return reported.stdout.strip()


def resident_bytes(process: int | str = "self") -> int:
    """Resident memory of a process now (Linux)."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def apart(item: Comparison) -> str:
    return f"{item.difference:+.1%} ({item.low:+.1%} to {item.high:+.1%})"
