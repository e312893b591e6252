"""Put faults into functions of the source, one at a time, and list the tests that find each.

    python -m tests.mutations --packages text,formats --n 30 [--seed 0] [--report FILE] [-- -m "not long"]

A fault is a sign, a bound, a constant, a condition, a field that is left out, or two swapped arguments. The
tests of the packages run once, to learn which functions each calls. For every fault a forked process gets
the changed code of the function and runs the tests that call it. Functions that no test calls count as
missed.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import random
import select
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import pytest
from _pytest.runner import runtestprotocol

SOURCE = Path(__file__).parents[1] / "src" / "sottovoce"
BOUNDS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.FloorDiv: ast.Mult}
MOST_S = 120
"""Of the tests of one fault; a fault that makes them longer counts as found."""
Place = tuple[str, str, int]
"""File, name and first line of a function."""


@dataclass(frozen=True)
class Fault:
    """A change of the node at `index` of `ast.walk` of the file, within the function at `place`."""

    place: Place
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


def invert(node: ast.AST) -> None:
    assert isinstance(node, ast.If | ast.IfExp)
    node.test = ast.UnaryOp(ast.Not(), node.test)


def drop_field(node: ast.AST) -> None:
    assert isinstance(node, ast.Call)
    del node.keywords[-1]


def swap_arguments(node: ast.AST) -> None:
    assert isinstance(node, ast.Call)
    node.args[:2] = reversed(node.args[:2])


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], None]]]:
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        yield "sign", negate
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in BOUNDS:
        yield "bound", move_bound
        if isinstance(node.comparators[0], ast.Constant) and isinstance(node.comparators[0].value, int):
            yield "constant", add_one
    if isinstance(node, ast.If | ast.IfExp):
        yield "condition", invert
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        if node.keywords and node.keywords[-1].arg and (name[0].isupper() or name == "replace"):
            yield "field", drop_field
        if len(node.args) > 1 and all(isinstance(given, ast.Name | ast.Attribute) for given in node.args[:2]):
            yield "arguments", swap_arguments


def faults(path: Path) -> Iterator[Fault]:
    """Every fault of the functions and methods of a file, but in declarations and error messages."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    places: dict[int, Place] = {}
    left_out: set[int] = set()
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for function in (*tree.body, *(member for owner in classes for member in owner.body)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            line = min([function.lineno, *(each.lineno for each in function.decorator_list)])
            inner = (node for statement in function.body for node in ast.walk(statement))
            places |= {id(node): (str(path), function.name, line) for node in inner}
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.AnnAssign):
            left_out |= {id(inner) for inner in ast.walk(node)}
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in places and id(node) not in left_out:
            line = getattr(node, "lineno", 0)
            yield from (Fault(places[id(node)], index, line, *change) for change in changes(node))


def codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def put_in(fault: Fault) -> None:
    """Change the code of the function in this process."""
    path, name, line = fault.place
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    fault.apply(list(ast.walk(tree))[fault.index])
    module = compile(ast.fix_missing_locations(tree), path, "exec")
    (changed,) = (each for each in codes_of(module) if (each.co_name, each.co_firstlineno) == (name, line))
    for function in [each for each in gc.get_objects() if type(each) is FunctionType]:
        code = function.__code__
        if (code.co_filename, code.co_name, code.co_firstlineno) == fault.place:
            function.__code__ = changed


class Mutations:
    """A plugin of pytest that runs the tests once, and then those that a fault concerns."""

    def __init__(self, packages: list[str], n: int, seed: int) -> None:
        choice = random.Random(seed)
        paths = (path for package in packages for path in sorted((SOURCE / package).rglob("*.py")))
        possible = [fault for path in paths for fault in faults(path)]
        self.chosen = choice.sample(possible, min(n, len(possible)))
        self.finders: dict[str, list[str]] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        from hypothesis.internal.conjecture import engine  # pytest warns of earlier imports

        engine.MAX_SHRINKS = 0
        calls: defaultdict[Place, list[int]] = defaultdict(list)
        for number in range(len(session.items)):
            for place in self._called(session.items, number):
                calls[place].append(number)
        for fault in self.chosen:
            where = f"{Path(fault.place[0]).relative_to(SOURCE)}:{fault.line} {fault.kind}"
            result = self._finders(session.items, calls[fault.place], fault)
            self.finders[f"{where} {fault.index}"] = result
            print(f"{where}: {f'found by {len(result)}: {result[0]}' if result else 'missed'}", flush=True)
        n_found = sum(map(bool, self.finders.values()))
        print(f"{n_found} of {len(self.finders)} faults found by {len(session.items)} tests", flush=True)
        return True

    def _called(self, items: list[pytest.Item], number: int) -> set[Place]:
        places: set[Place] = set()

        def note(frame: FrameType, _: str, __: object) -> None:  # of calls alone, as it returns no tracer
            code = frame.f_code
            if "sottovoce" in code.co_filename:
                places.add((code.co_filename, code.co_name, code.co_firstlineno))

        threading.settrace(note)
        sys.settrace(note)
        try:
            self._fails(items, number)
        finally:
            sys.settrace(None)
            threading.settrace(None)
        return places

    def _fails(self, items: list[pytest.Item], number: int) -> bool:
        following = items[number + 1] if number + 1 < len(items) else None
        return any(report.failed for report in runtestprotocol(items[number], log=False, nextitem=following))

    def _finders(self, items: list[pytest.Item], numbers: list[int], fault: Fault) -> list[str]:
        """The tests that fail with a fault; "in time" where they do not end."""
        read, write = os.pipe()
        if not (child := os.fork()):
            try:
                put_in(fault)
                chosen = [items[number] for number in numbers]
                failed = [item.nodeid for at, item in enumerate(chosen) if self._fails(chosen, at)]
            except BaseException as error:
                failed = [f"by {type(error).__name__}"]
            with open(write, "w", encoding="utf-8") as pipe:
                json.dump(failed, pipe)
            os._exit(0)
        os.close(write)
        with open(read, encoding="utf-8") as pipe:
            if not select.select([pipe], [], [], MOST_S)[0]:
                os.kill(child, signal.SIGKILL)
            text = pipe.read()
        os.waitpid(child, 0)
        result: list[str] = json.loads(text) if text else ["in time, or by the end of the process"]
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", required=True, help="between commas")
    parser.add_argument("--n", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="JSON of the tests that find each fault")
    parser.add_argument("arguments", nargs="*", default=["-m", "not long"], help="of pytest, after --")
    given = parser.parse_args()
    packages = given.packages.split(",")
    mutations = Mutations(packages, given.n, given.seed)
    options = ["-q", "-s", "--timeout", "0", "-p", "no:cacheprovider", "-p", "no:xdist", *given.arguments]
    pytest.main([*options, *(f"tests/{name}" for name in packages)], [mutations])
    if given.report:
        given.report.write_text(json.dumps(mutations.finders, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
