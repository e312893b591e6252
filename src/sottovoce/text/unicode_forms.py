"""Unicode forms: letters with accents, vowel marks and Hangul can be written in several equivalent ways.

"é" is one character (NFC) or "e" and a combining accent (NFD); marks on one letter may have several orders.
Words are compared in NFC, wherever they come from. Labels keep the form that their model was trained with:
words are spelled in that form. Only canonical equivalence counts, never NFKC, which changes letters.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

MOST_FORMS = 8
"""Forms of one text at most."""
_MOST_MARKS = 3
"""Marks on one letter whose orders are tried."""


def composed(text: str) -> str:
    """Return a text in NFC."""
    return unicodedata.normalize("NFC", text)


def is_composed(text: str) -> bool:
    """Whether a text is in NFC."""
    return unicodedata.is_normalized("NFC", text)


def decomposed(text: str) -> str:
    """Return a text in NFD."""
    return unicodedata.normalize("NFD", text)


def letters_of(text: str) -> list[str]:
    """Split a text into its letters with their combining marks."""
    found: list[str] = []
    for character in composed(text):
        if found and unicodedata.combining(character):
            found[-1] += character
        else:
            found.append(character)
    return found


def ids_by_form(names: Sequence[str]) -> dict[str, int]:
    """Return the index of every name, under its NFC form too."""
    ids = {name: i for i, name in enumerate(names)}
    for i, name in enumerate(names):
        ids.setdefault(composed(name), i)
    return ids


def forms_of(text: str, characters: Collection[str]) -> list[str]:
    """Return the equivalent forms of a text that consist of given characters, at most `MOST_FORMS`.

    The first one is the closest to NFC. A letter that the characters cannot write stays in NFC.
    """
    if text.isascii():
        return [text]
    choices = [
        [form for form in forms if all(each in characters for each in form)] or [forms[0]]
        for forms in map(_forms, letters_of(text))
    ]
    return ["".join(form) for form in itertools.islice(itertools.product(*choices), MOST_FORMS)]


def letter_spellings(word: str, ids: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Spell a word letter by letter, in every form that the ids have, at most `MOST_FORMS`; NFC comes first.

    ids: see `ids_by_form`. Empty where a letter has no id.
    """
    if word.isascii():
        return [tuple(ids[each] for each in word)] if word and all(each in ids for each in word) else []
    choices: list[list[tuple[int, ...]]] = []
    for letter in letters_of(word):
        ways = []
        for form in _forms(letter):
            parts = (form,) if form in ids else tuple(form)
            if all(part in ids for part in parts):
                ways.append(tuple(ids[part] for part in parts))
        choices.append(list(dict.fromkeys(ways)))
    written = itertools.islice(itertools.product(*choices), MOST_FORMS)
    return [tuple(itertools.chain.from_iterable(parts)) for parts in written if parts]


def indexed_by_form(words: Iterable[str]) -> dict[str, str]:
    """Return the words that are not in NFC, by their NFC form."""
    return {composed(word): word for word in words if not (word.isascii() or is_composed(word))}


@lru_cache(maxsize=2**14)
def _forms(letter: str) -> tuple[str, ...]:
    """Equivalent forms of a letter with its marks, NFC first, the most composed ones before others."""
    whole, apart = composed(letter), decomposed(letter)
    if len(apart) == 1:
        return (whole,)
    forms = [whole]
    base, marks = apart[:1], apart[1:]
    orders = itertools.permutations(marks) if len(marks) <= _MOST_MARKS else [marks]
    for order in map("".join, orders):
        if decomposed(base + order) == apart:
            forms += [composed(base + order[:n]) + order[n:] for n in range(len(order), -1, -1)]
    return tuple(sorted(dict.fromkeys(forms), key=len))
