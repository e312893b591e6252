"""Kinds of values that options take: numbers that are numbers, and times as people write them."""

from __future__ import annotations

import math
from typing import Any

import click

from sottovoce.errors import OptionError


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
