"""The words of a KenLM binary: they stand at its end, in the order of their ids, each before a null byte.

KenLM's Python package answers for words and does not list them; whoever spells a vocabulary needs the list.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from sottovoce.errors import LanguageModelError, cause_of

_FIRST = b"<unk>\0"
"""What the list begins with in every binary."""


def words_of_binary(path: Path) -> tuple[str, ...]:
    """Read the words of a KenLM binary, <unk> first.

    Raises: LanguageModelError for a file that cannot be read, or was built without its words.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _last_words(content)
    except (OSError, ValueError) as error:
        reason = cause_of(error) if isinstance(error, OSError) else str(error)
        raise LanguageModelError(f"{path}: expected a KenLM binary with its words, got {reason}") from error


def _last_words(content: mmap.mmap) -> tuple[str, ...]:
    """Find the earliest place from which on there is nothing but words. Raises: ValueError without one."""
    found: tuple[str, ...] = ()
    place = content.rfind(_FIRST)
    while place >= 0:
        words = _words(content[place:])
        if words is None:
            break
        found = words
        place = content.rfind(_FIRST, 0, place + len(_FIRST) - 1)
    if not found:
        raise ValueError("one without")
    return found


def _words(tail: bytes) -> tuple[str, ...] | None:
    """Split null-terminated words; None where it is something else."""
    if not tail.endswith(b"\0") or b"\0\0" in tail:
        return None
    try:
        return tuple(tail[:-1].decode().split("\0"))
    except UnicodeDecodeError:
        return None
