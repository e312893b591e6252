"""Names of speakers in the order in which they appear: A, B, … Z, AA."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from sottovoce.types import Turn


def letter(index: int) -> str:
    """The name of speaker `index`, counted from 0, as columns of a table are named."""
    name = ""
    index += 1
    while index:
        index, place = divmod(index - 1, 26)
        name = chr(ord("A") + place) + name
    return name


def named(turns: Iterable[tuple[float, float, Hashable]]) -> list[Turn]:
    """Turns (start, end in seconds, any sign of a speaker) in the order of their beginnings, with names."""
    names: dict[Hashable, str] = {}
    ordered = sorted(turns, key=lambda turn: turn[:2])
    return [
        Turn(start, end, names.setdefault(speaker, letter(len(names)))) for start, end, speaker in ordered
    ]
