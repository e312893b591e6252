"""Names of speakers in the order in which they appear: A, B, … Z, AA."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import count

from sottovoce.types import Turn


def letter(index: int) -> str:
    """The name of speaker `index`, counted from 0, as columns of a table are named."""
    name = ""
    index += 1
    while index:
        index, place = divmod(index - 1, 26)
        name = chr(ord("A") + place) + name
    return name


def place_of(name: str) -> int:
    """Which speaker a letter names, counted from 0."""
    place = 0
    for character in name:
        place = 26 * place + ord(character) - ord("A") + 1
    return place - 1


def named(
    turns: Iterable[tuple[float, float, Hashable]], known: Mapping[Hashable, str] | None = None
) -> list[Turn]:
    """Turns (start, end in seconds, any sign of a speaker) in the order of their beginnings, with names.

    known: names that signs have already; the others have letters that are no known name.
    """
    names = dict(known or {})
    letters = (name for name in map(letter, count()) if name not in (known or {}).values())
    made = []
    for start, end, speaker in sorted(turns, key=lambda turn: turn[:2]):
        if speaker not in names:
            names[speaker] = next(letters)
        made.append(Turn(start, end, names[speaker]))
    return made
