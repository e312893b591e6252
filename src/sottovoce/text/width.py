"""The display width of text, and its division among parts by width."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import accumulate

from sottovoce.text.languages import UNSPACED_LETTERS

_PIECES = re.compile(rf"\s*(?:[{UNSPACED_LETTERS}]|[^\s{UNSPACED_LETTERS}]+)")


def width(text: str) -> int:
    """Return the number of terminal cells: 2 for wide characters, 0 for combining ones."""
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shared_out(text: str, widths: Sequence[int]) -> list[list[str]]:
    """Divide a text at its words into parts with widths in proportion to `widths`; a part may be empty."""
    parts: list[list[str]] = [[] for _ in widths]
    pieces = _PIECES.findall(" ".join(text.splitlines()).strip())
    ends = list(accumulate(widths))
    total, done = max(1, width("".join(pieces))), 0
    for piece in pieces:
        middle = (done + width(piece) / 2) / total * ends[-1]
        done += width(piece)
        place = next((at for at, end in enumerate(ends) if middle <= end), len(ends) - 1)
        parts[place].append(piece)
    return parts
