"""Forms and live requests: text fields by name, read by the options that name them.

Lists come as `name[]`, `name` or `name[0]`, objects as `name[key]` or as JSON, as OpenAI's clients and curl
send them. Does not depend on a web framework.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sottovoce.formats.document import Json
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.options.live import LiveDecodingOptions, LiveOptions
from sottovoce.options.requests import LIVE_REQUEST, MODEL, REQUEST
from sottovoce.options.schema import Api, ApiField, Kind, Option, options_of
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import VadOptions, VadStreamOptions
from sottovoce.options.writer import WriterOptions
from sottovoce.server.parsing.faults import invalid_value
from sottovoce.server.parsing.values import (
    Reader,
    one_of,
    read_flag,
    read_int,
    read_json,
    read_language,
    read_languages,
    read_list,
    read_number,
    read_speakers,
    read_text,
    replace_surrogates,
)

MAX_TEXT_LETTERS = 8_000
"""Characters of one field."""
MAX_ITEMS = 1_000
MAX_LIST_LETTERS = 16_000
"""Characters of all values of a list: phrases are made into a search of their own."""
RECORDINGS = "known_speaker_references"
"""Holds recordings, whose length is looked at where they are decoded."""
_TRUE, _FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off", ""}
FORM: tuple[Option, ...] = (
    *REQUEST,
    *(
        option
        for owner in (TranscribeOptions, DecodingOptions, FallbackOptions, VadOptions, WriterOptions)
        for option in options_of(owner)
    ),
)
"""Every option that a form may name."""
TEXT: dict[str, Json] = {"type": "string", "maxLength": 8000}
TEXTS: dict[str, Json] = {"type": "array", "items": {"type": "string", "maxLength": 200}, "maxItems": 1000}
LIVE: tuple[Option, ...] = (
    MODEL,
    *options_of(LiveOptions),
    *options_of(LiveDecodingOptions),
    *options_of(VadStreamOptions),
    *LIVE_REQUEST,
)
"""Every option that a live request may name."""
READERS: Mapping[Kind, Reader] = {
    "text": read_text,
    "flag": read_flag,
    "texts": read_list,
    "language": read_language,
    "languages": read_languages,
    "speakers": read_speakers,
    "integer": read_int,
}


class Fields:
    """Text fields of one request.

    Raises: ApiError 400 for a field that is too long, and from every method for an invalid value.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = [(replace_surrogates(name), replace_surrogates(value)) for name, value in pairs]
        self._taken: set[str] = set()
        for name, value in self._pairs:
            if len(value) > MAX_TEXT_LETTERS and not name.startswith(RECORDINGS):
                raise invalid_value(name, f"at most {MAX_TEXT_LETTERS} characters", f"{len(value)}")

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return list(self._pairs)

    def without(self, name: str) -> Fields:
        """Return the fields but one, all unread."""
        return Fields((key, value) for key, value in self._pairs if key != name)

    def text(self, name: str) -> str | None:
        """Return the single value, or None if it is missing or empty."""
        self._taken.add(name)
        values = [value for key, value in self._pairs if key == name]
        if len(values) > 1:
            raise invalid_value(name, "one value", f"{len(values)}")
        return values[0] if values and values[0] else None

    def choice(self, name: str, among: Sequence[str], default: str) -> str:
        value = self.text(name)
        if value is None:
            return default
        if value not in among:
            raise invalid_value(name, f"one of {', '.join(among)}", f"'{value[:100]}'")
        return value

    def flag(self, name: str) -> bool:
        value = (self.text(name) or "").lower()
        if value not in _TRUE | _FALSE:
            raise invalid_value(name, "true or false", f"'{value[:100]}'")
        return value in _TRUE

    def number(self, name: str, least: float, most: float) -> float | None:
        value = self.text(name)
        return None if value is None else read_number(name, value, least, most)

    def many(self, name: str) -> list[str]:
        index = re.compile(re.escape(name) + r"(\[\d*\])?")
        keys = [key for key, _ in self._pairs if index.fullmatch(key)]
        self._taken.update(keys)
        if len(keys) > MAX_ITEMS:
            raise invalid_value(name, f"at most {MAX_ITEMS} values", f"{len(keys)}")
        among = set(keys)
        values = [value for key, value in self._pairs if key in among and value]
        n_letters = sum(map(len, values))
        if n_letters > MAX_LIST_LETTERS and name != RECORDINGS:
            raise invalid_value(name, f"at most {MAX_LIST_LETTERS} characters in all", f"{n_letters}")
        return values

    def choices_of(self, name: str, among: Sequence[str]) -> list[str]:
        values = self.many(name)
        for value in values:
            if value not in among:
                raise invalid_value(f"{name}[]", f"values among {', '.join(among)}", f"'{value[:100]}'")
        return list(dict.fromkeys(values))

    def nested(self, name: str) -> str | Mapping[str, object] | None:
        """Return a word, an object from `name[key]` fields or JSON, or None."""
        inner = re.compile(re.escape(name) + r"\[(\w+)\]")
        found: dict[str, object] = {}
        for key, value in self._pairs:
            match = inner.fullmatch(key)
            if match:
                self._taken.add(key)
                found[match[1]] = value
        plain = self.text(name)
        if plain is not None and found:
            raise invalid_value(name, "a word or an object", "both")
        if plain is None or not plain.lstrip().startswith("{"):
            return plain or found or None
        return json_object(name, plain)

    @property
    def unread(self) -> tuple[str, ...]:
        """The names of unread fields, `name` for `name[key]`."""
        names = (name.partition("[")[0] or name for name, _ in self._pairs if name not in self._taken)
        return tuple(dict.fromkeys(names))


def json_object(name: str, text: str) -> Mapping[str, object]:
    found = read_json(text)
    if not isinstance(found, dict):
        raise invalid_value(name, "a JSON object", f"'{text[:100]}'")
    return found


def fields_of(api: Api, options: Sequence[Option] = FORM) -> dict[str, tuple[Option, ApiField]]:
    """Return the fields of an API by all of their names."""
    return {
        name: (option, option.apis[api])
        for option in options
        if api in option.apis
        for name in option.apis[api].names.split()
    }


def read_form(fields: Fields, api: Api, options: Sequence[Option] = FORM) -> dict[str, Any]:
    """Return the values of a form by the keys of their options; None for unset ones.

    Raises: ApiError 400 for an invalid value.
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
            value = tuple(fields.choices_of(name, field.choices) if field.choices else fields.many(name))
        case "nested":
            value = fields.nested(field.name)
        case "file":
            return None
        case _:
            value = fields.text(field.name)
    return field.reads(value) if field.reads is not None and value is not None else value


def _flag(fields: Fields, field: ApiField) -> bool | None:
    names = field.names.split()
    given = {fields.flag(name) for name in names if fields.text(name) is not None}
    if len(given) > 1:
        raise invalid_value(names[0], f"the same as {names[1]}", "another")
    return given.pop() if given else None


def _number(fields: Fields, option: Option, field: ApiField, *, is_whole: bool) -> float | None:
    least, most = range_of(option, field)
    value = fields.number(field.name, least, most)
    if value is None:
        return None
    if is_whole and not value.is_integer():
        raise invalid_value(field.name, "a whole number", f"'{value:g}'")
    if field.none_upto is not None and value <= field.none_upto:
        return None
    return int(value) if is_whole else value / field.per_unit


def range_of(option: Option, field: ApiField) -> tuple[float, float]:
    least = field.least if field.least is not None else option.least
    most = field.most if field.most is not None else option.most
    return -math.inf if least is None else least, math.inf if most is None else most


def schema_of(option: Option, field: ApiField) -> dict[str, Json]:
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


def read_field(name: str, value: object, option: Option, field: ApiField) -> object:
    """Return the value of an option from a value of a request. Raises: ApiError 400."""
    kind = field.kind or option.kind
    found: object
    if kind == "choice":
        found = one_of(*(field.choices or option.choices))(name, value)
    elif kind == "number":
        found = read_number(name, value, *range_of(option, field)) / field.per_unit
    else:
        found = READERS[kind or "text"](name, value)
    return found if field.reads is None else field.reads(found)
