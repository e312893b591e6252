"""Changes of the pages for the site.

Links to files outside of docs/ lead to the repository, fences lose the packages that their tests need, bars
in the code of tables lose their backslash, and numbers stay with their percent sign.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"(\]\()((?:\.\./)+[^)\s#]*)")
CODE = re.compile(r"`[^`\n]+`")
PERCENT = re.compile(r"(?<=\d) %")
NEEDS = re.compile(r"^(```\w+) needs=\S+", re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite a page. page, config, files: as mkdocs gives them to its hooks."""
    folder = posixpath.dirname(page.file.src_uri)

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        if target.startswith("docs/"):
            return link[0]
        return f"{link[1]}{config.extra['repository']}/blob/main/{target}"

    lines = (_unescaped(line) if line.startswith("|") else line for line in markdown.split("\n"))
    return LINK.sub(rewritten, PERCENT.sub("\u00a0%", NEEDS.sub(r"\1", "\n".join(lines))))


def _unescaped(row: str) -> str:
    """Take the backslash from bars in the code of a table's row: GitHub needs it, the site would show it."""
    return CODE.sub(lambda code: code[0].replace("\\|", "|"), row)
