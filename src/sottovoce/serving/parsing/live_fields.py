"""Fields of live requests, read by the options that they name: from JSON, or the address of a socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sottovoce.options.live import LiveDecodingOptions, LiveOptions
from sottovoce.options.requests import LIVE_REQUEST, MODEL
from sottovoce.options.schema import ApiField, Kind, Option, options_of
from sottovoce.options.vad import VadStreamOptions
from sottovoce.serving.parsing.client_values import (
    one_of,
    read_flag,
    read_language,
    read_languages,
    read_list,
    read_speakers,
    read_text,
    read_whole,
)
from sottovoce.serving.parsing.fields import number_of
from sottovoce.serving.parsing.forms import range_of

LIVE: tuple[Option, ...] = (
    MODEL,
    *options_of(LiveOptions),
    *options_of(LiveDecodingOptions),
    *options_of(VadStreamOptions),
    *LIVE_REQUEST,
)
"""Every option that a live request may name."""
READERS: Mapping[Kind, Callable[[str, object], object]] = {
    "text": read_text,
    "flag": read_flag,
    "texts": read_list,
    "language": read_language,
    "languages": read_languages,
    "speakers": read_speakers,
    "integer": read_whole,
}


def read_field(name: str, value: object, option: Option, field: ApiField) -> object:
    """Return the value of an option from what a client gave it. Raises: ApiError 400."""
    kind = field.kind or option.kind
    found: object
    if kind == "choice":
        found = one_of(*(field.choices or option.choices))(name, value)
    elif kind == "number":
        found = number_of(name, value, *range_of(option, field)) / field.per_unit
    else:
        found = READERS[kind or "text"](name, value)
    return found if field.reads is None else field.reads(found)
