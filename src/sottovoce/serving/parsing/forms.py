"""Forms of recordings, read and described by the options that they may name. Knows no web framework.

Values are read by our own few lines rather than by a schema library: every field is text, and what is said of
a wrong one (its name, what was expected, what came) is part of the API.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sottovoce.formats.document import Json
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.requests import REQUEST
from sottovoce.options.schema import Api, ApiField, Option, options_of
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import VadOptions
from sottovoce.options.writer import WriterOptions
from sottovoce.serving.parsing.fields import Fields, wrong

FORM: tuple[Option, ...] = (
    *REQUEST,
    *(
        option
        for owner in (TranscribeOptions, DecodingOptions, FallbackOptions, VadOptions, WriterOptions)
        for option in options_of(owner)
    ),
)
"""Every option that a form may name."""


def fields_of(api: Api, options: Sequence[Option] = FORM) -> dict[str, tuple[Option, ApiField]]:
    """List the fields of an API by every name that they have there."""
    return {
        name: (option, option.apis[api])
        for option in options
        if api in option.apis
        for name in option.apis[api].names.split()
    }


def read_form(fields: Fields, api: Api, options: Sequence[Option] = FORM) -> dict[str, Any]:
    """Return the values of a form by the keys of their options; None where nothing is set.

    Raises: ApiError 400 for a value that cannot be what it should.
    """
    return {option.key: _read(fields, option, option.apis[api]) for option in options if api in option.apis}


def _read(fields: Fields, option: Option, field: ApiField) -> Any:
    value: Any
    match field.kind or option.kind:
        case "flag":
            value = _flag(fields, field)
        case "number" | "time" | "integer" as kind:
            value = _number(fields, option, field, is_whole=kind == "integer")
        case "choice":
            value = fields.choice(field.name, field.choices or option.choices, option.default)
        case "texts":
            name = field.name.removesuffix("[]")
            value = tuple(fields.several_of(name, field.choices) if field.choices else fields.many(name))
        case "nested":
            value = fields.nested(field.name)
        case "file":
            return None
        case _:
            value = fields.text(field.name)
    return field.reads(value) if field.reads is not None and value is not None else value


def _flag(fields: Fields, field: ApiField) -> bool | None:
    """True or false; None where it has none of its names."""
    names = field.names.split()
    given = {fields.flag(name) for name in names if fields.text(name) is not None}
    if len(given) > 1:
        raise wrong(names[0], f"the same as {names[1]}", "another")
    return given.pop() if given else None


def _number(fields: Fields, option: Option, field: ApiField, *, is_whole: bool) -> float | None:
    """A number of the option's unit."""
    least, most = range_of(option, field)
    value = fields.number(field.name, least, most)
    if value is None:
        return None
    if is_whole and not value.is_integer():
        raise wrong(field.name, "a whole number", f"'{value:g}'")
    if field.none_upto is not None and value <= field.none_upto:
        return None
    return int(value) if is_whole else value / field.per_unit


def range_of(option: Option, field: ApiField) -> tuple[float, float]:
    """Return the least and the greatest number that a request may have."""
    least = field.least if field.least is not None else option.least
    most = field.most if field.most is not None else option.most
    return -math.inf if least is None else least, math.inf if most is None else most


TEXT: dict[str, Json] = {"type": "string", "maxLength": 8000}
TEXTS: dict[str, Json] = {"type": "array", "items": {"type": "string", "maxLength": 200}, "maxItems": 1000}


def schema_of(option: Option, field: ApiField) -> dict[str, Json]:
    """Describe a field as OpenAPI describes it."""
    match field.kind or option.kind:
        case "flag" | "any":
            return {"type": "boolean"}
        case "number" | "time":
            return {"type": "number", **_limits(option, field)}
        case "integer":
            return {"type": "integer", **_limits(option, field)}
        case "choice":
            return {"type": "string", "enum": [*(field.choices or option.choices)]}
        case "texts" if field.choices:
            return {"type": "array", "items": {"type": "string", "enum": [*field.choices]}}
        case "texts" if field.examples:
            return {"type": "array", "items": _example(field)}
        case "texts":
            return TEXTS
        case "file":
            return {"type": "string", "format": "binary"}
        case _:
            return _example(field) if field.examples else TEXT


def _example(field: ApiField) -> dict[str, Json]:
    return {"type": "string", "examples": [*field.examples], "maxLength": 50}


def _limits(option: Option, field: ApiField) -> Mapping[str, Json]:
    least, most = range_of(option, field)
    limits: dict[str, Json] = {"minimum": least, "maximum": most}
    return {name: value for name, value in limits.items() if value not in (-math.inf, math.inf)}
