"""Phrases as label sequences: case, signs, pieces and pronunciations.

A phrase is spelled as it is written where the labels have its letters, else in small or in capital ones, then
with plain signs: hyphens become spaces or nothing, signs that are no letters go, accents go last. Numbers
stay digits: where labels have none, they have to be written out.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sottovoce.ctc.options import Case
from sottovoce.decoding.ctc.text import PIECE_START, Labels
from sottovoce.errors import LanguageModelError
from sottovoce.lm.boosting import Phrase
from sottovoce.lm.phrase_lists import ListedPhrase, without_faults
from sottovoce.text.normalize import composed, forms_of, ids_by_form

MOST_SPELLINGS = 8
"""Label sequences of a phrase at most, those of fewest labels; the first is that of the longest labels."""
_SIGNS = str.maketrans({"’": "'", "ʼ": "'", "‐": "-", "‑": "-", "–": "-", "—": "-", "“": '"', "”": '"'})

_CASES: Mapping[Case, Callable[[str], str]] = {"keep": str, "lower": str.lower, "upper": str.upper}

Pronunciations = Mapping[str, Sequence[tuple[int, ...]]]
"""Label sequences of words."""


@dataclass(frozen=True, slots=True)
class PhraseSpeller:
    """Spells phrases in labels. pronunciations: of words of a lexicon; others are spelled in letters."""

    labels: Labels
    case: Case = "keep"
    pronunciations: Pronunciations = field(default_factory=dict)
    _ids: Mapping[str, int] = field(init=False, repr=False)
    _characters: frozenset[str] = field(init=False, repr=False)
    _longest: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        blank = self.labels.blank
        ids = {name: i for name, i in ids_by_form(self.labels.names).items() if name and i != blank}
        object.__setattr__(self, "_ids", ids)
        object.__setattr__(self, "_characters", frozenset("".join(ids)))
        object.__setattr__(self, "_longest", max(map(len, ids), default=1))

    def boosted(self, phrases: Sequence[ListedPhrase]) -> list[Phrase]:
        """Spell phrases in every way; all ways of one add as much as its first. Faulty ones are warnings.

        Raises: LanguageModelError where none can be spelled.
        """
        spelled: list[Phrase] = []

        def tried(phrase: ListedPhrase) -> LanguageModelError | None:
            try:
                ways = self.spellings(phrase.text)
                weights = [phrase.weight * len(ways[0]) / max(len(way), 1) for way in ways]
                spelled.extend(map(Phrase, ways, weights))
            except LanguageModelError as error:
                return error
            return None

        without_faults((phrase, tried(phrase)) for phrase in phrases)
        return spelled

    def spellings(self, text: str) -> list[tuple[int, ...]]:
        """Return the label sequences that spell a phrase, at most `MOST_SPELLINGS`.

        Raises: LanguageModelError for a text that labels cannot spell.
        """
        if not self.labels.has_words and (" " in text or self.cased(text) in self._ids):
            return [self._symbols(text)]
        if self.labels.separator is not None and self.pronunciations:
            return self._pronounced(text)
        return self._lettered(text)

    def cased(self, text: str) -> str:
        """Change the case of a text as the option says."""
        return composed(_CASES[self.case](text))

    def form_among(self, word: str, words: Collection[str | None]) -> str | None:
        """Return the form of a word that is among words: as it is written, or in another case; None: none."""
        return next((form for form in self.folded(word) if form in words), None)

    def folded(self, text: str) -> tuple[str, str, str, str]:
        """Return a text as it is written, in the case of the option, and in small and capital letters."""
        cased = self.cased(text)
        return text, cased, composed(cased.lower()), composed(cased.upper())

    def _pronounced(self, text: str) -> list[tuple[int, ...]]:
        """Words as the lexicon pronounces them, with separators between."""
        ways: list[list[tuple[int, ...]]] = []
        for word in text.split():
            form = self.form_among(word, self.pronunciations)
            ways.append(self._lettered(word) if form is None else list(self.pronunciations[form]))
        assert self.labels.separator is not None
        found = [
            _between(parts, self.labels.separator)
            for parts in itertools.islice(itertools.product(*ways), MOST_SPELLINGS)
        ]
        return list(dict.fromkeys(found))

    def _lettered(self, text: str) -> list[tuple[int, ...]]:
        for written in _forms(text):
            for cased in zip(*(self.folded(each)[1:] for each in written), strict=True):
                forms = [form for each in cased for form in forms_of(each, self._characters)]
                found = [way for form in forms for way in self._segmentations(form)]
                if found:
                    return list(dict.fromkeys(found))[:MOST_SPELLINGS]
        place = self._first_without_label(self.cased(text))
        space = PIECE_START if self.labels.has_pieces else " "
        hint = "write numbers in words" if place.isdigit() else f"space is {space!r}"
        raise LanguageModelError(
            f"hotwords: expected text that the labels can spell, got {text!r} at {place!r} ({hint})"
        )

    def _marked(self, text: str) -> str:
        """A text with the labels' own space between words."""
        if self.labels.has_pieces:
            return PIECE_START + text.replace(" ", PIECE_START)
        if self.labels.separator is not None:
            return text.replace(" ", self.labels.names[self.labels.separator])
        return text

    def _segmentations(self, text: str) -> list[tuple[int, ...]]:
        """Label sequences that spell exactly this text, that of the longest labels first; none: no list."""
        marked = self._marked(text)
        if self._longest == 1:
            ids = tuple(self._ids.get(letter, -1) for letter in marked)
            return [] if -1 in ids else [ids]
        greedy = self._longest_labels(marked)
        ways: list[list[tuple[int, ...]]] = [[()]]
        for end in range(1, len(marked) + 1):
            here = [
                (*way, self._ids[marked[start:end]])
                for start in range(max(0, end - self._longest), end)
                if marked[start:end] in self._ids
                for way in ways[start]
            ]
            ways.append(sorted(here, key=len)[:MOST_SPELLINGS])
        return list(dict.fromkeys([*([] if greedy is None else [greedy]), *ways[-1]]))

    def _longest_labels(self, text: str) -> tuple[int, ...] | None:
        """Spell by the longest label that fits, from left to right; None where that leads nowhere."""
        tokens: list[int] = []
        place = 0
        while place < len(text):
            sizes = range(min(self._longest, len(text) - place), 0, -1)
            size = next((n for n in sizes if text[place : place + n] in self._ids), 0)
            if not size:
                return None
            tokens.append(self._ids[text[place : place + size]])
            place += size
        return tuple(tokens)

    def _first_without_label(self, text: str) -> str:
        """The first character that no label has in any case, for messages."""
        marked = self._marked(text)
        return next((each for each in marked if not self._characters & set(self.folded(each))), marked[:1])

    def _symbols(self, text: str) -> tuple[int, ...]:
        unknown = [symbol for symbol in text.split() if symbol not in self._ids]
        if unknown:
            raise LanguageModelError(f"hotwords: expected labels separated by spaces, got {unknown[0]!r}")
        return tuple(self._ids[symbol] for symbol in text.split())


def _between(parts: Sequence[tuple[int, ...]], separator: int) -> tuple[int, ...]:
    joined: list[int] = []
    for part in parts:
        joined += [*([separator] if joined else []), *part]
    return tuple(joined)


def _forms(text: str) -> Iterator[tuple[str, ...]]:
    """Ways to write a text, from its own to the plainest; those of one step are said alike."""
    yield (text,)
    straight = text.translate(_SIGNS)
    yield (straight,)
    apart = tuple(" ".join(straight.replace("-", sign).split()) for sign in (" ", ""))
    yield apart
    yield _each(apart, lambda letter: letter.isalnum() or letter.isspace())
    bare = tuple(unicodedata.normalize("NFKD", form) for form in apart)
    yield _each(bare, lambda letter: letter.isalnum() or letter.isspace())


def _each(texts: Sequence[str], may_stay: Callable[[str], bool]) -> tuple[str, ...]:
    """The texts without other characters, where anything is left."""
    stripped = ("".join(filter(may_stay, text)).strip() for text in texts)
    return tuple(text for text in stripped if text)
