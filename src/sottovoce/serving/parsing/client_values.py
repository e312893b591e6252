"""Values that clients write, in JSON or an address, read without trust.

A reader takes the name of the field, for the fault, and its value. Raises: ApiError 400, every one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from sottovoce.errors import OptionError
from sottovoce.serving.parsing.client_json import read_json
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.fields import number_of, wrong
from sottovoce.text.languages import find_language

MAX_TERMS = 500
MAX_CHARACTERS = 4_000
"""Of a prompt, and of all terms together."""


def read_text(name: str, value: object) -> str:
    """Read a text of a length that is of use."""
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
        raise wrong(name, f"a text of at most {MAX_CHARACTERS} characters", shown(value))
    return value


def read_list(name: str, value: object) -> tuple[str, ...]:
    """Read texts, from a list or separated by commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise wrong(name, "a list of texts", shown(value))
    if len(items) > MAX_TERMS or sum(map(len, items)) > MAX_CHARACTERS:
        raise wrong(name, f"at most {MAX_TERMS} texts of {MAX_CHARACTERS} characters in all", f"{len(items)}")
    return tuple(item.strip() for item in items if item.strip())


def read_languages(name: str, value: object) -> tuple[str, ...]:
    """Read codes of languages; "auto" stands for all of the model, and is left out."""
    return tuple(dict.fromkeys(read_code(name, word) for word in read_list(name, value) if word != "auto"))


def read_language(name: str, value: object) -> str:
    """Read one language; returns its code, "" for none."""
    return read_code(name, text) if (text := read_text(name, value).strip()) else ""


def read_code(name: str, language: str) -> str:
    """Read Whisper's code of a language from its name, code or tag such as en-US. Raises: ApiError 400."""
    try:
        return find_language(language[:50])
    except OptionError as error:
        raise ApiError(str(error), param=name, code="invalid_value") from error


def read_flag(name: str, value: object) -> bool:
    """Read true or false, in JSON or as text."""
    spellings = {"true": True, "false": False, "1": True, "0": False}
    found = spellings.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise wrong(name, "true or false", shown(value))
    return found


def read_speakers(name: str, value: object) -> str:
    """Read "auto", how many there are at most, or "" for false: as the library takes it."""
    text = str(value).lower()
    if text in ("false", "0", ""):
        return ""
    if text not in ("auto", "true") and not (text.isascii() and text.isdecimal() and len(text) < 3):
        raise wrong(name, "auto, a number of speakers below 100, or false", shown(value))
    return "auto" if text == "true" else text


def read_whole(name: str, value: object) -> int:
    """Read a whole number, in JSON or as text."""
    found = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 9 else value
    if not isinstance(found, int) or isinstance(found, bool):
        raise wrong(name, "a whole number", shown(value))
    return found


def one_of(*among: str) -> Callable[[str, object], str]:
    """Return a reader of one of a few words."""

    def read(name: str, value: object) -> str:
        if value not in among:
            raise wrong(name, f"one of {', '.join(among)}", shown(value))
        return str(value)

    return read


def shown(value: object) -> str:
    """Quote a value as a fault shows it."""
    return f"'{str(value)[:50]}'"


def read_object(name: str, value: object, *, optional: bool = False) -> Mapping[str, object]:
    """Read an object of JSON; optional: null is one without fields."""
    if value is None and optional:
        return {}
    if not isinstance(value, Mapping):
        raise wrong(name, "an object or null" if optional else "an object", shown(value))
    return cast("Mapping[str, object]", value)


def require_only(name: str, given: Mapping[str, object], allowed: tuple[str, ...]) -> None:
    """Check that an object has no other fields. Raises: ApiError 400."""
    for key in given:
        if key not in allowed:
            message = f"unknown parameter '{name}.{key[:50]}': expected {', '.join(allowed)}"
            raise ApiError(message, param=f"{name}.{key[:50]}", code="unknown_parameter")


def read_json_list(name: str, value: object) -> tuple[str, ...]:
    """Read texts from a list of JSON."""
    return read_list(name, value if isinstance(value, list) else None)


def read_json_languages(name: str, value: object) -> tuple[str, ...]:
    """Read codes of languages from a list of JSON."""
    return read_languages(name, value if isinstance(value, list) else None)


def read_json_number(name: str, value: object, least: float, most: float) -> float:
    """Read a number of JSON, not spelled in letters."""
    return number_of(name, [value] if isinstance(value, str) else value, least, most)


def read_typed_message(text: str, expected: str) -> dict[str, object]:
    """Read an object of JSON with a `type`; expected: by the fault. Raises: ApiError 400."""
    return require_typed(read_json(text), expected)


def require_typed(message: object, expected: str) -> dict[str, object]:
    """Check that JSON is an object with a `type`; expected: by the fault. Raises: ApiError 400."""
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ApiError(f"message: expected {expected}", code="invalid_message")
    return message
