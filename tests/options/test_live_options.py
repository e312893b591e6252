"""An option of live speech is declared once: flag, field of a protocol and Python set the same value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click
import pytest

from sottovoce.cli.flags import flag, read_values
from sottovoce.cli.stream import stream
from sottovoce.errors import OptionError
from sottovoce.options.live import LiveDecodingOptions, LiveOptions
from sottovoce.options.schema import ApiField, Option, changed, made, options_of
from sottovoce.options.vad import VadStreamOptions
from sottovoce.serving.apis.sottovoce_live import SessionRequest, configured
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.forms import LIVE, read_field
from sottovoce.streaming.options import StreamOptions

FLAGS = [one for one in (*options_of(LiveDecodingOptions), *options_of(VadStreamOptions)) if one.flags]
OWNERS = {"LiveDecodingOptions": StreamOptions, "VadStreamOptions": VadStreamOptions}
FIELDS: dict[str, tuple[object, Any]] = {
    "languages": ("en,german", ("en", "de")),
    "switching": ("off", "off"),
    "unstable": ("true", True),
    "vad": (False, False),
    "speakers": ("3", "3"),
    "task": ("translate", "translate"),
    "prompt": ("Anna said", "Anna said"),
    "terms": (["Tisza", "Duna"], "Tisza, Duna"),
}
NAMED = [one for one in LIVE if one.owner and "sottovoce" in one.apis]


@pytest.mark.parametrize("option", FLAGS, ids=lambda option: option.key)
def test_a_flag_sets_its_field_as_python_does(option: Option) -> None:
    number = 120 if option.owner == "VadStreamOptions" else int(option.least or 0) + 7
    value = "Anna" if option.kind == "text" else number
    words = [str(option.flags), f"{value}"]
    given = stream.make_context("stream", ["-", *words], help_option_names=["-h", "--help"]).params
    owner = OWNERS[option.owner]
    chosen = made(owner, read_values(given, options_of(owner)))
    assert getattr(chosen, option.field) == value != option.default
    assert chosen == changed(owner(), {option.key: value})


@pytest.mark.parametrize("option", NAMED, ids=lambda option: option.key)
def test_a_field_of_the_protocol_sets_the_same(option: Option) -> None:
    name = option.apis["sottovoce"].name
    sent, value = FIELDS[name]
    request = configured(SessionRequest(), {name: sent})
    assert request.options == changed(LiveOptions(), {option.key: value}) != LiveOptions()
    assert configured(request, {"model": "nano"}).options == request.options


@dataclass(frozen=True)
class WithCalmness(LiveDecodingOptions):
    """The options of live decoding with one more, declared once."""

    calmness: float = Option(
        "How long words rest.",
        group="When words are said",
        least=0.0,
        most=2.0,
        apis={"sottovoce": ApiField("calmness", "how long words rest", most=1.0)},
    ).as_field(0.5)


ANOTHER = options_of(WithCalmness)[-1]


def test_a_new_option_is_a_flag_and_a_field_by_its_declaration() -> None:
    command = flag(ANOTHER)(click.Command("try"))
    typed = command.make_context("try", ["--calmness", "0.75"]).params
    sent = read_field("calmness", "0.75", ANOTHER, ANOTHER.apis["sottovoce"])
    assert changed(WithCalmness(), {"calmness": sent}) == made(WithCalmness, read_values(typed, [ANOTHER]))
    assert StreamOptions.of(WithCalmness(frame_threshold=30)) == StreamOptions(frame_threshold=30)


def test_its_range_holds_everywhere() -> None:
    with pytest.raises(OptionError, match="calmness: expected 0 to 2, got 3"):
        WithCalmness(calmness=3)
    with pytest.raises(ApiError, match=r"calmness: expected a number from 0 to 1, got .1\.5."):
        read_field("calmness", "1.5", ANOTHER, ANOTHER.apis["sottovoce"])
    with pytest.raises(OptionError, match="switching: expected 'off', 'restart' or 'parallel', got 'often'"):
        LiveOptions(switching="often")  # type: ignore[arg-type]
