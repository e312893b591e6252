"""Changes of the pages for the site.

Links to files outside of docs/ lead to the repository, fences lose the packages that their tests need, bars
in the code of tables lose their backslash, and numbers stay with their percent sign. A comment
`fields of sottovoce.…` becomes a table of the fields of that class of options.
"""

from __future__ import annotations

import posixpath
import re
from pydoc import locate
from typing import Any

from sottovoce.options.schema import options_of

LINK = re.compile(r"(\]\()((?:\.\./)+[^)\s#]*)")
CODE = re.compile(r"`[^`\n]+`")
PERCENT = re.compile(r"(?<=\d) %")
FIELDS = re.compile(r"<!-- fields of (sottovoce[\w.]+) -->")
NEEDS = re.compile(r"^(```\w+) needs=\S+", re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite a page. page, config, files: as mkdocs gives them to its hooks."""
    folder = posixpath.dirname(page.file.src_uri)

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        if target.startswith("docs/"):
            return link[0]
        return f"{link[1]}{config.extra['repository']}/blob/main/{target}"

    markdown = FIELDS.sub(lambda match: field_table(match[1]), markdown)
    lines = (_unescaped(line) if line.startswith("|") else line for line in markdown.split("\n"))
    return LINK.sub(rewritten, PERCENT.sub("\u00a0%", NEEDS.sub(r"\1", "\n".join(lines))))


def _unescaped(row: str) -> str:
    """Take the backslash from bars in the code of a table's row: GitHub needs it, the site would show it."""
    return CODE.sub(lambda code: code[0].replace("\\|", "|"), row)


def field_table(name: str) -> str:
    """A table of the fields of a class of options, in Markdown. name: with its module."""
    rows = ["| field | default | flag | meaning |", "|---|---|---|---|"]
    owner: Any = locate(name)
    for option in options_of(owner):
        unset = f" None: {option.unset}." if option.unset and option.default is None else ""
        flag = f"`{option.flags}`" if option.flags else ""
        default = repr(option.default).replace("|", "\\|")
        meaning = f"False: {option.help}" if option.negated else option.help
        rows.append(f"| `{option.field}` | `{default}` | {flag} | {meaning}{unset} |")
    return "\n".join(rows)
