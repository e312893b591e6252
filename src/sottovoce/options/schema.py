"""What is known of an option, and the options of a dataclass. Knows no command line and no server."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from sottovoce.errors import OptionError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Owner = TypeVar("Owner", bound="DataclassInstance")
Kind: TypeAlias = Literal[
    "flag",
    "integer",
    "number",
    "text",
    "choice",
    "time",
    "numbers",
    "integers",
    "times",
    "texts",
    "language",
    "languages",
    "speakers",
    "file",
    "nested",
    "any",
]
"""What a value is, and so how text becomes one. times: seconds, or h:mm:ss; the plurals: separated by
commas."""
Api: TypeAlias = Literal["openai", "whisper_cpp", "sottovoce"]
"""Of recordings: openai, whisper_cpp; of live speech: sottovoce (the server's own)."""
Values: TypeAlias = Mapping[str, Any]
"""Values of options by their keys."""

KINDS: Mapping[str, Kind] = {"bool": "flag", "int": "integer", "float": "number", "str": "text"}
"""By what a field's annotation begins with."""
_OPTION = "option"
SAME = object()
"""Of a default on the command line: that of the field."""


@dataclass(frozen=True, slots=True)
class ApiField:
    """What an option is called in the requests of an API, and what it may be there.

    names: the first is the documented one; an empty suffix `[]` marks a list. help: of the docs; "": that
    of the field before it. least, most: of requests, where they are narrower than the option's. per_unit:
    how many of theirs are one of ours (1000: milliseconds). none_upto: numbers up to this mean that nothing
    was asked. kind: where it is another one there. reads: their value to ours, None where nothing is to be
    set.
    """

    names: str
    help: str = ""
    least: float | None = None
    most: float | None = None
    per_unit: float = 1.0
    none_upto: float | None = None
    kind: Kind | None = None
    choices: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    reads: Callable[[Any], Any] | None = None

    @property
    def name(self) -> str:
        """The documented name."""
        return self.names.split()[0]


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One option.

    help: one line for everybody. unset: what None means, or what is taken where nothing is given. group:
    the heading under which commands show it. key: its name among all options; "": that of the field. flag:
    on the command line; "": made from the key, None: it has none. short: with one letter. negated: the flag
    says the opposite of the field. switch: the flag has a second form with `--no-`. cli_default: where the
    command line's default is not the field's. many: the flag may be repeated. reads: the command line's
    value to that of the field. least, most, above: range of finite numbers, `above` without its end;
    may_be_infinite: in Python. expected, called: words of the error line, where they are not made from the
    range and the field. choices: the values that text may have. apis: names in requests of the
    server. field, owner, default: filled in for the field of a dataclass.
    """

    help: str
    unset: str = ""
    group: str = ""
    key: str = ""
    flag: str | None = ""
    short: str = ""
    kind: Kind | Literal[""] = ""
    metavar: str = ""
    negated: bool = False
    switch: bool = False
    many: bool = False
    cli_default: Any = SAME
    reads: Callable[[Any], Any] | None = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    may_be_infinite: bool = False
    choices: tuple[str, ...] = ()
    expected: str = ""
    called: str = ""
    apis: Mapping[Api, ApiField] = dataclasses.field(default_factory=dict)
    field: str = ""
    owner: str = ""
    default: Any = None

    def as_field(self, default: T) -> T:
        """Declare a field of a dataclass with this default."""
        declared: T = dataclasses.field(default=default, metadata={_OPTION: self})
        return declared

    @property
    def flags(self) -> str | None:
        """The long flag; None where there is none."""
        return self.flag if self.flag != "" else f"--{self.key.replace('_', '-')}"

    @property
    def param(self) -> str:
        """What the command line calls its value."""
        if self.many:
            return self.key
        return (self.flags or self.key).removeprefix("--").replace("-", "_")

    @property
    def is_ranged(self) -> bool:
        """Whether not every value of its type is one that it may have."""
        return bool(self.choices) or (self.least, self.most, self.above) != (None, None, None)

    def check(self, value: Any, name: str = "") -> None:
        """Check a value; None is always in range. Raises: OptionError that names the option so."""
        for one in value if isinstance(value, tuple) else (value,):
            if one is not None and not self._holds(one):
                shown = f"'{one}'" if self.choices else f"{one:g}" if name else one
                called = name or self.called or self.field
                raise OptionError(f"{called}: expected {self._range}, got {shown}")

    def _holds(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        return bool(
            (math.isfinite(value) or (self.may_be_infinite and value > 0))
            and (self.kind != "integer" or value == int(value))
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
        )

    @property
    def _range(self) -> str:
        if self.expected:
            return self.expected
        if self.choices:
            *others, last = (f"'{choice}'" for choice in self.choices)
            return f"{', '.join(others)} or {last}"
        if self.above is not None:
            return f"more than {self.above:g}"
        if self.most is not None:
            return f"{self.least:g} to {self.most:g}"
        return "0 or more" if (self.kind, self.least) == ("number", 0) else f"at least {self.least:g}"


def options_of(owner: type) -> tuple[Option, ...]:
    """Return the options that are fields of a dataclass, in their order."""
    return _options(owner)


@cache
def _options(owner: type) -> tuple[Option, ...]:
    return tuple(
        _completed(declared.metadata[_OPTION], declared, owner)
        for declared in dataclasses.fields(owner)
        if _OPTION in declared.metadata
    )


def _completed(option: Option, declared: dataclasses.Field[Any], owner: type) -> Option:
    annotated = KINDS.get(str(declared.type).partition(" ")[0], "text")
    kind = option.kind or ("choice" if option.choices else annotated)
    made = declared.default_factory
    default = declared.default if made is MISSING else made()
    key = option.key or declared.name
    return replace(option, kind=kind, key=key, field=declared.name, owner=owner.__name__, default=default)


def check_options(chosen: Any) -> None:
    """Check the ranges of all fields. Raises: OptionError."""
    for one in options_of(type(chosen)):
        if one.is_ranged:
            one.check(getattr(chosen, one.field))


def made(owner: type[T], values: Values, **others: Any) -> T:
    """Make a dataclass of options from values by key; None, and what is not among them, leaves the default.

    others: fields by name, which win.
    Raises: OptionError.
    """
    found = {one.field: values[one.key] for one in options_of(owner) if values.get(one.key, None) is not None}
    return owner(**{**found, **others})


def changed(chosen: Owner, values: Values) -> Owner:
    """Return a dataclass of options, and those among its fields, with other values by key.

    Raises: OptionError.
    """
    found = {one.field: values[one.key] for one in options_of(type(chosen)) if one.key in values}
    for each in dataclasses.fields(chosen):
        inner = getattr(chosen, each.name)
        if each.name not in found and dataclasses.is_dataclass(inner):
            found[each.name] = changed(inner, values)  # type: ignore[type-var]  # an instance, no class
    return replace(chosen, **found)
