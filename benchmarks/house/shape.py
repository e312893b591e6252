"""How large the source is, and how it hangs together.

    python -m benchmarks house shape                       # of this checkout
    python -m benchmarks house shape --at COMMIT           # and of an earlier one

Counts files, lines, lines of module heads (docstring and imports), functions and their lengths, class names
and module names that occur more than once, and imports between rooms (the folders of the package). Prints a
line a count, then one JSON line.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_json

PACKAGE = "src/sottovoce"
ROOT = Path(__file__).parents[2]


def sources(commit: str | None) -> dict[str, str]:
    """Give the text of every module by its path in the package, of the working tree or of a commit."""
    if commit is None:
        folder = ROOT / PACKAGE
        return {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*.py")}
    packed = subprocess.run(
        ["git", "archive", commit, PACKAGE], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = [one for one in archive.getmembers() if one.name.endswith(".py")]
        files = {one.name: archive.extractfile(one) for one in members}
        return {
            name.removeprefix(f"{PACKAGE}/"): file.read().decode("utf-8")
            for name, file in files.items()
            if file is not None
        }


def head_lines(tree: ast.Module) -> int:
    """Count the lines of a module's docstring and imports."""
    heads = [
        node
        for index, node in enumerate(tree.body)
        if isinstance(node, ast.Import | ast.ImportFrom) or (index == 0 and isinstance(node, ast.Expr))
    ]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in heads)


def room_of(path: str) -> str:
    """Name the folder of a module in the package, or the module itself where it lies in none."""
    return path.split("/")[0].removesuffix(".py")


def arrows(path: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (room, other room) for every import of another room."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sottovoce."):
            other = (node.module or "").split(".")[1]
            if other != room_of(path):
                yield room_of(path), other


def shape(files: Mapping[str, str]) -> dict[str, float]:
    """Count everything."""
    trees = {path: ast.parse(text) for path, text in files.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    lengths = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    modules = Counter(Path(path).stem for path in files if not path.endswith("__init__.py"))
    lines = {path: text.count("\n") for path, text in files.items()}
    return {
        "files": len(files),
        "lines": sum(lines.values()),
        "lines of module heads": sum(map(head_lines, trees.values())),
        "longest file": max(lines.values()),
        "functions": len(lengths),
        "median lines a function": median(lengths),
        "longest function": max(lengths),
        "class names that occur twice": sum(count > 1 for count in classes.values()),
        "module names that occur twice": sum(count > 1 for count in modules.values()),
        "arrows between rooms": len({pair for path, tree in trees.items() for pair in arrows(path, tree)}),
    }


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--at", metavar="COMMIT", help="count the source as it was then")
    counts = shape(sources(parser.parse_args().at))
    for name, count in counts.items():
        print(f"{name:32} {count:g}")
    show_json("house shape", counts)


if __name__ == "__main__":
    main()
