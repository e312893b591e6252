"""The reference of Python, written from declarations and docstrings, so that it is readable on GitHub too.

`python -m tests.docs.reference_page` brings docs/reference.md up to date: what stands between
`<!-- members of NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pydoc import locate
from types import ModuleType
from typing import Any

from sottovoce.options.schema import options_of
from sottovoce.recogniser import Recogniser
from tests.docs.command_tables import DOCS

PAGE = DOCS / "reference.md"
MARKS = re.compile(
    r"(<!-- members of (?P<of>[\w.]+)(?: \((?P<only>[\w, ]+)\))? -->\n)(.*?)(<!-- end -->)", re.DOTALL
)
ITEM = re.compile(r"^(?!Raises:)([\w*]+(?:, [\w*]+)*): (.*)", re.DOTALL)
WIDTH = 100


def rewritten(page: str) -> str:
    def rewrite(match: re.Match[str]) -> str:
        only = [name.strip() for name in (match["only"] or "").split(",") if name.strip()]
        return f"{match[1]}{described(match['of'], only)}\n{match[5]}"

    return MARKS.sub(rewrite, page)


def described(name: str, only: list[str]) -> str:
    result: Any = locate(name)
    if isinstance(result, ModuleType):
        members = only or [
            each for each, item in vars(result).items() if inspect.isclass(item) and item.__module__ == name
        ]
        return "\n".join(described(f"{name}.{member}", []) for member in members)
    short = name if name.count(".") == 1 else name.rpartition(".")[2]
    has_fields = dataclasses.is_dataclass(result) and bool(options_of(result))
    parts = [f"### {short}\n", "" if has_fields else signature(result, short), text_of(result)]
    if not inspect.isclass(result):
        return "\n".join(parts)
    parts += [field_table(result)] if has_fields else []
    for member, item in members_of(result):
        function = item.fget if isinstance(item, property) else getattr(item, "__func__", item)
        kind = "" if isinstance(item, property) else "()"
        parts += [f"#### {short.rpartition('.')[2]}.{member}{kind}\n"]
        parts += [] if isinstance(item, property) else [signature(function, member)]
        parts.append(text_of(function))
    return "\n".join(parts)


def members_of(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that have a docstring, inherited ones of this project too, but
    those of `Recogniser`, which has a section.
    """
    seen: dict[str, Any] = {}
    shown = [item for item in owner.__mro__ if item.__module__.startswith("sottovoce")]
    for each in reversed([item for item in shown if item is owner or item is not Recogniser]):
        seen |= vars(each)
    for name, item in seen.items():
        function = item.fget if isinstance(item, property) else getattr(item, "__func__", item)
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield name, item


def signature(result: Any, name: str) -> str:
    """Return the signature as a block of code, on several lines if it is long."""
    try:
        called = inspect.signature(result)
    except (TypeError, ValueError):
        return ""
    parameters = [
        parameter for parameter in called.parameters.values() if parameter.name not in ("self", "cls")
    ]
    shown: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        hint = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        default = "" if parameter.default is parameter.empty else f" = {shown_default(parameter.default)}"
        shown.append(f"{parameter.name}{hint}{default}")
    returned = (
        ""
        if inspect.isclass(result) or called.return_annotation is called.empty
        else called.return_annotation
    )
    end, short = f" -> {returned}" if returned else "", name.rpartition(".")[2]
    line = f"{short}({', '.join(shown)}){end}"
    if len(line) > WIDTH:
        line = f"{short}(\n" + "".join(f"    {parameter},\n" for parameter in shown) + f"){end}"
    return f"```text\n{line}\n```\n"


def shown_default(value: Any) -> str:
    if inspect.isfunction(value):
        return "…"
    if value and isinstance(value, dict):
        return "{…}"
    return f"{type(value).__name__}()" if dataclasses.is_dataclass(value) else repr(value)


def text_of(result: Any) -> str:
    """Return the docstring as Markdown: parameters and errors are lists."""
    blocks = (inspect.getdoc(result) or "").split("\n\n") if result.__doc__ else []
    return "\n".join(f"{block_of(block)}\n" for block in blocks)


def block_of(block: str) -> str:
    lines: list[str] = []
    for line in block.split("\n"):
        bare = line.strip()
        if lines and not ITEM.match(bare) and not bare.startswith("Raises:"):
            lines[-1] += f" {bare}"
        else:
            lines.append(bare)
    items = [ITEM.match(line) for line in lines]
    rendered = [
        f"- `{item[1]}`: {item[2]}" if item else line for item, line in zip(items, lines, strict=True)
    ]
    joined = rendered[0]
    for before, line in pairwise(rendered):
        joined += ("\n" if before.startswith("- ") and line.startswith("- ") else "\n\n") + line
    return joined


def field_table(owner: type) -> str:
    """Return the fields that have an option or a docstring. A converted option is not in the field's unit."""
    rows = ["| field | default | flag | meaning |", "|---|---|---|---|"]
    options = {option.field: option for option in options_of(owner)}
    docstrings = dict(field_docstrings(owner))
    for field in dataclasses.fields(owner):
        option, more = options.get(field.name), docstrings.get(field.name, "")
        if option is None:
            factory = field.default_factory
            default = shown_default(field.default if factory is dataclasses.MISSING else factory())
            rows += [f"| `{field.name}` | `{default}` |  | {more} |"] if more else []
            continue
        unset = f" None: {option.unset}." if option.unset and option.default is None else ""
        flag = f"`{option.flags}`" if option.flags else ""
        default = shown_default(option.default).replace("|", "\\|")
        meaning = f"False: {option.help}" if option.negated else option.help
        is_converted = option.reads is not None and option.key != option.field
        meaning = more if more and is_converted else f"{meaning}{unset} {more}".strip()
        rows.append(f"| `{option.field}` | `{default}` | {flag} | {meaning} |".replace("\n", " "))
    return "\n".join([*rows, ""])


def field_docstrings(owner: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a dataclass that a docstring follows, and it."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(body, ast.ClassDef)
    for field, text in pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match text:
                case ast.Expr(ast.Constant(str(docstring))):
                    yield field.target.id, " ".join(docstring.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
