"""`/v1/captions`: one client publishes captions; `/v1/captions/read`: many read them (docs/protocol.md).

Secrets are subprotocols of the socket: pages can send no headers, and proxies log addresses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from sottovoce.formats.document import Json, seconds
from sottovoce.serving.access.gate import CAPTIONS_PATH, SUBPROTOCOL
from sottovoce.serving.captions import CaptionChange, CaptionRegistry, SharedCaptions
from sottovoce.serving.live.connection import DONE, GOING_DOWN, off_loop
from sottovoce.serving.live.transport import GoneError, WebSocketTransport, own_error
from sottovoce.serving.parsing.faults import ApiError, logged_fault, wrong
from sottovoce.serving.parsing.values import (
    number_of,
    read_object,
    read_typed_message,
    read_whole,
    require_only,
    shown,
)
from sottovoce.serving.services import services_of

READ_PREFIX, RESUME_PREFIX = "sottovoce-captions.", "sottovoce-resume."
"""Subprotocols that begin so end with a reader's token, or with the secret of a publisher that reconnects."""
TOKEN_HEADER, RESUME_HEADER = "x-captions-token", "x-captions-resume"
"""Headers with the same secrets, in a request for the reason why a socket is refused."""
COME_AGAIN_S = 60.0
"""How long captions are kept whose publisher was cut off."""


class CaptionSocket:
    """One publisher or reader at a WebSocket."""

    def __init__(self, socket: WebSocket) -> None:
        self.services = services_of(socket)
        self.limits = self.services.settings.limits
        self.registry: CaptionRegistry = self.services.captions
        self.socket = socket
        self.transport = WebSocketTransport(socket, self.limits)

    async def serve(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work, which accepts the socket; an error before that refuses it, a later one closes it."""
        try:
            await work()
        except GoneError:
            return
        except Exception as error:
            fault = logged_fault(error, self.transport.request_id, "captions failed")
            with anyio.move_on_after(self.limits.send_s), suppress(GoneError):
                await self.transport.fail(fault, own_error(fault))

    def offered(self, prefix: str) -> str | None:
        """Return what the client offers behind the prefix of a subprotocol; None: nothing."""
        offers: Sequence[str] = self.socket.scope["subprotocols"]
        return next((offer.removeprefix(prefix) for offer in offers if offer.startswith(prefix)), None)

    async def until_first(self, *tasks: Callable[[], Awaitable[None]]) -> None:
        """Run tasks until one of them ends. Raises: what that raised."""
        failed: list[Exception] = []
        async with anyio.create_task_group() as group:

            async def run(task: Callable[[], Awaitable[None]]) -> None:
                try:
                    await task()
                except Exception as error:
                    failed.append(error)
                group.cancel_scope.cancel()

            for task in tasks:
                group.start_soon(run, task)
        if failed:
            raise failed[0]

    async def until_leaving(self) -> None:
        """Close when the server goes down. Raises: GoneError."""
        await self.services.until_leaving()
        await self.transport.close(GOING_DOWN, "the server is shutting down")


async def captions_refusal(request: Request) -> Response:
    """Answer over HTTP with the reason why a socket is refused, which pages cannot see of their socket.

    Raises: ApiError with the reason; 426 where the socket would be accepted.
    """
    captions: CaptionRegistry = services_of(request).captions
    token, secret = request.headers.get(TOKEN_HEADER), request.headers.get(RESUME_HEADER)
    if request.url.path != CAPTIONS_PATH:
        captions.check_reader(token or "")
    elif secret is not None:
        captions.resumed(secret)
    else:
        captions.check_room()
    raise ApiError(f"{request.url.path}: expected a WebSocket", status=426, code="upgrade_required")


async def publish(socket: WebSocket) -> None:
    """Take captions from a publisher, until it closes them or does not reconnect."""
    await Publisher(socket).publish()


async def read(socket: WebSocket) -> None:
    """Send captions to one reader: all so far, then what changes."""
    await Reader(socket).read()


class Publisher(CaptionSocket):
    """The publisher of captions: a page with a microphone, or a program that follows a session."""

    async def publish(self) -> None:
        """Serve the socket; captions that were cut off are kept for `COME_AGAIN_S`."""
        await self.serve(self._begin)

    async def _begin(self) -> None:
        secret = self.offered(RESUME_PREFIX)
        shared = self.registry.begin() if secret is None else self.registry.resumed(secret)
        number = shared.begin_publishing()
        is_over = True
        try:
            await self.transport.accept(SUBPROTOCOL)
            await self.transport.send(
                {"type": "ready", "token": shared.token, "resume": shared.secret, "revision": shared.revision}
            )
            await self.until_first(
                lambda: self._take(shared),
                lambda: self._report_readers(shared),
                lambda: self._until_replaced(shared, number),
                self.until_leaving,
            )
        except GoneError:
            is_over = False
        finally:
            if shared.publisher == number and (is_over or self.services.is_leaving):
                self.registry.end(shared)
        if not is_over:
            await self._wait_for_another(shared, number)

    async def _until_replaced(self, shared: SharedCaptions, number: int) -> None:
        """Wait for another publisher with the secret: who comes again is believed, the older one may be dead.

        Raises: ApiError then.
        """
        while shared.publisher == number:
            await shared.changed.wait()
        message = "captions: expected one publisher, and another has come since"
        raise ApiError(message, status=409, code="another_publisher")

    async def _take(self, shared: SharedCaptions) -> None:
        while (message := await self.transport.receive()) is not None:
            if shared.age_s > self.limits.session_s:
                text = f"captions: expected at most {self.limits.session_s:g} s of a session"
                raise ApiError(text, code="session_too_long")
            kind, change = await off_loop(len(message), partial(read_publication, message))
            if kind == "close":
                await self.transport.close(DONE)
                return
            if change is not None:
                shared.take(change)

    async def _report_readers(self, shared: SharedCaptions) -> None:
        """Report to who publishes how many read, when that changes."""
        reported = 0
        while True:
            changed = shared.changed
            if shared.n_readers != reported:
                reported = shared.n_readers
                await self.transport.send({"type": "readers", "readers": reported})
            await changed.wait()

    async def _wait_for_another(self, shared: SharedCaptions, number: int) -> None:
        """Keep captions until somebody publishes them again, or the time for that is over."""
        with anyio.move_on_after(COME_AGAIN_S):
            await self.services.until_leaving()
        if shared.publisher == number:
            self.registry.end(shared)


class Reader(CaptionSocket):
    """A read-only subscriber of shared captions."""

    async def read(self) -> None:
        """Serve the socket."""
        await self.serve(self._begin)

    async def _begin(self) -> None:
        shared = self.registry.find(self.offered(READ_PREFIX) or "")
        with self.registry.reading(shared):
            await self.transport.accept(SUBPROTOCOL)
            await self.until_first(lambda: self._send(shared), self._listen, self.until_leaving)

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
                await self.transport.close(DONE)
                return
            else:
                await changed.wait()

    async def _listen(self) -> None:
        """Notice that the reader goes. Raises: GoneError; ApiError for what it says."""
        if (await self.socket.receive())["type"] == "websocket.disconnect":
            raise GoneError
        raise ApiError("captions: expected a reader to read, got a message", code="invalid_message")


MAX_MESSAGE_CHARACTERS = 2_000_000
"""Of one message: a whole session that is published anew may take several."""
MAX_UTTERANCES = 2_000
"""In one message."""
MAX_WORDS = 2_000
"""Of one utterance."""
MAX_TEXT = 8_000
"""Characters of a word, a translation, a text that may change."""
MAX_NAMES = 100
MAX_NAME = 80
MAX_SECONDS = 1e6
MAX_NUMBER = 1_000_000
CAPTIONS = ("utterances", "now", "names", "clear")
UTTERANCE = ("id", "start", "end", "language", "words", "translation", "unstable")
WORD = ("word", "start", "end", "language", "speaker")


def read_publication(message: bytes | str) -> tuple[str, CaptionChange | None]:
    """Read a message; returns its type, and the change of `captions`.

    Raises: ApiError 400.
    """
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
        raise wrong("type", "captions, keepalive or close", shown(kind))
    require_only(kind, given, ())
    return kind, None


def read_change(given: Mapping[str, object]) -> CaptionChange:
    """Read what is changed at once. Raises: ApiError 400."""
    utterances = [
        read_utterance(one) for one in read_items("utterances", given.get("utterances"), MAX_UTTERANCES)
    ]
    now = given.get("now")
    return CaptionChange(
        utterances={cast("int", utterance["id"]): utterance for utterance in utterances},
        now=None if now is None else read_utterance(now),
        names=read_names(given.get("names", {})),
        has_now="now" in given,
        has_names="names" in given,
        is_clear=given.get("clear") is True,
    )


def read_utterance(value: object) -> dict[str, Json]:
    """Read one utterance. Raises: ApiError 400."""
    given = read_object("utterance", value)
    require_only("utterance", given, UTTERANCE)
    number = read_whole("id", given.get("id"))
    if not 0 <= number < MAX_NUMBER:
        raise wrong("id", f"a number from 0 to {MAX_NUMBER - 1}", shown(number))
    return {
        "id": number,
        **read_times(given),
        "language": read_label("language", given.get("language")),
        "words": [read_word(word) for word in read_items("words", given.get("words"), MAX_WORDS)],
        "translation": read_line("translation", given.get("translation")),
        "unstable": read_line("unstable", given.get("unstable")),
    }


def read_word(value: object) -> dict[str, Json]:
    """Read one word of an utterance. Raises: ApiError 400."""
    given = read_object("word", value)
    require_only("word", given, WORD)
    return {
        "word": read_words_text("word", given.get("word")),
        **read_times(given),
        "language": read_label("language", given.get("language")),
        "speaker": read_label("speaker", given.get("speaker")),
    }


def read_line(name: str, value: object) -> dict[str, Json] | None:
    """Read a text in one language, or null. Raises: ApiError 400."""
    if value is None:
        return None
    given = read_object(name, value)
    require_only(name, given, ("text", "language"))
    text = read_words_text(name, given.get("text"))
    return {"text": text, "language": read_label("language", given.get("language"))}


def read_names(value: object) -> dict[str, Json]:
    """Read what speakers are called, by their letters. Raises: ApiError 400."""
    given = read_object("names", value)
    if len(given) > MAX_NAMES:
        raise wrong("names", f"at most {MAX_NAMES}", str(len(given)))
    return {str(read_label("names", letter)): read_label("names", name) for letter, name in given.items()}


def read_times(given: Mapping[str, object]) -> dict[str, Json]:
    """Read where something begins and ends, in seconds. Raises: ApiError 400."""
    return {name: seconds(number_of(name, given.get(name), 0.0, MAX_SECONDS)) for name in ("start", "end")}


def read_label(name: str, value: object) -> str | None:
    """Read a code, a letter, a name, or null. Raises: ApiError 400."""
    if value is not None and not (isinstance(value, str) and len(value) <= MAX_NAME):
        raise wrong(name, f"a text of at most {MAX_NAME} characters, or null", shown(value))
    return value


def read_words_text(name: str, value: object) -> str:
    """Read a text that is shown. Raises: ApiError 400."""
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise wrong(name, f"a text of at most {MAX_TEXT} characters", shown(value))
    return value


def read_items(name: str, value: object, most: int) -> list[object]:
    """Read a list, of which none is an empty one. Raises: ApiError 400."""
    items = [] if value is None else value
    if not isinstance(items, list) or len(items) > most:
        raise wrong(name, f"a list of at most {most}", shown(value))
    return items
