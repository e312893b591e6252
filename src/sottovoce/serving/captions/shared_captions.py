"""Captions that one page or program publishes, and many read: what stands there now, and what has changed.

Everything is kept in memory, as long as its session goes on, and nothing longer. Who reads too slowly misses
no text: what changed several times meanwhile is sent once. Knows no web framework.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from sottovoce.formats.document import Json, json_text
from sottovoce.serving.parsing.faults import ApiError, busy

TOKEN_BYTES = 16
"""Of what a reader must know: 128 bits, which nobody guesses."""
MAX_CAPTIONS_CHARACTERS = 16_000_000
"""Of all utterances of one session as JSON: about twenty hours of speech."""


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
    """The captions of one session. token: of its readers. secret: of who publishes, to come again with.

    Used in the event loop alone.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.secret = secrets.token_urlsafe(TOKEN_BYTES)
        self.revision = 0
        self._began_s = time.monotonic()
        self.n_readers = 0
        self.is_ended = False
        self.publisher = 0
        """The number of the newest one."""
        self.changed = anyio.Event()
        self._utterances: dict[int, tuple[int, str]] = {}  # in the order of their last change
        self._parts: dict[str, tuple[int, str]] = {"now": (0, "null"), "names": (0, "{}")}
        self._cleared = 0
        self._n_characters = 0

    @property
    def age_s(self) -> float:
        """Seconds since the session began to be shared."""
        return time.monotonic() - self._began_s

    def take(self, change: CaptionChange) -> None:
        """Change what stands there, and wake readers if it is new. Raises: ApiError where it is too long."""
        revision = self.revision + 1
        is_changed = change.is_clear
        if change.is_clear:
            self._cleared, self._n_characters = revision, 0
            self._utterances.clear()
            self._parts = {"now": (revision, "null"), "names": (revision, "{}")}
        for number, utterance in change.utterances.items():
            _, before = self._utterances.get(number, (0, ""))
            text = json_text(utterance)
            if text == before:
                continue
            is_changed = True
            self._n_characters += len(text) - len(before)
            self._utterances.pop(number, None)
            self._utterances[number] = (revision, text)
        is_changed |= change.has_now and self._replace("now", change.now, revision)
        is_changed |= change.has_names and self._replace("names", change.names, revision)
        if not is_changed:
            return
        self.revision = revision
        self.wake()
        if self._n_characters > MAX_CAPTIONS_CHARACTERS:
            message = f"captions: expected at most {MAX_CAPTIONS_CHARACTERS} characters of them in a session"
            raise ApiError(message, code="captions_too_long")

    def _replace(self, name: str, value: Json, revision: int) -> bool:
        """Change a part; return whether it is another one."""
        text = json_text(value)
        if text == self._parts[name][1]:
            return False
        self._parts[name] = (revision, text)
        return True

    def begin_publishing(self) -> int:
        """Return the number of another publisher, in whose place the one before publishes no more."""
        self.publisher += 1
        self.wake()
        return self.publisher

    def end(self) -> None:
        """Tell readers that no more comes."""
        self.is_ended = True
        self.wake()

    def since(self, revision: int) -> str | None:
        """Return one message with all that has changed since a revision, -1: all; None: nothing has."""
        if revision == self.revision:
            return None
        parts = ['"type":"captions"', f'"revision":{self.revision}']
        if 0 <= revision < self._cleared:
            parts.append('"clear":true')
        if utterances := ",".join(self._newer(revision)):
            parts.append(f'"utterances":[{utterances}]')
        parts += [f'"{name}":{text}' for name, (changed, text) in self._parts.items() if changed > revision]
        return "{" + ",".join(parts) + "}"

    def _newer(self, revision: int) -> Sequence[str]:
        """Return utterances that changed later, in the order in which they did."""
        newer = []
        for changed, text in reversed(self._utterances.values()):
            if changed <= revision:
                break
            newer.append(text)
        return newer[::-1]

    def wake(self) -> None:
        """Let all look again who wait for a change."""
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

    def begin(self) -> SharedCaptions:
        """Share another session's captions. Raises: ApiError 429 where too many are."""
        if self.n_shared >= self._sessions:
            raise busy(f"{self._sessions} sessions are being shared: try again later", retry_s=10.0)
        shared = SharedCaptions()
        self._by_token[_key(shared.token)] = shared
        return shared

    def resumed(self, secret: str) -> SharedCaptions:
        """Return what a publisher who was cut off goes on with. Raises: ApiError 404 where that is over."""
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
        """Take a reader's place, and wake who publishes to count it.

        Raises: ApiError 429 where there is none.
        """
        if self.n_readers >= self._readers:
            raise busy(f"{self._readers} readers are here: try again later", retry_s=10.0)
        self._count(shared, 1)
        try:
            yield
        finally:
            self._count(shared, -1)

    def _count(self, shared: SharedCaptions, change: int) -> None:
        self.n_readers += change
        shared.n_readers += change
        shared.wake()


def _key(token: str) -> bytes:
    """Return what a token is found by: how long that takes tells nothing of the token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _nothing_there() -> ApiError:
    message = "captions: expected the link of a session that goes on, got one that is over or never was"
    return ApiError(message, status=404, code="no_such_captions")
