"""`/v1/captions`: one client publishes captions; `/v1/captions/read`: many read them (docs/protocol.md).

Secrets are subprotocols: pages can set no headers, and proxies log addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from sottovoce.server.api import Api, Auth, HttpRoute, SocketRoute
from sottovoce.server.apis.sottovoce_live import SUBPROTOCOL
from sottovoce.server.captions import CaptionRegistry, SharedCaptions, read_publication
from sottovoce.server.errors import ApiError, logged_api_error
from sottovoce.server.live import (
    NORMAL_CLOSURE,
    SERVICE_RESTART,
    ClientDisconnectedError,
    WebSocketTransport,
    in_thread_if_large,
    live_error,
)
from sottovoce.server.services import run_until_first, services_of

PUBLISH_PATH, READ_PATH = "/v1/captions", "/v1/captions/read"
READ_PREFIX, RESUME_PREFIX = "sottovoce-captions.", "sottovoce-resume."
"""Subprotocols that end with a reader's token, or with the secret of a publisher that reconnects."""
TOKEN_HEADER, RESUME_HEADER = "x-captions-token", "x-captions-resume"
"""The same secrets in a request for the reason why a socket is refused."""
RESUME_WITHIN_S = 60.0


class CaptionSocket:
    """A publisher or reader at a WebSocket."""

    def __init__(self, socket: WebSocket) -> None:
        self.services = services_of(socket)
        self.limits = self.services.settings.limits
        self.registry: CaptionRegistry = self.services.captions
        self.socket = socket
        self.transport = WebSocketTransport(socket, self.limits)

    async def begin(self) -> None:
        raise NotImplementedError

    async def serve(self) -> None:
        try:
            await self.begin()
        except ClientDisconnectedError:
            return
        except Exception as error:
            fault = logged_api_error(error, self.transport.request_id, "captions failed")
            with anyio.move_on_after(self.limits.send_s), suppress(ClientDisconnectedError):
                await self.transport.fail(fault, live_error(fault))

    def offered(self, prefix: str) -> str | None:
        offers: Sequence[str] = self.socket.scope["subprotocols"]
        return next((offer.removeprefix(prefix) for offer in offers if offer.startswith(prefix)), None)

    async def wait_draining(self) -> None:
        await self.services.draining.wait()
        await self.transport.close(SERVICE_RESTART, "the server is shutting down")


async def captions_refusal(request: Request) -> Response:
    """Answer over HTTP why a socket is refused, which browsers hide from pages.

    Raises: ApiError with the reason; 426 if the socket would be accepted.
    """
    captions: CaptionRegistry = services_of(request).captions
    token, secret = request.headers.get(TOKEN_HEADER), request.headers.get(RESUME_HEADER)
    if request.url.path == READ_PATH:
        captions.check_reader(token or "")
    elif secret is not None:
        captions.resumed(secret)
    else:
        captions.check_capacity()
    raise ApiError(f"{request.url.path}: expected a WebSocket", status=426, code="upgrade_required")


class Publisher(CaptionSocket):
    """The publisher of captions."""

    async def begin(self) -> None:
        secret = self.offered(RESUME_PREFIX)
        shared = self.registry.begin() if secret is None else self.registry.resumed(secret)
        number = shared.begin_publishing()
        is_over = True
        try:
            await self.transport.accept(SUBPROTOCOL)
            await self.transport.send(
                {"type": "ready", "token": shared.token, "resume": shared.secret, "revision": shared.revision}
            )
            await run_until_first(
                lambda: self._take(shared),
                lambda: self._report_readers(shared),
                lambda: self._until_replaced(shared, number),
                self.wait_draining,
            )
        except ClientDisconnectedError:
            is_over = False
        finally:
            if shared.publisher == number and (is_over or self.services.draining.is_set()):
                self.registry.end(shared)
        if not is_over:
            await self._wait_resumed(shared, number)

    async def _until_replaced(self, shared: SharedCaptions, number: int) -> None:
        """Raises: ApiError when a newer publisher takes over; the older socket may be dead."""
        while shared.publisher == number:
            await shared.changed.wait()
        message = "captions: expected one publisher, and another has come since"
        raise ApiError(message, status=409, code="another_publisher")

    async def _take(self, shared: SharedCaptions) -> None:
        while (message := await self.transport.receive()) is not None:
            if shared.age_s > self.limits.session_s:
                text = f"captions: expected at most {self.limits.session_s:g} s of a session"
                raise ApiError(text, code="session_too_long")
            kind, change = await in_thread_if_large(len(message), partial(read_publication, message))
            if kind == "close":
                await self.transport.close(NORMAL_CLOSURE)
                return
            if change is not None:
                shared.apply(change)

    async def _report_readers(self, shared: SharedCaptions) -> None:
        reported = 0
        while True:
            changed = shared.changed
            if shared.n_readers != reported:
                reported = shared.n_readers
                await self.transport.send({"type": "readers", "readers": reported})
            await changed.wait()

    async def _wait_resumed(self, shared: SharedCaptions, number: int) -> None:
        with anyio.move_on_after(RESUME_WITHIN_S):
            await self.services.draining.wait()
        if shared.publisher == number:
            self.registry.end(shared)


class Reader(CaptionSocket):
    """A read-only subscriber of shared captions."""

    async def begin(self) -> None:
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
                await self.transport.close(NORMAL_CLOSURE)
                return
            else:
                await changed.wait()

    async def _listen(self) -> None:
        if (await self.socket.receive())["type"] == "websocket.disconnect":
            raise ClientDisconnectedError
        raise ApiError("captions: expected a reader to read, got a message", code="invalid_message")


API = Api(
    routes=(
        HttpRoute(PUBLISH_PATH, captions_refusal),
        SocketRoute(PUBLISH_PATH, Publisher),
        HttpRoute(READ_PATH, captions_refusal, auth=Auth.OPEN),
        SocketRoute(READ_PATH, Reader, Auth.OPEN),
    ),
)
