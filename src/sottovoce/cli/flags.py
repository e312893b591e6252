"""Flags of the command line, made from options of the library, and their values read back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import click

from sottovoce.cli.parameters import Clock, Finite, numbers, times, whole_numbers
from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.schema import SAME, Option, Values, options_of
from sottovoce.options.speakers import SpeakerOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import VadOptions
from sottovoce.options.writer import WriterOptions

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
