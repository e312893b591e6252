"""Captions that one client publishes and many read: their present state, and changes since a revision.

They are kept in memory for as long as their session lasts. A reader has a revision up to which it has
read, and gets newer changes page by page; an utterance that changed several times is sent once. A page is
serialised once for all readers. This module does not depend on a web framework.
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

import anyio

from sottovoce.formats.document import Json, json_text
from sottovoce.serving.parsing.faults import ApiError, busy

TOKEN_BYTES = 16
"""The length of a secret: 128 bits, which nobody guesses."""
MAX_CAPTIONS_CHARACTERS = 16_000_000
"""The most that all utterances of one session have as JSON: about twenty hours of speech."""
KEPT_PAGES = 32
"""The most pages that are kept serialised, for readers at different revisions."""
PAGE_CHARACTERS = 32_000
"""The length of a message to a reader; one utterance may be longer."""


@dataclass(frozen=True, slots=True)
class Page:
    """A message to readers. revision: up to which they have read with it."""

    text: str
    revision: int


@dataclass(frozen=True, slots=True)
class CaptionChange:
    """What a publisher changes at once.

    utterances: by number, each replacing the one before; one without words takes it away. now: the one being
    spoken, or None. names: of speakers. has_now, has_names: whether these are said at all. is_clear: all that
    was there before goes first.
    """

    utterances: Mapping[int, Json] = field(default_factory=dict)
    now: Json = None
    names: Json = None
    has_now: bool = False
    has_names: bool = False
    is_clear: bool = False


class SharedCaptions:
    """The captions of one session. token: of its readers. secret: of its publisher, to reconnect with.

    Used on the event loop only.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.secret = secrets.token_urlsafe(TOKEN_BYTES)
        self.revision = 0
        """The number of the last change of an utterance or a part."""
        self._began_s = time.monotonic()
        self.n_readers = 0
        self.is_ended = False
        self.publisher = 0
        """The number of the newest one."""
        self.changed = anyio.Event()
        self._utterances: dict[int, tuple[int, str]] = {}
        """By number: the revision of the last change, and the JSON."""
        self._changes: list[tuple[int, int]] = []
        """Revision and number of each change of an utterance; some are not the last one of theirs."""
        self._pages: dict[int, Page] = {}
        """By the revision after which they begin, as long as nothing changes."""
        self._parts: dict[str, tuple[int, str]] = {"now": (0, "null"), "names": (0, "{}")}
        self._cleared = 0
        self._n_characters = 0

    @property
    def age_s(self) -> float:
        """Seconds since the session began to be shared."""
        return time.monotonic() - self._began_s

    def take(self, change: CaptionChange) -> None:
        """Apply a change, and wake readers if there is anything new. Raises: ApiError for too much text."""
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
        if change.has_now:
            self._replace("now", change.now)
        if change.has_names:
            self._replace("names", change.names)
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
        """Change a part, if it is another one."""
        text = json_text(value)
        if text != self._parts[name][1]:
            self.revision += 1
            self._parts[name] = (self.revision, text)

    def _is_last(self, revision: int, number: int) -> bool:
        """Return whether an utterance has not changed since a revision."""
        return self._utterances[number][0] == revision

    def begin_publishing(self) -> int:
        """Return the number of a new publisher; the one before it publishes no more."""
        self.publisher += 1
        self.wake()
        return self.publisher

    def end(self) -> None:
        """End the captions for their readers."""
        self.is_ended = True
        self.wake()

    def page(self, revision: int) -> Page | None:
        """Return the next page with what has changed since a revision, -1: all; None: nothing has."""
        if revision == self.revision:
            return None
        if revision not in self._pages:
            if len(self._pages) >= KEPT_PAGES:
                self._pages.clear()
            self._pages[revision] = self._page(revision)
        return self._pages[revision]

    def _page(self, revision: int) -> Page:
        """Make a message of changes since a revision, in their order, until it is long enough."""
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
        """Wake every task that waits for a change."""
        self.changed.set()
        self.changed = anyio.Event()


class CaptionRegistry:
    """All captions that are being shared. sessions, readers: at a time."""

    def __init__(self, *, sessions: int, readers: int) -> None:
        self._sessions = sessions
        self._readers = readers
        self._by_token: dict[bytes, SharedCaptions] = {}
        self.n_readers = 0

    @property
    def n_shared(self) -> int:
        """Sessions that are being shared."""
        return len(self._by_token)

    def check_room(self) -> None:
        """Check that another session may be shared. Raises: ApiError 429."""
        if self.n_shared >= self._sessions:
            raise busy(f"{self._sessions} sessions are being shared: try again later", retry_s=10.0)

    def begin(self) -> SharedCaptions:
        """Share another session's captions. Raises: ApiError 429 where too many are."""
        self.check_room()
        shared = SharedCaptions()
        self._by_token[_key(shared.token)] = shared
        return shared

    def resumed(self, secret: str) -> SharedCaptions:
        """Return the captions of a publisher that reconnects. Raises: ApiError 404 where they have ended."""
        for shared in self._by_token.values():
            if hmac.compare_digest(shared.secret.encode(), secret.encode("utf-8", "replace")):
                return shared
        raise _nothing_there()

    def find(self, token: str) -> SharedCaptions:
        """Return the captions of a reader's token. Raises: ApiError 404."""
        found = self._by_token.get(_key(token))
        if found is None:
            raise _nothing_there()
        return found

    def end(self, shared: SharedCaptions) -> None:
        """End and forget captions."""
        shared.end()
        self._by_token.pop(_key(shared.token), None)

    @contextmanager
    def reading(self, shared: SharedCaptions) -> Iterator[None]:
        """Count a reader, and wake the publisher, which reports the number.

        Raises: ApiError 429 where there is none.
        """
        self._check_readers()
        self._count(shared, 1)
        try:
            yield
        finally:
            self._count(shared, -1)

    def check_reader(self, token: str) -> None:
        """Check that a reader with a token may come. Raises: ApiError 404, 429."""
        self.find(token)
        self._check_readers()

    def _check_readers(self) -> None:
        if self.n_readers >= self._readers:
            raise busy(f"{self._readers} readers are here: try again later", retry_s=10.0)

    def _count(self, shared: SharedCaptions, change: int) -> None:
        self.n_readers += change
        shared.n_readers += change
        shared.wake()


def _key(token: str) -> bytes:
    """Return the key of a token, a hash: the time of a look-up says nothing about the token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _nothing_there() -> ApiError:
    message = "captions: expected the link of a session that goes on, got one that is over or never was"
    return ApiError(message, status=404, code="no_such_captions")
