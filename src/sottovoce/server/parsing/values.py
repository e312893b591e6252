"""Values in JSON or an address, read without trust.

Readers take the name of the field, for the error, and its value, and raise ApiError 400. The answer of a
request names fields without effect (`x-ignored-parameters`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

from starlette.requests import HTTPConnection

from sottovoce.errors import OptionError
from sottovoce.server.parsing.faults import ApiError, invalid_value
from sottovoce.text.languages import find_language

MAX_TERMS = 500
MAX_CHARACTERS = 4_000
"""Of a prompt, and of all terms together."""
HEADER = "x-ignored-parameters"
STATE = "ignored"
"""In the state of a connection's scope: the names, for `HEADER`."""
MAX_NAMES_SHOWN, MAX_NAME_LETTERS = 20, 100
UNPRINTABLE = re.compile(r"[^\x21-\x2b\x2d-\x7e]")
"""Characters of a name that a header does not hold, or that separate two names."""
Reader: TypeAlias = Callable[[str, object], Any]
"""Reads a value, given the name of its field."""
KnownFields: TypeAlias = Mapping[str, "KnownFields | Reader"]
"""The fields of a JSON object by name: the fields of the object in each, or the reader of its value; {}: the
value is read elsewhere."""


def read_json(text: str | bytes) -> object:
    """Read JSON; None for invalid or very deep JSON.

    Lone surrogates, which JSON can spell ("\\ud800") but no answer can hold, become U+FFFD.
    """
    try:
        return _without_surrogates(json.loads(text))
    except (ValueError, RecursionError):
        return None


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _without_surrogates(value: object) -> object:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return [_without_surrogates(one) for one in value]
    if isinstance(value, dict):
        return {replace_surrogates(name): _without_surrogates(one) for name, one in value.items()}
    return value


def read_number(name: str, value: object, least: float, most: float) -> float:
    """Read a number of a range, from text or JSON."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number <= most:
        raise invalid_value(name, f"a number from {least:g} to {most:g}", f"'{str(value)[:100]}'")
    return number


def read_text(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
        raise invalid_value(name, f"a text of at most {MAX_CHARACTERS} characters", quoted(value))
    return value


def read_list(name: str, value: object) -> tuple[str, ...]:
    """Read texts from a list or separated by commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise invalid_value(name, "a list of texts", quoted(value))
    if len(items) > MAX_TERMS or sum(map(len, items)) > MAX_CHARACTERS:
        raise invalid_value(
            name, f"at most {MAX_TERMS} texts of {MAX_CHARACTERS} characters in all", f"{len(items)}"
        )
    return tuple(item.strip() for item in items if item.strip())


def read_languages(name: str, value: object) -> tuple[str, ...]:
    """Read codes of languages; "auto" means all and is left out."""
    return read_codes(name, (word for word in read_list(name, value) if word != "auto"))


def read_language(name: str, value: object) -> str:
    """Read the code of one language, or ""."""
    return read_code(name, text) if (text := read_text(name, value).strip()) else ""


def read_code(name: str, language: str) -> str:
    """Read Whisper's code of a language from its name, code or tag such as en-US. Raises: ApiError 400."""
    try:
        return find_language(language[:50])
    except OptionError as error:
        raise ApiError(str(error), param=name, code="invalid_value") from error


def read_codes(name: str, languages: Iterable[str]) -> tuple[str, ...]:
    """Read the codes of languages, each once. Raises: ApiError 400."""
    return tuple(dict.fromkeys(read_code(name, language) for language in languages))


def read_flag(name: str, value: object) -> bool:
    spellings = {"true": True, "false": False, "1": True, "0": False}
    found = spellings.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise invalid_value(name, "true or false", quoted(value))
    return found


def read_speakers(name: str, value: object) -> str:
    """Read "auto", a largest number of speakers, or "" for false."""
    text = str(value).lower()
    if text in ("false", "0", ""):
        return ""
    if text not in ("auto", "true") and not (text.isascii() and text.isdecimal() and len(text) < 3):
        raise invalid_value(name, "auto, a number of speakers below 100, or false", quoted(value))
    return "auto" if text == "true" else text


def read_int(name: str, value: object) -> int:
    found = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 9 else value
    if not isinstance(found, int) or isinstance(found, bool):
        raise invalid_value(name, "a whole number", quoted(value))
    return found


def one_of(*among: str) -> Reader:
    def read(name: str, value: object) -> str:
        if value not in among:
            raise invalid_value(name, f"one of {', '.join(among)}", quoted(value))
        return str(value)

    return read


def quoted(value: object) -> str:
    return f"'{str(value)[:50]}'"


def read_object(name: str, value: object, *, optional: bool = False) -> Mapping[str, object]:
    """Read an object of JSON; optional: null is an empty one."""
    if value is None and optional:
        return {}
    if not isinstance(value, Mapping):
        raise invalid_value(name, "an object or null" if optional else "an object", quoted(value))
    return cast("Mapping[str, object]", value)


def require_only(name: str, given: Mapping[str, object], allowed: tuple[str, ...]) -> None:
    """Check that an object has no unknown fields. Raises: ApiError 400."""
    for key in given:
        if key not in allowed:
            message = f"unknown parameter '{name}.{key[:50]}': expected {', '.join(allowed)}"
            raise ApiError(message, param=f"{name}.{key[:50]}", code="unknown_parameter")


def read_json_list(name: str, value: object) -> tuple[str, ...]:
    return read_list(name, value if isinstance(value, list) else None)


def read_json_languages(name: str, value: object) -> tuple[str, ...]:
    return read_languages(name, value if isinstance(value, list) else None)


def json_number(least: float, most: float) -> Reader:
    """Return the reader of a number of JSON, not one in a string."""
    return lambda name, value: read_number(name, [value] if isinstance(value, str) else value, least, most)


def read_json_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise invalid_value(name, "true or false", quoted(value))
    return value


def read_typed_message(text: str, expected: str) -> dict[str, object]:
    """Read an object of JSON with a `type`; expected: of the error. Raises: ApiError 400."""
    return require_typed(read_json(text), expected)


def require_typed(message: object, expected: str) -> dict[str, object]:
    """Check that JSON is an object with a `type`; expected: of the error. Raises: ApiError 400."""
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ApiError(f"message: expected {expected}", code="invalid_message")
    return message


def read_fields(place: str, given: Mapping[str, object], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Read the fields of an object that have a reader, and are there and not null. Raises: ApiError 400."""
    return {
        name: read(f"{place}.{name}", given[name])
        for name, read in readers.items()
        if given.get(name) is not None
    }


def unknown_fields(given: object, known: KnownFields | Reader, place: str = "") -> tuple[str, ...]:
    """List the unknown fields of an object of JSON at any depth, as "session.audio.output"."""
    if not known or callable(known) or not isinstance(given, Mapping):
        return ()
    found: list[str] = []
    for name, value in given.items():
        path = f"{place}.{name}" if place else str(name)
        if name in known:
            found += unknown_fields(value, known[name], path)
        else:
            found.append(path)
    return tuple(found)


def known_fields(*names: str) -> dict[str, KnownFields]:
    return {name: {} for name in names}


def named(names: Iterable[str]) -> list[str]:
    """Return names for an answer: printable, unique, and limited in length and number."""
    printable = [UNPRINTABLE.sub("?", name)[:MAX_NAME_LETTERS] or "?" for name in dict.fromkeys(names)]
    return printable if len(printable) <= MAX_NAMES_SHOWN else [*printable[:MAX_NAMES_SHOWN], "..."]


def note_ignored(connection: HTTPConnection, names: Iterable[str]) -> None:
    """Let the answer of a request or handshake name parameters without effect."""
    connection.scope["state"].setdefault(STATE, []).extend(names)


def ignored_header(state: Mapping[str, object]) -> dict[str, str]:
    names = state.get(STATE)
    return {HEADER: ", ".join(named(names))} if isinstance(names, list) and names else {}
