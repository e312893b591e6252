"""Options of the written text, of recordings and of live speech."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from sottovoce.options.schema import ApiField, Option, check_options
from sottovoce.text.files import read_text
from sottovoce.text.filters import (
    ChineseScript,
    Numerals,
    Replacements,
    Rules,
    Script,
    TextFilter,
    masked,
    phrases_alone,
    redacted,
)

if TYPE_CHECKING:
    from typing_extensions import Self

Redaction: TypeAlias = Literal["numbers", "emails"]


def _text(help: str, field: ApiField, **declared: Any) -> Option:
    """Declare an option with one field in the requests for recordings and for live speech."""
    return Option(help, group="Style", openai=field, sottovoce=field, **declared)


def _lines_of(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for line in text.splitlines() for word in line.split(",") if word.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """Raises: OptionError, and MissingExtraError for a package that is not installed."""

    numerals: bool = _text(
        "Write numbers as digits (de, en, es, fr, it, nl, pt; extra `numerals`).",
        ApiField("numerals", "`true`: numbers as digits (de, en, es, fr, it, nl, pt)"),
    ).as_field(False)
    redact: tuple[Redaction, ...] = _text(
        "Write [number] or [email] instead of digits or addresses; with --numerals also of spoken numbers.",
        ApiField(
            "redact[]",
            "`numbers`, `emails`, or both: written as [number] and [email]",
            choices=get_args(Redaction),
        ),
        kind="texts",
        choices=get_args(Redaction),
        metavar="numbers,emails",
    ).as_field(())
    mask_profanity: Sequence[str] | Path | None = _text(
        "File of words, one a line, of which only the first letter is written.",
        ApiField(
            "mask_profanity", "words of which only the first letter is written", kind="text", reads=_lines_of
        ),
        kind="file",
    ).as_field(None)
    """Words, or the path of a file of them."""
    chinese: Script | None = _text(
        "Write Chinese in one script (extra `chinese`).",
        ApiField("chinese", "Chinese in one script: `simplified` or `traditional`"),
        unset="as the model does",
        choices=get_args(Script),
    ).as_field(None)
    replacements: Replacements | Rules | None = _text(
        "File of lines 'what is said => what is written'; phrases, or /expressions/.",
        ApiField(
            "replacements",
            "lines `what is said => what is written`: phrases in any case, as whole words",
            kind="text",
            reads=phrases_alone,
        ),
        flag="--replace",
        kind="file",
    ).as_field(None)
    """See `Replacements.of`. Live, a word that begins a phrase waits for the next one."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.replacements is not None:
            object.__setattr__(self, "replacements", Replacements.of(self.replacements))
        words = self.mask_profanity
        if isinstance(words, Path | str):
            object.__setattr__(self, "mask_profanity", _lines_of(read_text(words, "words, one a line")))
        tuple(self._filters())

    @property
    def given(self) -> dict[str, Any]:
        """The options by name, for a class with more of them."""
        return {each.name: getattr(self, each.name) for each in fields(TextOptions)}

    def with_rules(self, more: Replacements | None) -> Self:
        """Add replacements for phrases without one."""
        if more is None:
            return self
        rules = self.replacements
        return replace(self, replacements=rules.extended(more) if isinstance(rules, Replacements) else more)

    @property
    def text_filters(self) -> tuple[TextFilter, ...]:
        return tuple(self._filters())

    def _filters(self) -> Iterator[TextFilter]:
        if self.numerals:
            yield Numerals()
        if self.redact:
            yield redacted(self.redact)
        if self.mask_profanity:
            assert not isinstance(self.mask_profanity, Path), "read by __post_init__"
            yield masked(self.mask_profanity)
        if self.chinese is not None:
            yield ChineseScript(self.chinese)
        if isinstance(self.replacements, Replacements):
            yield self.replacements
