"""Arguments that most benchmarks have."""

from __future__ import annotations

import argparse
from pathlib import Path


def benchmark_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of the benchmark, as it is written."""
    raw = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=(doc or "").replace("%", "%%"), formatter_class=raw)


def add_shared(parser: argparse.ArgumentParser) -> None:
    """The folder of the recordings."""
    parser.add_argument("shared", type=Path, help="folder that holds data/manifest.jsonl")


def add_part(parser: argparse.ArgumentParser, default: str = "test") -> None:
    """Which clips: those that choose settings, or those that report (`harness.clips`)."""
    told = f"dev: clips that choose settings; test: clips that report [{default}]"
    parser.add_argument("--part", choices=("dev", "test"), default=default, help=told)
