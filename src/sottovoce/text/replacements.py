"""Replacement of recognised phrases by the spellings that a user prefers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import regex

from sottovoce.errors import OptionError
from sottovoce.text.filters import Rewrite, TextFilter, joined, n_before
from sottovoce.text.languages import UNSPACED_LETTERS
from sottovoce.types import Word

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
            try:
                pairs = _read(rules.read_text(encoding="utf-8-sig"), f"{rules}: ")
            except (OSError, UnicodeError) as fault:
                cause = getattr(fault, "strerror", None) or "it is no UTF-8"
                raise OptionError(f"{rules}: expected a readable text file, got an error: {cause}") from None
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


def redacted(kinds: Sequence[str]) -> Iterator[Replacements]:
    if kinds:  # addresses first, as they may hold digits
        yield Replacements(tuple(rule for kind, rule in reversed(REDACTED.items()) if kind in kinds))


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
