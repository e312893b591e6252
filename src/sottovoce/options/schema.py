"""The declaration of an option, and the options of a dataclass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, replace
from functools import cache, partial
from numbers import Real
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

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
"""Selects the parser of a value. times: seconds, or h:mm:ss; plurals: comma-separated."""
Api: TypeAlias = Literal["openai", "whisper_cpp", "whisper_asr", "sottovoce"]
"""For recordings: openai, whisper_cpp, whisper_asr (whisper-asr-webservice); for live speech: sottovoce."""
Values: TypeAlias = Mapping[str, Any]
"""Values of a request by key."""

KINDS: Mapping[str, Kind] = {"bool": "flag", "int": "integer", "float": "number", "str": "text"}
_OPTION = "option"
SAME = object()
"""The default of the field."""


@dataclass(frozen=True, slots=True)
class ApiField:
    """Name and range of an option in the requests of an API.

    names: the first is documented; a suffix `[]` marks a list. help: "": that of the preceding field.
    per_unit: 1000 for milliseconds. none_upto: numbers up to this mean unset. reads: converts a value.
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
    reads: Callable[..., object] | None = None

    @property
    def name(self) -> str:
        return self.names.split()[0]


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One option.

    unset: meaning of None. key: unique name; "": `prefix` and the field's. flag: "": from the key, None:
    none. negated: the flag negates the field. switch: also has a `--no-` flag. many: repeatable. reads:
    converts the command line's value. above: exclusive. may_be_infinite: in Python. expected, called: words
    of the error message. openai, whisper_cpp, whisper_asr, sottovoce: see `Api`. field, owner, default: set
    by the dataclass.
    """

    help: str
    unset: str = ""
    group: str = ""
    key: str = ""
    prefix: str = ""
    flag: str | None = ""
    short: str = ""
    kind: Kind | Literal[""] = ""
    metavar: str = ""
    negated: bool = False
    switch: bool = False
    many: bool = False
    cli_default: object = SAME
    reads: Callable[..., object] | None = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    may_be_infinite: bool = False
    choices: tuple[str, ...] = ()
    expected: str = ""
    called: str = ""
    openai: ApiField | None = None
    whisper_cpp: ApiField | None = None
    whisper_asr: ApiField | None = None
    sottovoce: ApiField | None = None
    field: str = ""
    owner: str = ""
    default: object = None

    def as_field(self, default: T) -> T:
        return dataclasses.field(default=default, metadata={_OPTION: self})

    @property
    def apis(self) -> Mapping[Api, ApiField]:
        """Names and ranges in the requests of the APIs that have this option."""
        return {api: field for api in get_args(Api) if (field := getattr(self, api)) is not None}

    @property
    def flags(self) -> str | None:
        return self.flag if self.flag != "" else f"--{self.key.replace('_', '-')}"

    @property
    def param(self) -> str:
        if self.many:
            return self.key
        return (self.flags or self.key).removeprefix("--").replace("-", "_")

    @property
    def is_ranged(self) -> bool:
        return bool(self.choices) or (self.least, self.most, self.above) != (None, None, None)

    @property
    def is_checked(self) -> bool:
        """Whether values have a range, or are numbers, which are never nan."""
        return self.is_ranged or self.kind in ("integer", "number", "numbers")

    def check(self, value: object, name: str = "") -> None:
        """Check a value; None is valid. name: for the message. Raises: OptionError."""
        for item in value if isinstance(value, tuple) else (value,):
            if item is not None and not self.holds(item):
                shown = f"'{item}'" if self.choices else f"{item:g}" if name else item
                called = name or self.called or self.field
                raise OptionError(f"{called}: expected {self._range}, got {shown}")

    def holds(self, value: object) -> bool:
        if self.choices:
            return value in self.choices
        assert isinstance(value, int | float), f"{self.key}: expected a number, got {value!r}"
        return bool(
            (math.isfinite(value) or (self.may_be_infinite and not math.isnan(value)))
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
        if self.least is not None and self.most is not None:
            return f"{self.least:g} to {self.most:g}"
        if self.kind == "number" and self.least == 0:
            return "0 or more"
        bounds = (("more than", self.above), ("at least", self.least), ("at most", self.most))
        limits = [f"{words} {bound:g}" for words, bound in bounds if bound is not None]
        return " and ".join(limits) or ("a number" if self.may_be_infinite else "a finite number")


in_python = partial(Option, flag=None)
"""Declares an option without a flag."""


def options_of(owner: type) -> tuple[Option, ...]:
    return _options(owner)


@cache
def _options(owner: type) -> tuple[Option, ...]:
    return tuple(
        _completed(declared.metadata[_OPTION], declared, owner)
        for declared in dataclasses.fields(owner)
        if _OPTION in declared.metadata
    )


def _completed(option: Option, declared: dataclasses.Field[object], owner: type) -> Option:
    annotated = KINDS.get(str(declared.type).partition(" ")[0], "text")
    kind = option.kind or ("choice" if option.choices else annotated)
    factory = declared.default_factory
    default = declared.default if factory is MISSING else factory()
    key = option.key or option.prefix + declared.name
    return replace(option, kind=kind, key=key, field=declared.name, owner=owner.__name__, default=default)


TYPES: Mapping[str, tuple[type, str, str]] = {
    "float": (Real, "a number", "numbers"),
    "int": (Real, "a whole number", "whole numbers"),  # 3.0 is one, and becomes 3
    "str": (str, "text", "texts"),
    "None": (NoneType, "None", "None"),
}


def check_type(field: dataclasses.Field[object], value: object) -> None:
    """Check a value against an annotation of numbers, text, None and tuples; others are not checked.

    Raises: OptionError.
    """
    expected = []
    for part in str(field.type).split(" | "):
        name = part.removeprefix("tuple[").removesuffix(", ...]")
        if name not in TYPES:
            return
        kind, single, many = TYPES[name]
        is_many = name != part
        values = value if isinstance(value, tuple | list) else (value,)
        is_kind = all(isinstance(each, kind) and not isinstance(each, bool) for each in values)
        if is_kind and is_many == isinstance(value, tuple | list):
            return
        expected.append(f"a tuple of {many}" if is_many else single)
    raise OptionError(f"{field.name}: expected {' or '.join(expected)}, got {value!r}")


def check_options(chosen: DataclassInstance) -> None:
    """Check types and ranges of all fields; 3.0 becomes 3 where whole numbers belong. Raises: OptionError."""
    for declared in dataclasses.fields(chosen):
        value = getattr(chosen, declared.name)
        check_type(declared, value)
        if isinstance(value, float) and str(declared.type).split(" | ")[0] == "int":
            if not value.is_integer():
                raise OptionError(f"{declared.name}: expected a whole number, got {value}")
            object.__setattr__(chosen, declared.name, int(value))
    for option in options_of(type(chosen)):
        if option.is_checked:
            option.check(getattr(chosen, option.field))


def check_kind(name: str, value: object, kind: type, of: str = "") -> None:
    """Check an argument that may be None. of: where the caller gets one. Raises: OptionError."""
    if not isinstance(value, kind | None):
        raise OptionError(f"{name}: expected {kind.__name__}{of and f' ({of})'}, got {value!r:.60}")


def unchecked(chosen: Owner, **values: object) -> Owner:
    """Return a copy with values of some fields, without checks."""
    copied = object.__new__(type(chosen))
    for declared in dataclasses.fields(chosen):
        name = declared.name
        object.__setattr__(copied, name, values[name] if name in values else getattr(chosen, name))
    return copied


def present(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def from_values(owner: type[T], values: Mapping[str, object], **others: object) -> T:
    """Build a dataclass of options from values by key; None leaves the default.

    others: fields that take precedence. Raises: OptionError.
    """
    fields = {
        option.field: values[option.key]
        for option in options_of(owner)
        if values.get(option.key, None) is not None
    }
    return owner(**{**fields, **others})


def changed(chosen: Owner, values: Mapping[str, object]) -> Owner:
    """Return options, nested ones included, with other values by key.

    Raises: OptionError.
    """
    fields = {option.field: values[option.key] for option in options_of(type(chosen)) if option.key in values}
    for each in dataclasses.fields(chosen):
        inner = getattr(chosen, each.name)
        if each.name not in fields and dataclasses.is_dataclass(inner):
            fields[each.name] = changed(inner, values)  # type: ignore[type-var]  # an instance, no class
    return replace(chosen, **fields)
