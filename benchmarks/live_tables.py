"""Markdown tables and the JSON line of the live benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from live_run import Setting

from sottovoce.evaluation.wer import Comparison


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for line in (heads, ["---"] * len(heads), *rows):
        print(f"| {' | '.join(line)} |")


def show_json(benchmark: str, settings: Sequence[Setting], figures: Mapping[str, Any]) -> None:
    """The last line: what was asked for, and every figure."""
    document = {"benchmark": f"live {benchmark}", "settings": [asdict(one) for one in settings], **figures}
    print(json.dumps(document, ensure_ascii=False))


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def apart(one: Comparison) -> str:
    return f"{one.difference:+.1%} ({one.low:+.1%} to {one.high:+.1%})"
