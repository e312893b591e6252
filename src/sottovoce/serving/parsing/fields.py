"""The fields of a form by name, taken out one by one; what is left over at the end has no effect.

Lists come as `name[]`, `name` or `name[0]`, objects as `name[key]` or as JSON, as OpenAI's clients and curl
send them. Knows no web framework.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from sottovoce.serving.parsing.client_json import read_json, whole_text
from sottovoce.serving.parsing.faults import ApiError

MOST_TEXT = 8_000
"""Characters of one field."""
MOST_ITEMS = 1_000
MOST_LIST_TEXT = 16_000
"""Characters of all values of a list: phrases are made into a search of their own."""
RECORDINGS = "known_speaker_references"
"""Holds recordings, whose length is looked at where they are decoded."""
_TRUE, _FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off", ""}


class Fields:
    """Text fields of one request.

    Raises: ApiError 400 for one that is longer than any use of it, and, from every method, for a value that
    cannot be what it should.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = [(whole_text(name), whole_text(value)) for name, value in pairs]
        self._taken: set[str] = set()
        for name, value in self._pairs:
            if len(value) > MOST_TEXT and not name.startswith(RECORDINGS):
                raise wrong(name, f"at most {MOST_TEXT} characters", f"{len(value)}")

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Names and values, as they came."""
        return list(self._pairs)

    def without(self, name: str) -> Fields:
        """Return the other fields, of which none is taken out yet."""
        return Fields((key, value) for key, value in self._pairs if key != name)

    def text(self, name: str) -> str | None:
        """Return the one value; None where it is not given or empty."""
        self._taken.add(name)
        values = [value for key, value in self._pairs if key == name]
        if len(values) > 1:
            raise wrong(name, "one value", f"{len(values)}")
        return values[0] if values and values[0] else None

    def choice(self, name: str, among: Sequence[str], default: str) -> str:
        """Return one of a few words."""
        value = self.text(name)
        if value is None:
            return default
        if value not in among:
            raise wrong(name, f"one of {', '.join(among)}", f"'{value[:100]}'")
        return value

    def flag(self, name: str) -> bool:
        """True or false; false where it is not given."""
        value = (self.text(name) or "").lower()
        if value not in _TRUE | _FALSE:
            raise wrong(name, "true or false", f"'{value[:100]}'")
        return value in _TRUE

    def number(self, name: str, least: float, most: float) -> float | None:
        """Return a number of a range."""
        value = self.text(name)
        return None if value is None else number_of(name, value, least, most)

    def many(self, name: str) -> list[str]:
        """Return all values of a list, without empty ones."""
        index = re.compile(re.escape(name) + r"(\[\d*\])?")
        keys = [key for key, _ in self._pairs if index.fullmatch(key)]
        self._taken.update(keys)
        if len(keys) > MOST_ITEMS:
            raise wrong(name, f"at most {MOST_ITEMS} values", f"{len(keys)}")
        among = set(keys)
        values = [value for key, value in self._pairs if key in among and value]
        n_letters = sum(map(len, values))
        if n_letters > MOST_LIST_TEXT and name != RECORDINGS:
            raise wrong(name, f"at most {MOST_LIST_TEXT} characters in all", f"{n_letters}")
        return values

    def several_of(self, name: str, among: Sequence[str]) -> list[str]:
        """Values of a list that are all of a few words."""
        values = self.many(name)
        for value in values:
            if value not in among:
                raise wrong(f"{name}[]", f"values among {', '.join(among)}", f"'{value[:100]}'")
        return list(dict.fromkeys(values))

    def nested(self, name: str) -> str | Mapping[str, object] | None:
        """Return a word, or an object from `name[key]` fields or JSON; None where it is not given."""
        inner = re.compile(re.escape(name) + r"\[(\w+)\]")
        found: dict[str, object] = {}
        for key, value in self._pairs:
            match = inner.fullmatch(key)
            if match:
                self._taken.add(key)
                found[match[1]] = value
        plain = self.text(name)
        if plain is not None and found:
            raise wrong(name, "a word or an object", "both")
        if plain is None or not plain.lstrip().startswith("{"):
            return plain or found or None
        return json_object(name, plain)

    @property
    def untaken(self) -> tuple[str, ...]:
        """The names of fields that nobody has taken, `name` for `name[key]`."""
        names = (name.partition("[")[0] or name for name, _ in self._pairs if name not in self._taken)
        return tuple(dict.fromkeys(names))


def json_object(name: str, text: str) -> Mapping[str, object]:
    """Read an object written as JSON."""
    found = read_json(text)
    if not isinstance(found, dict):
        raise wrong(name, "a JSON object", f"'{text[:100]}'")
    return found


def number_of(name: str, value: object, least: float, most: float) -> float:
    """Read a number of a range, from text or JSON."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number <= most:
        raise wrong(name, f"a number from {least:g} to {most:g}", f"'{str(value)[:100]}'")
    return number


def wrong(name: str, expected: str, got: str) -> ApiError:
    """Make the fault of a value that is not what it should be."""
    return ApiError(f"{name}: expected {expected}, got {got}", param=name, code="invalid_value")
