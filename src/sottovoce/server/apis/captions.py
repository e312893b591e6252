"""`/v1/captions`: one client publishes captions; `/v1/captions/read`: many read them (docs/protocol.md).

A reader gets the changes since its revision page by page, an utterance that changed several times once. A
page is serialised once for all readers. Secrets are subprotocols: proxies log addresses.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Annotated, TypeAlias, cast

import anyio
from msgspec import UNSET, Meta, Struct, UnsetType, field, to_builtins
from starlette.requests import HTTPConnection
from starlette.status import WS_1000_NORMAL_CLOSURE, WS_1012_SERVICE_RESTART
from starlette.websockets import WebSocket

from sottovoce.formats.document import Json, json_text
from sottovoce.server import fields, live
from sottovoce.server.api import Api, Auth, SocketRoute
from sottovoce.server.apis.sottovoce_live import SUBPROTOCOL
from sottovoce.server.errors import (
    ApiError,
    invalid_options,
    invalid_value,
    shutting_down,
    too_many_requests,
)
from sottovoce.server.services import Services, run_until_first, services_of
from sottovoce.text.files import from_plain

READ_PREFIX, RESUME_PREFIX = "sottovoce-captions.", "sottovoce-resume."
"""Subprotocols that end with a reader's token, or with the secret of a publisher that reconnects."""
SECRET = re.compile(r"[\w-]{30}", re.ASCII)
RESUME_WITHIN_S = 60.0
MAX_CAPTIONS_CHARACTERS = 16_000_000
"""Of all utterances of a session as JSON: about twenty hours of speech."""
MAX_MESSAGE_CHARACTERS = 2_000_000
MAX_ITEMS = 2_000
"""Of a list: utterances of a message, words of an utterance."""
MAX_NAMES, MAX_NAME = 100, 80


@dataclass(frozen=True, slots=True)
class Page:
    """A message to readers. revision: that of a reader who has read it."""

    text: str
    revision: int


class SharedCaptions:
    """The captions of one session, not thread-safe. secret: to publish again. token: of its readers, which
    follows from the secret, so that it is the same in the next process.
    """

    def __init__(self, secret: str = "") -> None:
        self.secret = secret or secrets.token_urlsafe(16)
        self.token = urlsafe_b64encode(_hash(f"readers of {self.secret}")[:16]).decode().rstrip("=")
        self.revision = 0
        self.began_s = time.monotonic()
        self.n_readers = 0
        self.is_ended = False
        self.publisher = 0
        self.changed = anyio.Event()
        self._utterances: dict[int, tuple[int, str]] = {}
        """By number: the revision of the last change, in whose order they are, and the JSON."""
        self._pages: dict[int, Page] = {}
        """By the revision after which they begin."""
        self._parts: dict[str, tuple[int, str]] = {"now": (0, "null"), "names": (0, "{}")}
        self._cleared = 0
        self._n_characters = 0

    def apply(self, changes: Mapping[str, Json]) -> None:
        """Apply the fields of a `captions` message. Raises: ApiError for too much text."""
        before_all = self.revision
        if changes.get("clear") is True:
            self.revision += 1
            self._cleared, self._n_characters = self.revision, 0
            self._utterances.clear()
            self._parts |= {"now": (self.revision, "null"), "names": (self.revision, "{}")}
        utterances = cast("list[dict[str, Json]]", changes.get("utterances", []))
        for number, utterance in {cast(int, each["id"]): each for each in utterances}.items():
            _, before = self._utterances.get(number, (0, ""))
            text = json_text(utterance)
            if text == before:
                continue
            self.revision += 1
            self._n_characters += len(text) - len(before)
            self._utterances.pop(number, None)
            self._utterances[number] = (self.revision, text)
        for name in [name for name in ("now", "names", "stopped") if name in changes]:
            text = json_text(changes[name])
            if text != self._parts.get(name, (0, "null"))[1]:
                self.revision += 1
                self._parts[name] = (self.revision, text)
        if self.revision == before_all:
            return
        self._pages.clear()
        self.wake()
        if self._n_characters > MAX_CAPTIONS_CHARACTERS:
            message = f"captions: expected at most {MAX_CAPTIONS_CHARACTERS} characters of them in a session"
            raise ApiError(message, code="captions_too_long")

    def page(self, revision: int) -> Page | None:
        """Return the next page of changes since a revision (-1: all), or None."""
        if revision == self.revision:
            return None
        if revision not in self._pages:
            if len(self._pages) >= 32:  # pages of revisions; readers ask for the newest
                self._pages.clear()
            self._pages[revision] = self._page(revision)
        return self._pages[revision]

    def _page(self, revision: int) -> Page:
        utterances: list[str] = []
        n_characters, end = 0, self.revision
        newest_first = takewhile(lambda entry: entry[0] > revision, reversed(self._utterances.values()))
        for changed, text in reversed(list(newest_first)):
            n_characters += len(text)
            # Characters of a message to a reader; one utterance may be longer.
            if utterances and n_characters > 32_000:
                end = changed - 1
                break
            utterances.append(text)
        members = ['"type":"captions"', f'"revision":{end}']
        if 0 <= revision < self._cleared:
            members.append('"clear":true')
        if utterances:
            members.append(f'"utterances":[{",".join(utterances)}]')
        parts = self._parts.items()
        members += [f'"{name}":{text}' for name, (changed, text) in parts if revision < changed <= end]
        return Page("{" + ",".join(members) + "}", end)

    def wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


class CaptionRegistry:
    """All shared captions."""

    def __init__(self, services: Services) -> None:
        self._sessions = services.settings.limits.sessions
        self._readers = services.settings.limits.readers
        self._by_token: dict[bytes, SharedCaptions] = {}
        self._process = secrets.token_urlsafe(6)
        """The beginning of all secrets of this process."""
        self.n_readers = 0
        gauge = services.metrics.gauge("caption_readers", "Readers of captions that are shared.")
        gauge.set_function(lambda: self.n_readers)

    @property
    def n_shared(self) -> int:
        return len(self._by_token)

    def check_capacity(self) -> None:
        if self.n_shared >= self._sessions:
            raise too_many_requests(f"{self._sessions} sessions are being shared: try again later")

    def begin(self, secret: str | None = None) -> SharedCaptions:
        self.check_capacity()
        shared = SharedCaptions(secret or self._process + secrets.token_urlsafe(16))
        self._by_token[_hash(shared.token)] = shared
        return shared

    def resumed(self, secret: str) -> SharedCaptions:
        """Return the captions of a publisher that reconnects; new ones for a publisher of an earlier process,
        so that its readers' link stays valid. Raises: ApiError 404.
        """
        if (shared := self._published_with(secret)) is not None:
            return shared
        if not self._is_of_earlier_process(secret):
            raise _not_found()
        return self.begin(secret)

    def check_resumable(self, secret: str) -> None:
        if self._published_with(secret) is None and not self._is_of_earlier_process(secret):
            raise _not_found()

    def _published_with(self, secret: str) -> SharedCaptions | None:
        for shared in self._by_token.values():
            if hmac.compare_digest(shared.secret.encode(), secret.encode("utf-8", "replace")):
                return shared
        return None

    def _is_of_earlier_process(self, secret: str) -> bool:
        return SECRET.fullmatch(secret) is not None and not secret.startswith(self._process)

    def find(self, token: str) -> SharedCaptions:
        session = self._by_token.get(_hash(token))
        if session is None:
            raise _not_found()
        return session

    def end(self, shared: SharedCaptions) -> None:
        shared.is_ended = True
        shared.wake()
        self._by_token.pop(_hash(shared.token), None)

    @contextmanager
    def reading(self, shared: SharedCaptions) -> Iterator[None]:
        """Count a reader, and wake the publisher, which reports their number. Raises: ApiError 429."""
        self.check_readers()
        self._count(shared, 1)
        try:
            yield
        finally:
            self._count(shared, -1)

    def check_readers(self) -> None:
        if self.n_readers >= self._readers:
            raise too_many_requests(f"{self._readers} readers are here: try again later")

    def _count(self, shared: SharedCaptions, change: int) -> None:
        self.n_readers += change
        shared.n_readers += change
        shared.wake()


def _hash(secret: str) -> bytes:
    """Return a hash: look-up times reveal nothing about tokens."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


def _not_found() -> ApiError:
    message = "captions: expected the link of a session that goes on, got one that is over or never was"
    return ApiError(message, status=404, code="no_such_captions")


Text: TypeAlias = Annotated[str, Meta(max_length=8_000)]
Label: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e6)]
"""At most 11 days."""


class SpokenWord(Struct, forbid_unknown_fields=True):
    word: Text
    start: Seconds
    end: Seconds
    language: Label | None = None
    speaker: Label | None = None


class WrittenText(Struct, forbid_unknown_fields=True):
    text: Text
    language: Label | None = None


class Utterance(Struct, forbid_unknown_fields=True):
    """Without words it removes the utterance of its number."""

    id: Annotated[int, Meta(ge=0, lt=1_000_000)]
    start: Seconds
    end: Seconds
    language: Label | None = None
    words: Annotated[list[SpokenWord], Meta(max_length=MAX_ITEMS)] = field(default_factory=list)
    translation: WrittenText | None = None
    unstable: WrittenText | None = None


class Captions(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of a `captions` message. now: the utterance in progress. stopped: when the speaker stopped,
    in milliseconds since 1970.
    """

    utterances: Annotated[list[Utterance], Meta(max_length=MAX_ITEMS)] = field(default_factory=list)
    now: Utterance | UnsetType | None = UNSET
    names: Annotated[dict[Label, Label | None], Meta(max_length=MAX_NAMES)] | UnsetType = UNSET
    stopped: Annotated[float, Meta(ge=0.0, le=10000000000000.0)] | UnsetType | None = UNSET
    clear: bool = False


class Nothing(Struct, forbid_unknown_fields=True):
    """The fields of `keepalive` and `close`."""


def read_publication(message: bytes | str) -> tuple[str, dict[str, Json]]:
    """Read a message: its type, and the fields of `captions`. Raises: ApiError 400."""
    if isinstance(message, bytes) or len(message) > MAX_MESSAGE_CHARACTERS:
        raise ApiError(
            f"message: expected text of at most {MAX_MESSAGE_CHARACTERS} characters", code="invalid_message"
        )
    given = fields.read_typed_message(message, "a JSON object with a type")
    kind = str(given.pop("type"))
    if kind not in ("captions", "keepalive", "close"):
        raise invalid_value("type", "captions, keepalive or close", fields.quoted(kind))
    with invalid_options(kind):
        changes = from_plain(Captions if kind == "captions" else Nothing, given, kind)
    return kind, to_builtins(changes)


def captions_of(connection: HTTPConnection) -> CaptionRegistry:
    return cast(CaptionRegistry, connection.app.state.captions)


def check_draining(connection: HTTPConnection) -> None:
    """Raises: ApiError 503, after which publishers and readers try again."""
    if services_of(connection).draining.is_set():
        raise shutting_down()


def check_publisher(connection: HTTPConnection) -> None:
    check_draining(connection)
    secret = connection.headers.get("x-captions-resume")
    if secret is not None:
        captions_of(connection).check_resumable(secret)
    else:
        captions_of(connection).check_capacity()


def check_reader(connection: HTTPConnection) -> None:
    check_draining(connection)
    captions_of(connection).find(connection.headers.get("x-captions-token", ""))
    captions_of(connection).check_readers()


class CaptionSocket(ABC):
    def __init__(self, socket: WebSocket) -> None:
        self.services = services_of(socket)
        self.limits = self.services.settings.limits
        self.registry = captions_of(socket)
        self.socket = socket
        fields.note_ignored(socket, socket.query_params)
        self.transport = live.WebSocketTransport(socket, self.limits)

    @classmethod
    async def at(cls, socket: WebSocket) -> None:
        client = cls(socket)
        await live.serve_client(client.transport, client.serve, what="captions failed")

    @abstractmethod
    async def serve(self) -> None: ...

    def offered(self, prefix: str) -> str | None:
        offers: Sequence[str] = self.socket.scope["subprotocols"]
        return next((offer.removeprefix(prefix) for offer in offers if offer.startswith(prefix)), None)

    async def wait_draining(self) -> None:
        await self.services.draining.wait()
        await self.transport.close(WS_1012_SERVICE_RESTART, "the server is shutting down")


class Publisher(CaptionSocket):
    async def serve(self) -> None:
        check_draining(self.socket)
        secret = self.offered(RESUME_PREFIX)
        shared = self.registry.begin() if secret is None else self.registry.resumed(secret)
        shared.publisher = number = shared.publisher + 1  # replaces the one before
        shared.wake()
        is_over = True
        try:
            await self.transport.accept(SUBPROTOCOL)
            await self.transport.send(
                {
                    "type": "ready",
                    "token": shared.token,
                    "resume": shared.secret,
                    "revision": shared.revision,
                    "url": self.services.settings.listening.url_elsewhere(self.socket.url.port or 80),
                }
            )
            await run_until_first(
                lambda: self._take(shared),
                lambda: self._report_readers(shared),
                lambda: self._until_replaced(shared, number),
                self.wait_draining,
            )
        except live.ClientDisconnectedError:
            is_over = False
        finally:
            if shared.publisher == number and is_over and not self.services.draining.is_set():
                self.registry.end(shared)
        if not is_over:
            await self._wait_resumed(shared, number)

    async def _until_replaced(self, shared: SharedCaptions, number: int) -> None:
        while shared.publisher == number:
            await shared.changed.wait()
        message = "captions: expected one publisher, and another has come since"
        raise ApiError(message, status=409, code="another_publisher")

    async def _take(self, shared: SharedCaptions) -> None:
        while True:
            with anyio.move_on_after(self.limits.idle_s) as waiting:
                message = await self.transport.receive()
            if waiting.cancelled_caught:
                raise live.silent_too_long(self.limits.idle_s)
            if time.monotonic() - shared.began_s > self.limits.session_s:
                text = f"captions: expected at most {self.limits.session_s:g} s of a session"
                raise ApiError(text, code="session_too_long")
            kind, changes = await live.in_thread_if_large(len(message), partial(read_publication, message))
            if kind == "close":
                await self.transport.close(WS_1000_NORMAL_CLOSURE)
                return
            shared.apply(changes)

    async def _report_readers(self, shared: SharedCaptions) -> None:
        reported = 0
        while True:
            changed = shared.changed
            if shared.n_readers != reported:
                reported = shared.n_readers
                await self.transport.send({"type": "readers", "readers": reported})
            await changed.wait()

    async def _wait_resumed(self, shared: SharedCaptions, number: int) -> None:
        with anyio.move_on_after(RESUME_WITHIN_S) as waiting:
            await self.services.draining.wait()
        if shared.publisher == number and waiting.cancelled_caught:
            self.registry.end(shared)


class Reader(CaptionSocket):
    async def serve(self) -> None:
        check_draining(self.socket)
        shared = self.registry.find(self.offered(READ_PREFIX) or "")
        with self.registry.reading(shared):
            await self.transport.accept(SUBPROTOCOL)
            await run_until_first(lambda: self._send(shared), self._listen, self.wait_draining)

    async def _send(self, shared: SharedCaptions) -> None:
        seen = -1
        while True:
            changed, page = shared.changed, shared.page(seen)
            if page is not None:
                await self.transport.send_text(page.text)  # waits until most of the last one was taken
                seen = page.revision
                await anyio.sleep(0)  # others go first, where the system buffers megabytes for the reader
            elif shared.is_ended:
                await self.transport.send({"type": "ended"})
                await self.transport.close(WS_1000_NORMAL_CLOSURE)
                return
            else:
                await changed.wait()

    async def _listen(self) -> None:
        if (await self.socket.receive())["type"] == "websocket.disconnect":
            raise live.ClientDisconnectedError
        raise ApiError("captions: expected a reader to read, got a message", code="invalid_message")


API = Api(
    routes=(
        SocketRoute("/v1/captions", Publisher.at, check=check_publisher),
        SocketRoute("/v1/captions/read", Reader.at, Auth.OPEN, check_reader),
    )
)
