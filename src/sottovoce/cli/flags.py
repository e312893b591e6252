"""Command-line flags from library options, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.schema import SAME, Option, made, options_of
from sottovoce.options.speakers import SpeakerOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import VadOptions
from sottovoce.options.writer import WriterOptions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Owner = TypeVar("Owner", bound="DataclassInstance")
Command = TypeVar("Command", bound=Callable[..., object] | click.Command)
Given: TypeAlias = Mapping[str, object]
"""Values by parameter name."""


class Decorator(Protocol):
    def __call__(self, command: Command, /) -> Command: ...


class Finite(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """A finite number. least, most: inclusive range. above: exclusive lower end instead of least."""

    name = "number"

    def __init__(
        self, least: float | None = None, most: float | None = None, *, above: float | None = None
    ) -> None:
        self._least, self._most, self._above = least, most, above

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(str(value))
        except ValueError:
            number = math.nan
        if not self._holds(number):
            self.fail(f"expected {self._wanted()}, got '{value}'", param, ctx)
        return number

    def _holds(self, number: float) -> bool:
        return (
            math.isfinite(number)
            and (self._least is None or number >= self._least)
            and (self._most is None or number <= self._most)
            and (self._above is None or number > self._above)
        )

    def _wanted(self) -> str:
        bounds = (("from", self._least), ("above", self._above), ("to", self._most))
        words = [f"{word} {bound:g}" for word, bound in bounds if bound is not None]
        return " ".join(["a number", *words])


class Clock(click.ParamType):  # type: ignore[type-arg]
    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return seconds_of(str(value))
        except ValueError:
            self.fail(f"expected seconds or h:mm:ss, got '{value}'", param, ctx)


def seconds_of(text: str) -> float:
    *higher, last = text.strip().split(":")
    parts = [*map(float, map(int, higher)), float(last)]
    if len(parts) > 3 or not all(0 <= part < math.inf for part in parts) or max(parts[1:], default=0) >= 60:
        raise ValueError(text)
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + part
    return seconds


def read_list(kind: str, option: str, text: str) -> tuple[float, ...]:
    """Read values of a kind of `LISTS`, separated by commas. Raises: OptionError."""
    read, expected = LISTS[kind]
    try:
        return tuple(read(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise OptionError(f"{option}: expected {expected} separated by commas, got '{text}'") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


LISTS: Mapping[str, tuple[Callable[[str], float], str]] = {
    "numbers": (_finite, "numbers"),
    "integers": (int, "whole numbers"),
    "times": (seconds_of, "seconds or h:mm:ss"),
}
LIBRARY = tuple(
    option
    for owner in (
        TranscribeOptions,
        VadOptions,
        SpeakerOptions,
        DecodingOptions,
        FallbackOptions,
        WriterOptions,
    )
    for option in options_of(owner)
    if option.flags is not None
)


def grouped(*groups: str, of: Sequence[Option] = LIBRARY) -> tuple[Option, ...]:
    return tuple(option for group in groups for option in of if option.group == group)


def flag(option: Option) -> Decorator:
    long = option.flags
    assert long is not None, f"{option.key}: has no flag"
    default = default_of(option)
    unset = f" [{option.unset}]" if option.unset and default is None else ""
    declare = partial(click.option, help=f"{option.help}{unset}" or None, metavar=option.metavar or None)
    if option.kind == "flag" and not option.switch:
        return declare(*_names(option, long), is_flag=True)
    if option.kind == "flag":
        both = f"{long}/--no-{long.removeprefix('--')}"
        return declare(both, option.param, default=default, show_default=default is not None)
    if option.many:
        return declare(*_names(option, long), type=_type(option), multiple=True)
    shown = default not in (None, "")
    return declare(*_names(option, long), type=_type(option), default=default, show_default=shown)


def _names(option: Option, long: str) -> list[str]:
    short, *others = option.short.split() or ("",)
    return [name for name in (short, long, *others, option.param) if name]


def _type(option: Option) -> object:
    least = None if option.least is None else int(option.least)
    match option.kind:
        case "integer" if option.is_ranged:
            return click.IntRange(least, None if option.most is None else int(option.most))
        case "integer":
            return click.INT
        case "number":
            return Finite(option.least, option.most, above=option.above)
        case "choice":
            return click.Choice(list(option.choices))
        case "time":
            return Clock()
        case "file":
            return click.Path(path_type=Path)
        case _:
            return click.STRING


def default_of(option: Option) -> object:
    default = option.default if option.cli_default is SAME else option.cli_default
    if isinstance(default, tuple):
        return ",".join(f"{one:g}" for one in default) or None
    return default


def value_of(given: Given, name: str, kind: type[T]) -> T | None:
    value = given.get(name)
    assert value is None or isinstance(value, kind), f"{name}: {value!r}"
    return value


def given_as(owner: type[Owner], given: Given, **others: object) -> Owner:
    """Build a dataclass of options from the command line. others: fields that take precedence.

    Raises: OptionError.
    """
    declared = options_of(owner)
    plain = {field.name for field in fields(owner)} - {option.field for option in declared}
    named = {name: given[name] for name in plain if given.get(name) is not None}
    return made(owner, read_values(given, declared), **{**named, **others})


def read_values(given: Given, options: Iterable[Option] = LIBRARY) -> dict[str, object]:
    """Convert parameters to option values by key; others are unchanged. Raises: OptionError."""
    values = dict(given)
    for option in options:
        default = option.default if option.cli_default is SAME else option.cli_default
        values[option.key] = _read(option, given[option.param]) if option.param in given else default
    return values


def _read(option: Option, raw: object) -> object:
    if raw is None:
        return None
    if option.kind in LISTS:
        return read_list(option.kind, str(option.flags), str(raw))
    if option.kind == "texts":
        return tuple(word.strip() for word in str(raw).split(","))
    value = not raw if option.negated else raw
    if option.kind == "time":
        option.check(value, str(option.flags))
    return option.reads(value) if option.reads is not None else value


def typed_options(context: click.Context) -> frozenset[str]:
    return frozenset(
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )


def check_exclusive(context: click.Context, table: Mapping[str, Sequence[str]]) -> None:
    """Refuse mutually exclusive options; an option with its default value counts as unset.

    Raises: OptionError.
    """
    defaults = {param.name: param.default for param in context.command.params}
    are_set = {name for name in typed_options(context) if context.params[name] != defaults[name]}
    for name, others in table.items():
        for other in others:
            if name in are_set and other in are_set:
                raise OptionError(f"{flag_of(name)}: cannot be combined with {flag_of(other)}")


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


Flag: TypeAlias = Option | Decorator


class SectionedCommand(click.Command):
    """A command whose help has sections of options."""

    def __init__(
        self,
        name: str | None,
        *,
        sections: Mapping[str, Sequence[Flag]],
        callback: Callable[..., object] | None = None,
        help: str | None = None,
        params: list[click.Parameter] | None = None,
        context_settings: MutableMapping[str, object] | None = None,
    ) -> None:
        super().__init__(name, context_settings=context_settings, callback=callback, params=params, help=help)
        self.sections: dict[str, list[click.Parameter]] = {}
        for heading, options in sections.items():
            first = len(self.params)
            for option in options:
                (flag(option) if isinstance(option, Option) else option)(self)
            self.sections[heading] = self.params[first:]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sectioned = [param for params in self.sections.values() for param in params]
        options: list[click.Parameter] = [
            param for param in self.get_params(ctx) if isinstance(param, click.Option)
        ]
        rest = [option for option in options if option not in sectioned]
        for heading, params in [*self.sections.items(), ("Other", rest)]:
            records = [record for param in params if (record := param.get_help_record(ctx))]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
