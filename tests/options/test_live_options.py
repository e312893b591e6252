"""An option of live speech is declared once: flag, field of a protocol and Python set the same value."""

from __future__ import annotations

from typing import Any

import pytest

from sottovoce.cli.stream import stream
from sottovoce.errors import OptionError
from sottovoce.options.decoding import VadStreamOptions
from sottovoce.options.live import LiveDecodingOptions, LiveOptions
from sottovoce.options.schema import Option, changed, from_values, options_of
from sottovoce.server.apis.sottovoce_live import SessionRequest, with_changes
from sottovoce.server.fields import LIVE
from sottovoce.streaming.options import StreamOptions
from sottovoce.text.replacements import Replacements

FLAGS = [
    option for option in (*options_of(LiveDecodingOptions), *options_of(VadStreamOptions)) if option.flags
]
OWNERS = {"LiveDecodingOptions": StreamOptions, "VadStreamOptions": VadStreamOptions}
FIELDS: dict[str, tuple[object, Any]] = {
    "languages": ("en,german", ("en", "de")),
    "switching": ("off", "off"),
    "switch_certainty": (0.95, 0.95),
    "latency": ("low", "low"),
    "captions": ("revisable", "revisable"),
    "vad": (False, False),
    "speakers": ("3", "3"),
    "replacements": ("ada => Ada", Replacements((("ada", "Ada"),))),
    "task": ("translate", "translate"),
    "eagerness": ("high", "high"),
    "prompt": ("Anna said", "Anna said"),
    "terms": (["Tisza", "Duna"], "Tisza, Duna"),
}
NAMED = [option for option in LIVE if option.owner and "sottovoce" in option.apis]


@pytest.mark.parametrize("option", FLAGS, ids=lambda option: option.key)
def test_a_flag_sets_its_field_as_python_does(option: Option) -> None:
    number = 120 if option.owner == "VadStreamOptions" else int(option.least or 0) + 7
    value = {"text": "Anna", "choice": option.choices[-1:]}.get(option.kind, number)
    value = value[0] if isinstance(value, tuple) else value
    words = [str(option.flags), f"{value}"]
    given = stream.make_context("stream", ["-", *words], help_option_names=["-h", "--help"]).params
    owner = OWNERS[option.owner]
    chosen = from_values(owner, given)
    assert getattr(chosen, option.field) == value != option.default
    assert chosen == changed(owner(), {option.key: value})


@pytest.mark.parametrize("option", NAMED, ids=lambda option: option.key)
def test_a_field_of_the_protocol_sets_the_same(option: Option) -> None:
    name = option.apis["sottovoce"].name
    sent, value = FIELDS[name]
    request = with_changes(SessionRequest(), {name: sent})
    assert request.options == changed(LiveOptions(), {option.key: value}) != LiveOptions()
    assert with_changes(request, {"model": "nano"}).options == request.options


def test_a_choice_holds_and_live_decoding_is_part_of_a_stream() -> None:
    with pytest.raises(OptionError, match="switching: expected 'off' or 'restart', got 'often'"):
        LiveOptions(switching="often")  # type: ignore[arg-type]
    assert StreamOptions.of(LiveDecodingOptions(frame_threshold=30)) == StreamOptions(frame_threshold=30)
