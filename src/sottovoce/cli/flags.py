"""Flags of the command line, made from options of the library, and their values read back."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import click

from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.schema import SAME, Option, Values, options_of
from sottovoce.options.speakers import SpeakerOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import VadOptions
from sottovoce.options.writer import WriterOptions


class Finite(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """A number: not nan, which passes every comparison of a range, and not infinite.

    least, most: the range, both included. above: exclusive instead of least.
    """

    name = "number"

    def __init__(
        self, least: float | None = None, most: float | None = None, *, above: float | None = None
    ) -> None:
        self._least, self._most, self._above = least, most, above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
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
    """A time in a recording: seconds, m:ss or h:mm:ss, the last with decimals where wanted."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return seconds_of(str(value))
        except ValueError:
            self.fail(f"expected seconds or h:mm:ss, got '{value}'", param, ctx)


def seconds_of(text: str) -> float:
    """Seconds of "90", "1:30" or "0:01:30.5".

    Raises: ValueError for anything else; what is negative or not finite is no time.
    """
    *higher, last = text.strip().split(":")
    parts = [*map(float, map(int, higher)), float(last)]
    if len(parts) > 3 or not all(0 <= part < math.inf for part in parts) or max(parts[1:], default=0) >= 60:
        raise ValueError(text)
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + part
    return seconds


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Numbers separated by commas.

    Raises: OptionError naming the option, for what is not finite too.
    """
    try:
        found = tuple(float(word) for word in text.split(",") if word.strip())
    except ValueError:
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise OptionError(f"{option}: expected numbers separated by commas, got '{text}'")
    return found


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas.

    Raises: OptionError naming the option.
    """
    try:
        return tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise OptionError(f"{option}: expected whole numbers separated by commas, got '{text}'") from None


def times(option: str, text: str) -> tuple[float, ...]:
    """Times separated by commas, in seconds; each as `Clock` reads it.

    Raises: OptionError naming the option.
    """
    try:
        return tuple(seconds_of(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise OptionError(
            f"{option}: expected seconds or h:mm:ss separated by commas, got '{text}'"
        ) from None


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
"""Every option of the library that has a flag."""
LISTS: Mapping[str, Callable[[str, str], tuple[Any, ...]]] = {
    "numbers": numbers,
    "integers": whole_numbers,
    "times": times,
    "texts": lambda _, text: tuple(word.strip() for word in text.split(",")),
}
"""How text separated by commas is read."""


def grouped(*groups: str, of: Sequence[Option] = LIBRARY) -> tuple[Option, ...]:
    """List the options of some groups, one group after the other."""
    return tuple(option for group in groups for option in of if option.group == group)


def flag(option: Option) -> Callable[[Any], Any]:
    """Make the decorator that adds an option to a command."""
    long = option.flags
    assert long is not None, f"{option.key}: has no flag"
    default = default_of(option)
    unset = f" [{option.unset}]" if option.unset and default is None else ""
    about: dict[str, Any] = {"help": f"{option.help}{unset}" or None, "metavar": option.metavar or None}
    if option.kind == "flag" and not option.switch:
        return click.option(*_names(option, long), is_flag=True, **about)
    if option.kind == "flag":
        both = f"{long}/--no-{long.removeprefix('--')}"
        return click.option(both, option.param, default=default, show_default=default is not None, **about)
    if option.many:
        return click.option(*_names(option, long), multiple=True, **about)
    shown = default not in (None, "")
    return click.option(
        *_names(option, long), type=_type(option), default=default, show_default=shown, **about
    )


def _names(option: Option, long: str) -> list[str]:
    short, *others = option.short.split() or ("",)
    return [name for name in (short, long, *others, option.param) if name]


def _type(option: Option) -> Any:
    """How click reads one value."""
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
        case _:
            return click.STRING


def default_of(option: Option) -> Any:
    """Return the default on the command line."""
    default = option.default if option.cli_default is SAME else option.cli_default
    if isinstance(default, tuple):
        return ",".join(f"{one:g}" for one in default) or None
    return default


def read_values(given: Mapping[str, Any], options: Iterable[Option] = LIBRARY) -> dict[str, Any]:
    """Read the values of fields, by the keys of their options; what else was given stays as it is.

    given: by the names of parameters; an option that the command does not have has its default.
    Raises: OptionError for text that cannot be read.
    """
    values = dict(given)
    for option in options:
        default = option.default if option.cli_default is SAME else option.cli_default
        values[option.key] = _read(option, given[option.param]) if option.param in given else default
    return values


def _read(option: Option, raw: Any) -> Any:
    """One value as its field takes it; None where nothing was given."""
    if raw is None:
        return None
    if option.kind in LISTS:
        return LISTS[option.kind](str(option.flags), raw)
    value = not raw if option.negated else raw
    if option.kind == "time":
        option.check(value, str(option.flags))
    return option.reads(value) if option.reads is not None else value


def check_needs(values: Values, typed: Collection[str], options: Iterable[Option]) -> None:
    """Look at what the command line alone is held to; the rest is when options are made.

    values: by key. typed: the parameters that stand on the command line.
    Raises: OptionError for the first option that nothing would use, or that excludes another one.
    """
    options = [option for option in options if option.param in typed]
    for option in options:
        is_given = values[option.key] not in (None, option.default, default_of(option))
        for need in option.needs:
            is_due = need.when == "typed" or (need.when == "given" and is_given)
            if is_due and not need.holds(values):
                raise OptionError(need.line(str(option.flags), values[option.key], values))
        for other in option.not_with:
            if is_given and _is_set(values.get(other)):
                flag_of_other = f"--{other.replace('_', '-')}"
                raise OptionError(f"{flag_of_other}: cannot be combined with {option.flags}")


def _is_set(value: object) -> bool:
    """Whether a value is none of those that switch an option off; one process is no several."""
    return value is True or value not in (None, False, 1, "")


Flag: TypeAlias = Option | Callable[[Any], Any]
"""An option, or what `click.option` makes: a decorator."""


def decorator_of(option: Flag) -> Callable[[Any], Any]:
    """Make the decorator that adds an option to a command."""
    return flag(option) if isinstance(option, Option) else option


class SectionedCommand(click.Command):
    """Takes its options by heading, in the order in which the help shows them."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[Flag]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections: dict[str, list[click.Parameter]] = {}
        self.declared = [one for options in sections.values() for one in options if isinstance(one, Option)]
        for heading, options in sections.items():
            first = len(self.params)
            for option in options:
                decorator_of(option)(self)
            self.sections[heading] = self.params[first:]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every section, and last what stands in none: what every command has."""
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
