"""Name speakers in the order in which they appear: A, B, … Z, AA; or by people's names."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import count

from sottovoce.types import Turn


def letter(index: int) -> str:
    """Return the name of speaker `index`, counted from 0, as columns of a table are named."""
    name = ""
    index += 1
    while index:
        index, place = divmod(index - 1, 26)
        name = chr(ord("A") + place) + name
    return name


def replace_letter(speaker: str | None, names: Sequence[str]) -> str | None:
    """Replace a speaker's letter by a name: the first name is A's; a letter without a name stays."""
    if speaker is None or not (speaker.isascii() and speaker.isalpha() and speaker.isupper()):
        return speaker
    place = letter_index(speaker)
    return names[place] if place < len(names) else speaker


def letter_index(name: str) -> int:
    """Return the index of the speaker that a letter names, counted from 0."""
    place = 0
    for character in name:
        place = 26 * place + ord(character) - ord("A") + 1
    return place - 1


def name_turns(
    turns: Iterable[tuple[float, float, Hashable]], taken: Mapping[Hashable, str] | None = None
) -> list[Turn]:
    """Name the speakers of turns (start, end in seconds, any label), in the order of their beginnings.

    taken: names of labels that have one already; the others get letters that are no taken name.
    """
    names = dict(taken or {})
    letters = (name for name in map(letter, count()) if name not in (taken or {}).values())
    turns_named = []
    for start, end, speaker in sorted(turns, key=lambda turn: turn[:2]):
        if speaker not in names:
            names[speaker] = next(letters)
        turns_named.append(Turn(start, end, names[speaker]))
    return turns_named
