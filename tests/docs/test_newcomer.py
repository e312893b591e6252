"""What a newcomer is pointed to is there: ten tasks, each with a file and a name, and the glossary."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sottovoce"


def rows(page: str, n_cells: int) -> list[list[str]]:
    """Cells of the rows of a page's tables of so many columns, without heads."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    return [row for row in found if len(row) == n_cells and "---" not in row[0]]


def tasks() -> list[tuple[str, str, str]]:
    """Questions of the table of tasks, each with its file and name."""
    return [
        (row[0], row[1].strip("`"), row[2].strip("`"))
        for row in rows("architecture.md", 3)
        if row[1].startswith("`") and row[0].endswith("?")
    ]


def names_of(path: Path) -> set[str]:
    """Names that a module defines at its top."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@cache
def source() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))


def test_there_are_ten_tasks() -> None:
    assert len(tasks()) == 10


@pytest.mark.parametrize(("question", "file", "name"), tasks(), ids=lambda part: part)
def test_a_task_begins_where_it_says(question: str, file: str, name: str) -> None:
    assert (ROOT / file).exists(), f"{question} {file} is not there"
    assert name in names_of(ROOT / file), f"{question} {file} has no {name}"


@pytest.mark.parametrize("row", rows("glossary.md", 4), ids=lambda row: row[0])
def test_a_term_of_the_glossary_is_in_the_code(row: list[str]) -> None:
    term, meaning, place, _ = row
    assert meaning, term
    name = place.strip("`")
    if term == "term" or name == "–":
        return
    if name.endswith(".py"):
        assert any(SOURCE.rglob(Path(name).name)), f"{term}: there is no {name}"
    else:
        assert re.search(rf"\b{re.escape(name)}\b", source()), f"{term}: the code has no {name}"
