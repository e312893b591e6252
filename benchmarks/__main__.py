"""`python -m benchmarks [TOPIC] NAME …` runs one benchmark; without a name, all are listed.

A benchmark is a module that has a `main`, in the folder of its topic or in none. The first line of its
docstring says what it measures.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
TOPICS = ("", "files", "text", "language", "live", "ctc", "server", "speakers")


def benchmarks(topic: str) -> dict[str, str]:
    """Names of a topic's benchmarks, each with the line that says what it measures. Nothing is imported."""
    result = {}
    for path in sorted((HERE / topic).glob("[a-z]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            result[path.stem] = (ast.get_docstring(tree) or "").split("\n", maxsplit=1)[0]
    return result


def listing() -> str:
    lines = ["python -m benchmarks [TOPIC] NAME [OPTIONS]"]
    for topic in TOPICS:
        lines.append(f"\n{topic}" if topic else "")
        lines += [f"  {name:16} {what}" for name, what in benchmarks(topic).items()]
    return "\n".join(lines)


def run(topic: str, name: str, arguments: list[str]) -> None:
    """Run a benchmark with its arguments. Raises SystemExit if there is none of that name."""
    place = f"{topic} {name}".strip()
    if topic not in TOPICS or name not in benchmarks(topic):
        what = f"there is no '{place}'; scripts of finished experiments: docs/research/log.md"
        raise SystemExit(f"python -m benchmarks: {what}\n\n{listing()}")
    sys.argv = [f"python -m benchmarks {place}", *arguments]
    importlib.import_module(f"benchmarks.{place.replace(' ', '.')}").main()


def main() -> None:
    match sys.argv[1:]:
        case [name, *arguments] if name in benchmarks(""):
            run("", name, arguments)
        case [topic, name, *arguments] if not topic.startswith("-"):
            run(topic, name, arguments)
        case _:
            print(listing())


if __name__ == "__main__":
    main()
