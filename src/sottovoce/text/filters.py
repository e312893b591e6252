"""Changes of recognised text after decoding; times and probabilities stay.

Filters run in the order of `options.text.TextOptions`, in files and in live sessions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import regex

from sottovoce.errors import MissingExtraError
from sottovoce.text.languages import UNSPACED_LETTERS
from sottovoce.types import Segment, Word

if TYPE_CHECKING:
    from opencc import OpenCC

Script: TypeAlias = Literal["simplified", "traditional"]
CHINESE = frozenset({"zh", "yue"})
NUMERAL_LANGUAGES = frozenset({"de", "en", "es", "fr", "it", "nl", "pt"})
PHRASE_LETTERS = 4
"""Letters to the right on which the script of a Chinese letter may depend: those of an idiom."""
HAN_AT_END = regex.compile(f"[{UNSPACED_LETTERS}]*$")
TOKEN = regex.compile(r"\w+|[^\w\s]")


class Rewrite(NamedTuple):
    """A part of a text, and what is written instead."""

    start: int
    end: int
    written: str


class TextFilter(ABC):
    __slots__ = ()

    @abstractmethod
    def matches(self, text: str, language: str) -> Iterator[Rewrite]:
        """Find what is rewritten, in order and without overlap."""

    @abstractmethod
    def n_settled(self, words: Sequence[Word], language: str) -> int:
        """Return the number of leading words that no word to come can change."""

    def text(self, text: str, language: str = "") -> str:
        parts, at = [], 0
        for start, end, written in self.matches(text, language):
            parts += [text[at:start], written]
            at = end
        return "".join([*parts, text[at:]])

    def words(self, words: Sequence[Word], language: str = "") -> tuple[Word, ...]:
        """Rewrite words. If a match has as many words as before, they keep their times; if not, it becomes
        one word with the times of all, and their lowest probability.
        """
        text = joined(words)
        matches = deque(self.matches(text, language))
        rewritten: list[Word] = []
        remaining = deque(words)
        end = 0
        while remaining:
            group, at, parts = [remaining.popleft()], end, [""]
            end += len(group[0].word)
            while matches and matches[0].start < end:
                match = matches.popleft()
                while match.end > end:
                    group.append(remaining.popleft())
                    end += len(group[-1].word)
                parts += [text[at : match.start], match.written]
                at = match.end
            rewritten += group if len(parts) == 1 else _spread("".join(parts) + text[at:end], group)
        return tuple(rewritten)

    def segment(self, segment: Segment, language: str | None = None) -> Segment | None:
        """Rewrite a segment; None if nothing remains. Its tokens stay. language: None: the segment's."""
        language = segment.language if language is None else language
        text = self.text(segment.text, language)
        if text == segment.text:
            return segment
        words = segment.words and self.words(segment.words, language)
        return replace(segment, text=text, words=words) if text.strip() else None


def filtered(text: str, filters: Sequence[TextFilter], language: str) -> str:
    for each in filters:
        text = each.text(text, language)
    return text


def translation_filtered(segment: Segment, filters: Sequence[TextFilter], language: str) -> Segment:
    if segment.translation is None:
        return segment
    return replace(segment, translation=filtered(segment.translation, filters, language))


def joined(words: Sequence[Word]) -> str:
    return "".join(word.word for word in words)


def n_before(words: Sequence[Word], position: int) -> int:
    """Return the number of leading words that end at or before a position of their text."""
    end = n_words = 0
    for word in words:
        end += len(word.word)
        if end > position:
            break
        n_words += 1
    return n_words


def _spread(text: str, group: Sequence[Word]) -> Sequence[Word]:
    parts = regex.findall(r"\s*\S+", text)
    if len(parts) == len(group):
        return [replace(word, word=part) for word, part in zip(group, parts, strict=True)]
    if not parts:
        return []
    tokens = tuple(token for word in group for token in word.tokens)
    probability = min(word.probability for word in group)
    return [replace(group[0], word=text, end=group[-1].end, probability=probability, tokens=tokens)]


@dataclass(frozen=True, slots=True)
class ChineseScript(TextFilter):
    """Writes Chinese in one script, by OpenCC's tables of letters and phrases. Raises: MissingExtraError."""

    script: Script

    def __post_init__(self) -> None:
        _converter(self.script)

    def matches(self, text: str, language: str) -> Iterator[Rewrite]:
        if language in CHINESE:
            converted = _converter(self.script).convert(text)
            for at, (letter, written) in enumerate(zip(text, converted, strict=True)):
                if letter != written:
                    yield Rewrite(at, at + 1, written)

    def n_settled(self, words: Sequence[Word], language: str) -> int:
        text = joined(words)
        han = HAN_AT_END.search(text)
        if language not in CHINESE or han is None or not han[0]:
            return len(words)
        n = n_before(words, max(han.start(), len(text) - PHRASE_LETTERS + 1))
        whole = self.text(text, language)
        while n and not whole.startswith(self.text(joined(words[:n]), language)):
            n -= 1  # a phrase lies across the border
        return n


@cache
def _converter(script: Script) -> OpenCC:
    try:
        from opencc import OpenCC
    except ImportError as error:
        raise MissingExtraError("opencc", "chinese", "a Chinese script") from error
    return OpenCC("t2s" if script == "simplified" else "s2t")


@dataclass(frozen=True, slots=True)
class Numerals(TextFilter):
    """Writes spoken numbers as digits in NUMERAL_LANGUAGES, by text2num; a lone one or two stays a word.

    Raises: MissingExtraError.
    """

    def __post_init__(self) -> None:
        _numbers([], "en")

    def matches(self, text: str, language: str) -> Iterator[Rewrite]:
        if language not in NUMERAL_LANGUAGES:
            return
        tokens = _tokens(text)
        numbers = _numbers(tokens, language)
        for before, number, after in zip([None, *numbers], numbers, [*numbers[1:], None], strict=False):
            is_alone = (before is None or before.end < number.start) and (
                after is None or number.end < after.start
            )
            if not (is_alone and number.written in ("1", "2")):
                yield Rewrite(tokens[number.start].start, tokens[number.end - 1].end, number.written)

    def n_settled(self, words: Sequence[Word], language: str) -> int:
        """Numbers at the end may go on, also after a word such as "and"."""
        if language not in NUMERAL_LANGUAGES:
            return len(words)
        tokens = _tokens(joined(words))
        first = len(tokens)
        for number in reversed(_numbers(tokens, language)):
            if number.end < first - 1:
                break
            first = number.start
        return n_before(words, tokens[first].start) if first < len(tokens) else len(words)


def _tokens(text: str) -> list[_Token]:
    return [_Token(found[0], *found.span()) for found in TOKEN.finditer(text)]


def _numbers(tokens: Sequence[_Token], language: str) -> list[Rewrite]:
    """Find numbers between tokens."""
    try:
        from text_to_num import find_numbers
    except ImportError as error:
        raise MissingExtraError("text2num", "numerals", "numbers as digits") from error
    return [Rewrite(each.start, each.end, each.text) for each in find_numbers(tokens, language, 0.0)]


@dataclass(frozen=True, slots=True)
class _Token:
    """A word or sign, as text2num reads it."""

    written: str
    start: int
    end: int

    def text(self) -> str:
        return self.written

    def nt_separated(self, previous: _Token) -> bool:
        return False

    def not_a_number_part(self) -> bool:
        return False


class LiveTextFilters:
    """Filters words as they are committed; those that words to come may change wait."""

    def __init__(self, filters: Sequence[TextFilter] = ()) -> None:
        self._filters = filters
        self._waiting: list[list[Word]] = [[] for _ in filters]

    def push(self, words: Sequence[Word], language: str) -> Sequence[Word]:
        for each, waiting in zip(self._filters, self._waiting, strict=True):
            waiting += words
            n_settled = each.n_settled(waiting, language)
            words = each.words(waiting[:n_settled], language)
            del waiting[:n_settled]
        return words

    def preview(self, words: Sequence[Word], language: str) -> Sequence[Word]:
        """Filter words that are not committed, after those that wait."""
        for each, waiting in zip(self._filters, self._waiting, strict=True):
            words = each.words([*waiting, *words], language)
        return words

    def flush(self, language: str) -> Sequence[Word]:
        """Return the words that wait."""
        words = self.preview((), language)
        for waiting in self._waiting:
            waiting.clear()
        return words
