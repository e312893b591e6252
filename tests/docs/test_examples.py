"""What the pages show works: examples run, links lead somewhere, commands know their options."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from sottovoce.cli.main import cli
from tests.docs.command_tables import (
    CLASSES,
    FIELDS,
    PAGE,
    PROTOCOL,
    REFERENCE,
    SERVING,
    class_table,
    form_table,
    rewritten,
)
from tests.fresh_process import run_code

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "recipes").rglob("*.md")),
]
DISTRIBUTIONS = {"rapidocr_onnxruntime": "rapidocr-onnxruntime", "PIL": "pillow"}
"""What packages are called in an index, where that is another name."""
FENCE = re.compile(r"^```(\w*)(?: needs=)?([\w,]*)(?: .*)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""Blocks: their language, packages that they need and the project does not, and what they hold."""


def blocks(language: str) -> list[object]:
    found = []
    for page in PAGES:
        for number, match in enumerate(FENCE.finditer(page.read_text(encoding="utf-8"))):
            if match[1] == language:
                needs = [name for name in match[2].split(",") if name and not find_spec(name)]
                skip = pytest.mark.skipif(bool(needs), reason=f"{', '.join(needs)}: not installed")
                found.append(pytest.param(match[3], id=f"{page.name}-{number}", marks=skip))
    return found


def needed() -> set[str]:
    """Packages that examples need and the project does not."""
    found = (match[2] for page in PAGES for match in FENCE.finditer(page.read_text(encoding="utf-8")))
    return {name for names in found for name in names.split(",") if name}


def commands() -> list[object]:
    found = []
    for page in PAGES:
        for match in FENCE.finditer(page.read_text(encoding="utf-8")):
            for line in match[3].replace("\\\n", " ").splitlines():
                if line.startswith("sottovoce "):
                    found.append(pytest.param(line, id=f"{page.name}: {line[:60]}"))
    return found


def test_what_examples_need_is_installed_by_make_test() -> None:
    """Else they would skip wherever nobody happens to have it."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "pyproject.toml")]
    installed = {name.lower() for text in texts for name in re.findall(r"[\w-]+(?=[=>]=)", text)}
    assert needed()
    assert {DISTRIBUTIONS.get(name, name) for name in needed()} <= installed


@pytest.mark.slow
@pytest.mark.parametrize("code", blocks("python"))
def test_python_examples_run(code: str, tmp_path: Path) -> None:
    assert run_code(code, ROOT, tmp_path / "said") == 0, (tmp_path / "said").read_text()


@pytest.mark.parametrize("line", commands())
def test_commands_are_understood(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    for stop in ("|", ">", "<"):
        words = words[: words.index(stop)] if stop in words else words
    command: click.Command = cli
    context = click.Context(cli, info_name="sottovoce", **cli.context_settings)
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"no command {name}"
        command = found
        context = click.Context(command, parent=context, info_name=name)
    command.make_parser(context).parse_args(words)


def test_the_tables_of_options_are_true() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == rewritten(page), "bring docs/cli.md up to date: python -m tests.docs.command_tables"
    for path in (SERVING, PROTOCOL):
        page = path.read_text(encoding="utf-8")
        assert page == rewritten(page, FIELDS, form_table), (
            f"bring docs/{path.name} up to date: python -m tests.docs.command_tables"
        )
    reference = REFERENCE.read_text(encoding="utf-8")
    assert reference == rewritten(reference, CLASSES, class_table), (
        "bring docs/reference.md up to date: python -m tests.docs.command_tables"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
