"""`python -m benchmarks`: every benchmark answers, and what pages show of them is understood."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import ROOMS, benchmarks, listing, run

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "recipes").rglob("*.md"))]
COMMAND = re.compile(r"python -m benchmarks ([a-z]+) (\w+)([^`#\n]*)")
NEEDS = ("whisper_normalizer", "transformers", "jiwer", "httpx", "starlette", "ray")


class UnderstoodError(Exception):
    """The command line was understood: nothing more is done."""


def shown() -> list[object]:
    """Every command on a page: its room, its name, its arguments."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        text = re.sub(r"`[^`\n]*\n[^`\n]*`", lambda match: match[0].replace("\n", " "), text)
        for room, name, rest in COMMAND.findall(text):
            found.append(pytest.param(room, name, rest, id=f"{page.name}: {room} {name}{rest[:40]}"))
    return found


def all_benchmarks() -> list[tuple[str, str]]:
    return [(room, name) for room in ROOMS for name in benchmarks(room)]


def test_without_a_name_everything_is_listed() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == listing()
    assert all(what.endswith((".", "?")) for room in ROOMS for what in benchmarks(room).values())


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(SystemExit, match="there is no 'live nothing'"):
        run("live", "nothing", [])


@pytest.fixture
def importable() -> None:
    for name in NEEDS:
        pytest.importorskip(name, reason=f"{name}: not installed")


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(("room", "name"), all_benchmarks())
def test_every_benchmark_explains_itself(
    room: str, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(SystemExit) as ended:
        run(room, name, ["--help"])
    assert ended.value.code == 0
    assert f"usage: python -m benchmarks {room} {name}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(("room", "name", "rest"), shown())
def test_commands_of_pages_are_understood(
    room: str, name: str, rest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [word for word in shlex.split(rest) if word != "…"]
    if len(words) < len(shlex.split(rest)):
        return
    usual = argparse.ArgumentParser.parse_known_args

    def parse(parser: argparse.ArgumentParser, *given: object) -> object:
        usual(parser, *given)  # type: ignore[arg-type]
        raise UnderstoodError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse)
    monkeypatch.setattr(sys, "argv", [f"{room} {name}", *words])
    with pytest.raises(UnderstoodError):
        importlib.import_module(f"benchmarks.{room}.{name}").main()
