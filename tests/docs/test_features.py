"""The table beside other projects: whatever is ours has a test that is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r'^\[yes\]\(\.\./(?P<file>tests/[\w/]+\.py) "(?P<test>test_\w+)"\)$')


def rows() -> list[list[str]]:
    """The cells of each row of the table, without its head."""
    text = (ROOT / "docs/compared.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_row_is_whole() -> None:
    table = rows()
    assert len(table) > 20
    assert {len(row) for row in table} == {7}
    assert all(all(row) for row in table)
    assert len({row[0] for row in table}) == len(table)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_what_is_ours_has_its_test(row: list[str]) -> None:
    if row[-1] == "–":
        return
    found = LINK.match(row[-1])
    assert found is not None, f'{row[0]}: expected [yes](../tests/file.py "test"), got {row[-1]}'
    tree = ast.parse((ROOT / found["file"]).read_text(encoding="utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert found["test"] in names, f"{row[0]}: {found['file']} has no {found['test']}"
