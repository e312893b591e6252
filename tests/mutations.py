"""Put faults into a copy of the source, one at a time, and count how many the tests of its package find.

    python -m tests.mutations --n 30 [--seed 0] [--checkout FOLDER] [--packages text,audio] [-- -m "not long"]

A fault is a sign, a bound, a constant, a field that is left out, or two swapped arguments. It counts as found
where a test fails that passes without it. Checkouts before and after a change are compared by one seed.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "site", "demo", ".*_cache")
BOUNDS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.FloorDiv: ast.Mult}
MOST_S = 900  # of the tests of a package; a fault that makes them longer is found


@dataclass(frozen=True)
class Fault:
    """A change of the node at `index` of `ast.walk`."""

    path: Path
    index: int
    line: int
    kind: str
    apply: Callable[[ast.AST], None]


def negate(node: ast.AST) -> None:
    assert isinstance(node, ast.BinOp)
    node.op = SIGNS[type(node.op)]()


def move_bound(node: ast.AST) -> None:
    assert isinstance(node, ast.Compare)
    node.ops[0] = BOUNDS[type(node.ops[0])]()


def add_one(node: ast.AST) -> None:
    assert isinstance(node, ast.Compare)
    (limit,) = node.comparators
    node.comparators = [ast.BinOp(limit, ast.Add(), ast.Constant(1))]


def drop_field(node: ast.AST) -> None:
    assert isinstance(node, ast.Call)
    del node.keywords[-1]


def swap_arguments(node: ast.AST) -> None:
    assert isinstance(node, ast.Call)
    node.args[:2] = reversed(node.args[:2])


def faults(path: Path) -> Iterator[Fault]:
    """Every fault that a file can have, but in declarations, error messages and imports for types."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out: set[int] = set()
    for node in ast.walk(tree):
        is_declared = isinstance(node, ast.AnnAssign) or ast.unparse(node).startswith("if TYPE_CHECKING")
        if isinstance(node, ast.Raise) or (isinstance(node, ast.stmt) and is_declared):
            left_out |= {id(inner) for inner in ast.walk(node)}
    for index, node in enumerate(ast.walk(tree)):
        found: list[tuple[str, Callable[[ast.AST], None]]] = []
        if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
            found.append(("sign", negate))
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in BOUNDS:
            found.append(("bound", move_bound))
            if isinstance(node.comparators[0], ast.Constant) and isinstance(node.comparators[0].value, int):
                found.append(("constant", add_one))
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if node.keywords and node.keywords[-1].arg and (name[0].isupper() or name == "replace"):
                found.append(("field", drop_field))
            if len(node.args) > 1 and all(isinstance(one, ast.Name | ast.Attribute) for one in node.args[:2]):
                found.append(("arguments", swap_arguments))
        if id(node) not in left_out:
            yield from (Fault(path, index, getattr(node, "lineno", 0), *one) for one in found)


def tests_fail(folder: Path, tests: list[str], arguments: list[str], shared: Path) -> str | None:
    """The first test that fails, or None; "in time" where they do not end."""
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}", "SOTTOVOCE_SHARED": str(shared)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments, *tests]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=MOST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "in time"
    if done.returncode in (0, 5):
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+?(?:::.*?)?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return failed[1] if failed else done.stdout[-200:] + done.stderr[-200:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--n", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", help="some of them, between commas")
    parser.add_argument("arguments", nargs="*", default=["-m", "not long"])
    given = parser.parse_args()
    checkout, choice = given.checkout.resolve(), random.Random(given.seed)
    shared = checkout.parent / "shared"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(shutil.copytree(checkout, Path(temporary) / "checkout", ignore=LEFT_OUT))
        source = folder / "src" / "sottovoce"
        tested = sorted(path.name for path in source.iterdir() if (folder / "tests" / path.name).is_dir())
        packages = given.packages.split(",") if given.packages else tested
        choice.shuffle(packages)
        of_package = {
            name: [fault for path in sorted((source / name).rglob("*.py")) for fault in faults(path)]
            for name in packages
        }
        n_found = 0
        for number in range(given.n):
            package = packages[number % len(packages)]
            kind = choice.choice(sorted({fault.kind for fault in of_package[package]}))
            fault = choice.choice([fault for fault in of_package[package] if fault.kind == kind])
            text = fault.path.read_text(encoding="utf-8")
            tree = ast.parse(text)
            fault.apply(list(ast.walk(tree))[fault.index])
            fault.path.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
            failed = tests_fail(folder, [f"tests/{package}"], given.arguments, shared)
            fault.path.write_text(text, encoding="utf-8")
            if failed and "::" in failed and tests_fail(folder, [failed], given.arguments, shared):
                failed = None  # it fails without the fault too
            n_found += failed is not None
            where = f"{fault.path.relative_to(folder)}:{fault.line}"
            print(f"{where}: {fault.kind}: {f'found by {failed}' if failed else 'missed'}", flush=True)
    print(f"{n_found} of {given.n} faults found")


if __name__ == "__main__":
    main()
