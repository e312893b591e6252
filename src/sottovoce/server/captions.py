"""Captions that one client publishes and many read: their present state, and changes since a revision.

They are kept in memory while their session lasts. A reader gets the changes since its revision page by page,
an utterance that changed several times once. A page is serialised once for all readers.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import anyio

from sottovoce.formats.document import Json, json_text, seconds
from sottovoce.server.errors import ApiError, invalid_value, too_many_requests
from sottovoce.server.fields import (
    quoted,
    read_int,
    read_number,
    read_object,
    read_text,
    read_typed_message,
    require_only,
)

TOKEN_BYTES = 16
MAX_CAPTIONS_CHARACTERS = 16_000_000
"""Of all utterances of a session as JSON: about twenty hours of speech."""
KEPT_PAGES = 32
MAX_MESSAGE_CHARACTERS = 2_000_000
MAX_UTTERANCES = 2_000
MAX_WORDS = 2_000
MAX_TEXT = 8_000
"""Characters of a word, a translation, or unstable text."""
MAX_NAMES = 100
MAX_NAME = 80
MAX_SECONDS = 1e6
MAX_NUMBER = 1_000_000
CAPTIONS = ("utterances", "now", "names", "clear")
UTTERANCE = ("id", "start", "end", "language", "words", "translation", "unstable")
WORD = ("word", "start", "end", "language", "speaker")
PAGE_CHARACTERS = 32_000
"""Of a message to a reader; one utterance may be longer."""


@dataclass(frozen=True, slots=True)
class Page:
    """A message to readers. revision: that of a reader who has read it."""

    text: str
    revision: int


@dataclass(frozen=True, slots=True)
class CaptionChange:
    """The changes of one message of a publisher.

    utterances: by number; one without words removes it. parts: "now", the utterance in progress or None, and
    "names" of speakers, if the message has them. is_clear: remove everything before.
    """

    utterances: Mapping[int, Json] = field(default_factory=dict)
    parts: Mapping[str, Json] = field(default_factory=dict)
    is_clear: bool = False


class SharedCaptions:
    """The captions of one session, not thread-safe. token: of its readers. secret: to publish again."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.secret = secrets.token_urlsafe(TOKEN_BYTES)
        self.revision = 0
        self._began_s = time.monotonic()
        self.n_readers = 0
        self.is_ended = False
        self.publisher = 0
        self.changed = anyio.Event()
        self._utterances: dict[int, tuple[int, str]] = {}
        """By number: the revision of the last change, and the JSON."""
        self._changes: list[tuple[int, int]] = []
        """Revision and number of each change of an utterance, superseded ones included."""
        self._pages: dict[int, Page] = {}
        """By the revision after which they begin."""
        self._parts: dict[str, tuple[int, str]] = {"now": (0, "null"), "names": (0, "{}")}
        self._cleared = 0
        self._n_characters = 0

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._began_s

    def apply(self, change: CaptionChange) -> None:
        """Apply a change and wake readers. Raises: ApiError for too much text."""
        before_all = self.revision
        if change.is_clear:
            self.revision += 1
            self._cleared, self._n_characters = self.revision, 0
            self._utterances.clear()
            self._changes.clear()
            self._parts = {"now": (self.revision, "null"), "names": (self.revision, "{}")}
        for number, utterance in change.utterances.items():
            _, before = self._utterances.get(number, (0, ""))
            text = json_text(utterance)
            if text == before:
                continue
            self.revision += 1
            self._n_characters += len(text) - len(before)
            self._utterances[number] = (self.revision, text)
            self._changes.append((self.revision, number))
        for name, part in change.parts.items():
            self._replace(name, part)
        if self.revision == before_all:
            return
        if len(self._changes) > 2 * len(self._utterances) + 1_000:
            self._changes = [one for one in self._changes if self._is_last(*one)]
        self._pages.clear()
        self.wake()
        if self._n_characters > MAX_CAPTIONS_CHARACTERS:
            message = f"captions: expected at most {MAX_CAPTIONS_CHARACTERS} characters of them in a session"
            raise ApiError(message, code="captions_too_long")

    def _replace(self, name: str, value: Json) -> None:
        text = json_text(value)
        if text != self._parts[name][1]:
            self.revision += 1
            self._parts[name] = (self.revision, text)

    def _is_last(self, revision: int, number: int) -> bool:
        return self._utterances[number][0] == revision

    def begin_publishing(self) -> int:
        """Return the number of a new publisher, which replaces the one before."""
        self.publisher += 1
        self.wake()
        return self.publisher

    def end(self) -> None:
        self.is_ended = True
        self.wake()

    def page(self, revision: int) -> Page | None:
        """Return the next page of changes since a revision (-1: all), or None."""
        if revision == self.revision:
            return None
        if revision not in self._pages:
            if len(self._pages) >= KEPT_PAGES:
                self._pages.clear()
            self._pages[revision] = self._page(revision)
        return self._pages[revision]

    def _page(self, revision: int) -> Page:
        utterances: list[str] = []
        n_characters, end = 0, self.revision
        for at in range(bisect_right(self._changes, (revision, sys.maxsize)), len(self._changes)):
            changed, number = self._changes[at]
            if not self._is_last(changed, number):
                continue
            text = self._utterances[number][1]
            n_characters += len(text)
            if utterances and n_characters > PAGE_CHARACTERS:
                end = changed - 1
                break
            utterances.append(text)
        fields = ['"type":"captions"', f'"revision":{end}']
        if 0 <= revision < self._cleared:
            fields.append('"clear":true')
        if utterances:
            fields.append(f'"utterances":[{",".join(utterances)}]')
        parts = self._parts.items()
        fields += [f'"{name}":{text}' for name, (changed, text) in parts if revision < changed <= end]
        return Page("{" + ",".join(fields) + "}", end)

    def wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


class CaptionRegistry:
    """All shared captions. sessions, readers: limits."""

    def __init__(self, *, sessions: int, readers: int) -> None:
        self._sessions = sessions
        self._readers = readers
        self._by_token: dict[bytes, SharedCaptions] = {}
        self.n_readers = 0

    @property
    def n_shared(self) -> int:
        return len(self._by_token)

    def check_capacity(self) -> None:
        if self.n_shared >= self._sessions:
            raise too_many_requests(
                f"{self._sessions} sessions are being shared: try again later", retry_s=10.0
            )

    def begin(self) -> SharedCaptions:
        """Share another session. Raises: ApiError 429 above the limit."""
        self.check_capacity()
        shared = SharedCaptions()
        self._by_token[_token_hash(shared.token)] = shared
        return shared

    def resumed(self, secret: str) -> SharedCaptions:
        """Return the captions of a publisher that reconnects. Raises: ApiError 404 if they have ended."""
        for shared in self._by_token.values():
            if hmac.compare_digest(shared.secret.encode(), secret.encode("utf-8", "replace")):
                return shared
        raise _not_found()

    def find(self, token: str) -> SharedCaptions:
        found = self._by_token.get(_token_hash(token))
        if found is None:
            raise _not_found()
        return found

    def end(self, shared: SharedCaptions) -> None:
        shared.end()
        self._by_token.pop(_token_hash(shared.token), None)

    @contextmanager
    def reading(self, shared: SharedCaptions) -> Iterator[None]:
        """Count a reader; wake the publisher, which reports the number. Raises: ApiError 429."""
        self._check_readers()
        self._count(shared, 1)
        try:
            yield
        finally:
            self._count(shared, -1)

    def check_reader(self, token: str) -> None:
        self.find(token)
        self._check_readers()

    def _check_readers(self) -> None:
        if self.n_readers >= self._readers:
            raise too_many_requests(f"{self._readers} readers are here: try again later", retry_s=10.0)

    def _count(self, shared: SharedCaptions, change: int) -> None:
        self.n_readers += change
        shared.n_readers += change
        shared.wake()


def _token_hash(token: str) -> bytes:
    """Return the hash of a token, so that look-up times reveal nothing about tokens."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _not_found() -> ApiError:
    message = "captions: expected the link of a session that goes on, got one that is over or never was"
    return ApiError(message, status=404, code="no_such_captions")


def read_publication(message: bytes | str) -> tuple[str, CaptionChange | None]:
    """Read a message: its type, and the change of `captions`. Raises: ApiError 400."""
    if isinstance(message, bytes) or len(message) > MAX_MESSAGE_CHARACTERS:
        raise ApiError(
            f"message: expected text of at most {MAX_MESSAGE_CHARACTERS} characters", code="invalid_message"
        )
    given = read_typed_message(message, "a JSON object with a type")
    kind = str(given.pop("type"))
    if kind == "captions":
        require_only(kind, given, CAPTIONS)
        return kind, read_change(given)
    if kind not in ("keepalive", "close"):
        raise invalid_value("type", "captions, keepalive or close", quoted(kind))
    require_only(kind, given, ())
    return kind, None


def read_change(given: Mapping[str, object]) -> CaptionChange:
    utterances = [
        read_utterance(one) for one in read_items("utterances", given.get("utterances"), MAX_UTTERANCES)
    ]
    parts: dict[str, Json] = {}
    if "now" in given:
        parts["now"] = None if given["now"] is None else read_utterance(given["now"])
    if "names" in given:
        parts["names"] = read_names(given["names"])
    by_number = {cast("int", utterance["id"]): utterance for utterance in utterances}
    return CaptionChange(by_number, parts, is_clear=given.get("clear") is True)


def read_utterance(value: object) -> dict[str, Json]:
    given = read_object("utterance", value)
    require_only("utterance", given, UTTERANCE)
    number = read_int("id", given.get("id"))
    if not 0 <= number < MAX_NUMBER:
        raise invalid_value("id", f"a number from 0 to {MAX_NUMBER - 1}", quoted(number))
    return {
        "id": number,
        **read_times(given),
        "language": read_label("language", given.get("language")),
        "words": [read_word(word) for word in read_items("words", given.get("words"), MAX_WORDS)],
        "translation": read_line("translation", given.get("translation")),
        "unstable": read_line("unstable", given.get("unstable")),
    }


def read_word(value: object) -> dict[str, Json]:
    given = read_object("word", value)
    require_only("word", given, WORD)
    return {
        "word": read_text("word", given.get("word"), MAX_TEXT),
        **read_times(given),
        "language": read_label("language", given.get("language")),
        "speaker": read_label("speaker", given.get("speaker")),
    }


def read_line(name: str, value: object) -> dict[str, Json] | None:
    if value is None:
        return None
    given = read_object(name, value)
    require_only(name, given, ("text", "language"))
    text = read_text(name, given.get("text"), MAX_TEXT)
    return {"text": text, "language": read_label("language", given.get("language"))}


def read_names(value: object) -> dict[str, Json]:
    given = read_object("names", value)
    if len(given) > MAX_NAMES:
        raise invalid_value("names", f"at most {MAX_NAMES}", str(len(given)))
    return {str(read_label("names", letter)): read_label("names", name) for letter, name in given.items()}


def read_times(given: Mapping[str, object]) -> dict[str, Json]:
    return {name: seconds(read_number(name, given.get(name), 0.0, MAX_SECONDS)) for name in ("start", "end")}


def read_label(name: str, value: object) -> str | None:
    if value is not None and not (isinstance(value, str) and len(value) <= MAX_NAME):
        raise invalid_value(name, f"a text of at most {MAX_NAME} characters, or null", quoted(value))
    return value


def read_items(name: str, value: object, most: int) -> list[object]:
    items = [] if value is None else value
    if not isinstance(items, list) or len(items) > most:
        raise invalid_value(name, f"a list of at most {most}", quoted(value))
    return items
