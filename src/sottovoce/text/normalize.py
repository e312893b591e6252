"""Unicode forms of equal text, display widths, line breaks, and normalisation for scores.

Words are compared in NFC ("é" is one character), but spelled in the form of a model's labels, such as NFD
("e" and a combining accent). Scores also ignore letter case, punctuation and spelling variants.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from typing import Literal, TypeAlias, TypeVar

import regex

from sottovoce.errors import OptionError, needs
from sottovoce.text.languages import UNSPACED_LETTERS, find_language

MOST_FORMS = 8


def composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def is_composed(text: str) -> bool:
    return unicodedata.is_normalized("NFC", text)


def decomposed(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def letters_of(text: str) -> list[str]:
    letters: list[str] = []
    for character in composed(text):
        if letters and unicodedata.combining(character):
            letters[-1] += character
        else:
            letters.append(character)
    return letters


def ids_by_form(names: Sequence[str]) -> dict[str, int]:
    """Return the index of every name, also under its NFC form."""
    ids = {name: i for i, name in enumerate(names)}
    for i, name in enumerate(names):
        ids.setdefault(composed(name), i)
    return ids


def forms_of(text: str, characters: Collection[str]) -> list[str]:
    """Return at most `MOST_FORMS` equivalent forms of a text in given characters, closest to NFC first.

    Letters that the characters cannot write stay in NFC.
    """
    if text.isascii():
        return [text]
    choices = [
        [form for form in forms if all(each in characters for each in form)] or [forms[0]]
        for forms in map(_forms, letters_of(text))
    ]
    return ["".join(form) for form in itertools.islice(itertools.product(*choices), MOST_FORMS)]


def letter_spellings(word: str, ids: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Spell a word in at most `MOST_FORMS` forms of the ids of `ids_by_form`; empty if a letter has no id."""
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
    return {composed(word): word for word in words if not (word.isascii() or is_composed(word))}


@lru_cache(maxsize=2**14)
def _forms(letter: str) -> tuple[str, ...]:
    whole, apart = composed(letter), decomposed(letter)
    if len(apart) == 1:
        return (whole,)
    forms = [whole]
    base, marks = apart[:1], apart[1:]
    orders = itertools.permutations(marks) if len(marks) <= 3 else [marks]  # four have 24 orders
    for order in map("".join, orders):
        if decomposed(base + order) == apart:
            forms += [composed(base + order[:n]) + order[n:] for n in range(len(order), -1, -1)]
    return tuple(sorted(dict.fromkeys(forms), key=len))


BREAKABLE = re.compile(rf"\s*(?:[{UNSPACED_LETTERS}]|[^\s{UNSPACED_LETTERS}]+)")
"""Text between places where a line may break: words, and characters in scripts without spaces."""


def width(text: str) -> int:
    """Return the number of terminal cells: 2 for wide characters, 0 for combining ones."""
    return len(text) if text.isascii() and text.isprintable() else sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


_CLUSTER = regex.compile(r"\X")
_MARK = r"[\p{LB=CL}\p{LB=CP}\p{LB=EX}\p{LB=IS}\p{LB=IN}\p{LB=NS}\p{LB=CJ}\p{Lm}[\p{LB=BA}--[\p{Pd}\s]]]"
"""A closing mark, small kana or repetition sign: no break before it. Source: Unicode's UAX 14."""
_CONTINUES = regex.compile(rf"{_MARK}|\p{{Pf}}|\s+{_MARK}+\s*$|\s*$", regex.V1)
_OPENS = regex.compile(r"[\p{Ps}\p{Pi}]$")

T = TypeVar("T")


def n_clusters(text: str) -> int:
    """Count what readers take for one character: grapheme clusters (Unicode's UAX 29)."""
    return len(_CLUSTER.findall(text))


def unbreakable(pieces: Iterable[T], text_of: Callable[[T], str]) -> list[list[T]]:
    """Group consecutive words or letters that no line break may part, such as a word and its full stop."""
    groups: list[list[T]] = []
    for piece in pieces:
        if groups and not _may_break(text_of(groups[-1][-1]), text_of(piece)):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups


def _may_break(before: str, after: str) -> bool:
    if _CONTINUES.match(after):
        return False
    if before[-1:].isspace() or after[:1].isspace():
        return True
    is_one_cluster = n_clusters(before) + n_clusters(after) > n_clusters(before + after)
    return not is_one_cluster and not _OPENS.search(before)


def shared_out(text: str, widths: Sequence[int]) -> list[list[str]]:
    """Divide a text at its words into parts with widths in proportion to `widths`; a part may be empty."""
    parts: list[list[str]] = [[] for _ in widths]
    letters = BREAKABLE.findall(" ".join(text.splitlines()).strip())
    pieces = ["".join(group) for group in unbreakable(letters, str)]
    ends = list(itertools.accumulate(widths))
    total, done = max(1, width("".join(pieces))), 0
    for piece in pieces:
        middle = (done + width(piece) / 2) / total * ends[-1]
        done += width(piece)
        place = next((at for at, end in enumerate(ends) if middle <= end), len(ends) - 1)
        parts[place].append(piece)
    return parts


Normalizer: TypeAlias = Callable[[str], str]
Normalization: TypeAlias = Literal["whisper", "plain", "none"]

MARKED: frozenset[str] = frozenset(
    {"ar", "fa", "ur", "ps", "sd", "he", "yi", "hi", "mr", "ne", "sa", "bn", "as", "pa", "gu", "ta", "te"}
    | {"kn", "ml", "si", "th", "lo", "my", "km", "bo", "yo"}
)
"""Languages with combining marks for vowels or tones; Whisper's normaliser would replace them by spaces."""


def normalizer_for(language: str | None, kind: Normalization = "whisper") -> Normalizer:
    """Choose the normaliser for texts of one language.

    language: code or English name; None: several or unknown. kind: "whisper" is OpenAI's (arXiv 2212.04356,
    appendix C), but languages in MARKED and None use "plain"; "none" only joins spaces. Raises:
    MissingExtraError without the extra `eval`, OptionError for unknown names.
    """
    if kind not in ("whisper", "plain", "none"):
        raise OptionError(f"normalization: expected 'whisper', 'plain' or 'none', got '{kind}'")
    code = None if language is None else find_language(language)
    if kind == "none":
        return join_spaces
    if kind == "plain" or code is None or code in MARKED:
        return plain
    return _whisper("English" if code == "en" else "Basic")


def join_spaces(text: str) -> str:
    return " ".join(text.split())


def plain(text: str) -> str:
    """Fold case, compose compatibility forms (NFKC), and replace punctuation and symbols by spaces.

    Apostrophes between letters are removed ("don’t" is "dont").
    """
    composed = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)).casefold()
    folded = unicodedata.normalize("NFKC", composed)  # folding decomposes some letters
    return join_spaces("".join([_levelled(folded, i) for i in range(len(folded))]))


_APOSTROPHES = str.maketrans(dict.fromkeys("’ʼ‘´`＇", "'"))


def _levelled(text: str, i: int) -> str:
    if unicodedata.category(text[i])[0] in "LNM":
        return text[i]
    inside = 0 < i < len(text) - 1 and text[i - 1].isalnum() and text[i + 1].isalnum()
    return "" if text[i] == "'" and inside else " "


@cache
def _whisper(kind: Literal["English", "Basic"]) -> Normalizer:
    with needs("whisper-normalizer", "eval", "scoring with Whisper's normaliser"):
        module = import_module(f"whisper_normalizer.{kind.lower()}")
    normalizer: Normalizer = getattr(module, f"{kind}TextNormalizer")()
    return lambda text: join_spaces(normalizer(text))
