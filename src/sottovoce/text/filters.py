"""Changes of recognised text after decoding, such as replacements by preferred spellings; times and
probabilities stay.

Filters run in the order of `options.text.TextOptions`, in files and in live sessions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import regex

from sottovoce.errors import OptionError, needs
from sottovoce.text.files import read_text
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
    return [as_one_word(group, text)] if parts else []


def as_one_word(group: Sequence[Word], text: str) -> Word:
    """Return a word with the times and tokens of several, and their lowest probability."""
    tokens = tuple(token for word in group for token in word.tokens)
    probability = min(word.probability for word in group)
    return replace(group[0], word=text, end=group[-1].end, probability=probability, tokens=tokens)


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
    with needs("opencc", "chinese", "a Chinese script"):
        from opencc import OpenCC
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
    return [_Token(match[0], *match.span()) for match in TOKEN.finditer(text)]


def _numbers(tokens: Sequence[_Token], language: str) -> list[Rewrite]:
    """Find numbers between tokens."""
    with needs("text2num", "numerals", "numbers as digits"):
        from text_to_num import find_numbers
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


ARROW = regex.compile("=>|->|→|\t")
UNSPACED_LETTER = regex.compile(f"[{UNSPACED_LETTERS}]")
Rules: TypeAlias = Mapping[str, str] | str | Path


@dataclass(frozen=True, slots=True)
class Replacements(TextFilter):
    """Replaces phrases of recognised text.

    rules: pairs of a phrase and its replacement. A phrase matches whole words in any case. A phrase between
    slashes is a regular expression, to whose groups the replacement may refer (`\\1`). A replacement in lower
    case takes over a capital at the beginning of the match; an empty replacement deletes the match. The
    earliest match is replaced first, the longest of several; replaced text is not searched again.

    Raises:
        OptionError: an empty phrase, one phrase with two replacements, an invalid expression or one that
            matches an empty text.
    """

    rules: tuple[tuple[str, str], ...]
    _written: dict[str, str] = field(init=False, repr=False, compare=False)
    _prefixes: frozenset[str] = field(init=False, repr=False, compare=False)
    """Folded beginnings of phrases, up to the end of a word."""
    _patterns: tuple[tuple[regex.Pattern[str], str | None], ...] = field(
        init=False, repr=False, compare=False
    )
    """That of all phrases, with None, and the expressions."""

    def __post_init__(self) -> None:
        written: dict[str, str] = {}
        patterns: list[tuple[regex.Pattern[str], str | None]] = []
        for said, text in self.rules:
            if len(said) > 2 and said[0] == said[-1] == "/":
                patterns.append((_compiled(said[1:-1], text), text))
                continue
            phrase = _folded(said)
            if not phrase:
                raise OptionError(f"replacements: expected what is said before '{text}', got nothing")
            if written.setdefault(phrase, text) != text:
                raise OptionError(
                    f"replacements: expected one text for '{said}', got '{written[phrase]}' and '{text}'"
                )
        if written:
            longest_first = sorted(written.items(), key=lambda rule: -len(rule[0]))
            either = "|".join(_phrase_pattern(*rule) for rule in longest_first)
            patterns.append((regex.compile(either, regex.IGNORECASE | regex.FULLCASE), None))
        prefixes = {beginning for phrase in written for beginning in _beginnings(phrase)}
        object.__setattr__(self, "_written", written)
        object.__setattr__(self, "_patterns", tuple(patterns))
        object.__setattr__(self, "_prefixes", frozenset(prefixes))

    @classmethod
    def of(cls, rules: Replacements | Rules | None) -> Replacements | None:
        """Return replacements, or None without rules.

        rules: what is written by what is said; lines `said => written` (or ->, →, a tab), where # begins a
        comment; or a file of such lines. Raises: OptionError.
        """
        if rules is None or isinstance(rules, Replacements):
            return rules
        if isinstance(rules, Mapping):
            pairs = tuple(rules.items())
        elif isinstance(rules, Path):
            pairs = _read(read_text(rules, "lines 'what is said => what is written'"), f"{rules}: ")
        elif isinstance(rules, str):
            pairs = _read(rules, "replacements: ")
        else:
            raise OptionError(f"replacements: expected texts by phrases, or a file, got {rules!r:.60}")
        return cls(pairs) if pairs else None

    def extended(self, more: Replacements | None) -> Replacements:
        """Return these rules, and those of `more` for other phrases."""
        if more is None:
            return self
        known = {_folded(said) for said, _ in self.rules}
        return Replacements((*self.rules, *(rule for rule in more.rules if _folded(rule[0]) not in known)))

    @property
    def has_expressions(self) -> bool:
        return any(text is not None for _, text in self._patterns)

    def n_settled(self, words: Sequence[Word], language: str = "") -> int:
        text = joined(words)
        settled = min([len(text), *self._unfinished(text)])
        for match in self.matches(text):
            if match.start < settled < match.end:
                settled = match.start
        return n_before(words, settled)

    def _unfinished(self, text: str) -> Iterator[int]:
        """Yield where matches begin that words to come may complete or lengthen."""
        longest = max(map(len, self._prefixes), default=0)
        for start in range(max(0, len(text) - longest - 1), len(text)):
            if _is_border(text, start) and _folded(text[start:]) in self._prefixes:
                yield start
        for pattern, written in self._patterns:
            if written is not None:
                for match in pattern.finditer(text, partial=True):
                    if match.partial or match.end() == len(text):
                        yield match.start()

    def matches(self, text: str, language: str = "") -> Iterator[Rewrite]:
        at = 0
        while True:
            candidates = [
                (match.start(), -match.end(), match, written)
                for pattern, written in self._patterns
                if (match := pattern.search(text, at))
            ]
            if not candidates:
                return
            start, end, match, written = min(candidates, key=lambda candidate: candidate[:2])
            at = -end
            yield Rewrite(
                start, at, self._written_for(match.group()) if written is None else match.expand(written)
            )

    def _written_for(self, said: str) -> str:
        phrase = _folded(said)
        written = self._written.get(phrase)
        if written is None:
            return self._written[phrase.rstrip(",")]  # a comma behind deleted words goes with them
        is_capital = said.lstrip()[:1].isupper() and written.islower()
        return written[:1].upper() + written[1:] if is_capital else written


REDACTED = {
    "numbers": (r"/\d(?:[\d\s.,:\/()-]*\d)?/", "[number]"),
    "emails": (r"/[\w.+-]+@[\w-]+(?:\.[\w-]+)+/", "[email]"),
}
"""Rules of private data, by what they redact."""


def redacted(kinds: Sequence[str]) -> Replacements:
    # Addresses first, as they may hold digits.
    return Replacements(tuple(rule for kind, rule in reversed(REDACTED.items()) if kind in kinds))


def masked(words: Sequence[str]) -> Replacements:
    """Return replacements of words by their first letter and asterisks."""
    return Replacements(tuple((word, word[0] + "*" * (len(word) - 1)) for word in dict.fromkeys(words)))


def phrases_alone(rules: str) -> Replacements | None:
    """Read rules of a request, which may hold no expressions: some take very long. Raises: OptionError."""
    replacements = Replacements.of(rules)
    if replacements is not None and replacements.has_expressions:
        raise OptionError("replacements: expected phrases in a request, got a regular expression")
    return replacements


def _read(lines: str, place: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for number, line in enumerate(lines.splitlines(), start=1):
        rule = line.strip(" ")
        if not rule or rule.startswith("#"):
            continue
        said, *written = ARROW.split(rule, maxsplit=1)
        if not written or not said.strip():
            raise OptionError(
                f"{place}line {number}: expected 'what is said => what is written', got '{rule:.60}'"
            )
        pairs.append((said.strip(), written[0].strip()))
    return tuple(pairs)


def _compiled(expression: str, written: str) -> regex.Pattern[str]:
    try:
        pattern = regex.compile(expression)
        regex.sub(f"(?:{expression})|", written, "")  # fails where a group is missing
    except (regex.error, IndexError) as fault:
        raise OptionError(
            f"replacements: expected a regular expression, got '/{expression}/': {fault}"
        ) from None
    if pattern.search(""):
        raise OptionError(
            f"replacements: expected an expression with text, got '/{expression}/', which matches none"
        )
    return pattern


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _phrase_pattern(phrase: str, written: str) -> str:
    """Of whole words; where letters are written without spaces, of any place."""
    body = r"\s+".join(map(regex.escape, phrase.split(" ")))
    before = r"(?<!\w)" if _is_spaced(phrase[0]) else ""
    after = r"(?!\w)" if _is_spaced(phrase[-1]) else ""
    return f"{before}{body}{after}" if written else rf"\s*{before}{body}{after},?"


def _is_spaced(letter: str) -> bool:
    return letter.isalnum() and not UNSPACED_LETTER.match(letter)


def _is_border(text: str, at: int) -> bool:
    """Whether a phrase may begin at a position, or end before it."""
    return at == 0 or not (_is_spaced(text[at - 1]) and _is_spaced(text[at]))


def _beginnings(phrase: str) -> Iterator[str]:
    for end in range(1, len(phrase)):
        if _is_border(phrase, end) and not phrase[end - 1].isspace():
            yield phrase[:end]
