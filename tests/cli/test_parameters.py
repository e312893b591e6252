"""Numbers and times as people write them."""

from __future__ import annotations

import click
import pytest

from sottovoce.cli.options import TIME, Parsed, number_in_range, read_list
from sottovoce.errors import OptionError
from sottovoce.options.schema import Option


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("90.25", 90.25), ("1:30", 90), ("0:01:30.5", 90.5), ("75:00", 4500), (" 5 ", 5)],
)
def test_times(text: str, seconds: float) -> None:
    assert TIME.convert(text, None, None) == seconds
    assert read_list("times", "--x", f"{text},{text}") == (seconds, seconds)


@pytest.mark.parametrize(
    "text", ["", "x", "nan", "inf", "-1", "-1:30", "1:60", "1:60:00", "1:-2", "1:2:3:4", "1.5:30"]
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected seconds or h:mm:ss"):
        TIME.convert(text, None, None)
    if text:
        with pytest.raises(OptionError, match="--x: expected"):
            read_list("times", "--x", f"1,{text}")


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "x"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected a number"):
        number().convert(text, None, None)
    with pytest.raises(OptionError, match="--x: expected"):
        read_list("numbers", "--x", f"1,{text}")


def number(**bounds: float) -> Parsed:
    return number_in_range(Option("", kind="number", **bounds))  # type: ignore[arg-type]


def test_ranges() -> None:
    assert number(least=0, most=1).convert("1", None, None) == 1.0
    for kind, text in [(number(least=0), "-0.1"), (number(most=1), "1.1"), (number(above=0), "0")]:
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)


def test_whole_numbers() -> None:
    assert read_list("integers", "--x", "-1, 50") == (-1, 50)
    assert read_list("integers", "--x", "") == ()
    with pytest.raises(OptionError, match="--x"):
        read_list("integers", "--x", "1.5")
