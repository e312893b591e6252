"""Parameters of a request that have no effect here, which its answer names (`x-ignored-parameters`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from starlette.requests import HTTPConnection

HEADER = "x-ignored-parameters"
STATE = "ignored"
"""In the state of a connection's scope: the names, for `HEADER`."""
MOST_NAMED, MOST_LETTERS = 20, 100
UNPRINTABLE = re.compile(r"[^\x21-\x2b\x2d-\x7e]")
"""Characters of a name that a header does not hold, or that separate two names."""

Known: TypeAlias = Mapping[str, "Known"]
"""The fields of a JSON object by name, with those of the object in each of them; {}: its value is not read
further here."""


def unknown_fields(given: object, known: Known, place: str = "") -> tuple[str, ...]:
    """List the fields of an object of JSON that are not known, at any depth: "session.audio.output"."""
    if not known or not isinstance(given, Mapping):
        return ()
    found: list[str] = []
    for name, value in given.items():
        path = f"{place}.{name}" if place else str(name)
        if name in known:
            found += unknown_fields(value, known[name], path)
        else:
            found.append(path)
    return tuple(found)


def leaves(*names: str) -> dict[str, Known]:
    """Return known fields whose values are not read further."""
    return {name: {} for name in names}


def named(names: Iterable[str]) -> list[str]:
    """Return names as an answer has them: printable, each once, and not more or longer than of any use."""
    printable = [UNPRINTABLE.sub("?", name)[:MOST_LETTERS] or "?" for name in dict.fromkeys(names)]
    return printable if len(printable) <= MOST_NAMED else [*printable[:MOST_NAMED], "..."]


def note_ignored(connection: HTTPConnection, names: Iterable[str]) -> None:
    """Have the answer of a request, or of a handshake that is accepted later, name parameters."""
    connection.scope["state"].setdefault(STATE, []).extend(names)


def ignored_header(state: Mapping[str, object]) -> dict[str, str]:
    """Return `HEADER` for the state of a connection's scope, where it names any."""
    names = state.get(STATE)
    return {HEADER: ", ".join(named(names))} if isinstance(names, list) and names else {}
