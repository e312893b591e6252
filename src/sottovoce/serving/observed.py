"""Around every request and socket: its id, its log line, its counts, the headers of every answer, the gate.

Logs say who asked for what, and what became of it; never what was said, nor what a file is called.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from sottovoce.formats.document import Json, json_text
from sottovoce.serving.faults import ApiError
from sottovoce.serving.gate import LISTEN_PATH, SUBPROTOCOL, Gate
from sottovoce.serving.metrics import Metrics

logger = logging.getLogger(__name__)

ANSWERED_ID = re.compile(r"[A-Za-z0-9._-]{1,80}")
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "media-src blob:; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "permissions-policy": "microphone=(self), display-capture=(self), screen-wake-lock=(self), camera=()",
}
REFUSED = 1008
"""Close code for what no other try will change."""
FAILED = 1011
TRY_AGAIN = 1013
MOST_REASON = 120
"""Bytes of a close reason: a control frame has 125 in all."""


class Observed:
    """The outermost layer of the app."""

    def __init__(self, app: ASGIApp, *, gate: Gate, metrics: Metrics, routes: frozenset[str]) -> None:
        self._app = app
        self._gate = gate
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        headers = Headers(scope=scope)
        request_id = request_id_of(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                answered["x-request-id"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    answered.setdefault(name, value)
            await send(message)

        try:
            fault = self._gate.refusal(scope["path"], scope["method"], headers)
            inner = self._app if fault is None else error_response(fault)
            await inner(scope, receive, sending)
        finally:
            self._note(scope, scope["method"], status, time.monotonic() - began, request_id)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        headers = Headers(scope=scope)
        request_id = request_id_of(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        code = 1006

        async def receiving() -> Message:
            nonlocal code
            message = await receive()
            if message["type"] == "websocket.disconnect":
                code = message.get("code") or 1005
            return message

        async def sending(message: Message) -> None:
            nonlocal code
            if message["type"] == "websocket.close":
                code = message.get("code", 1000)
            elif message["type"] == "websocket.http.response.start":
                code = message["status"]
            await send(message)

        try:
            fault = self._gate.refusal(scope["path"], "GET", headers, scope["subprotocols"])
            if fault is None:
                await self._app(scope, receiving, sending)
            else:
                await refuse(WebSocket(scope, receiving, sending), fault)
        finally:
            self._metrics.sockets.add(1, self._route(scope), str(code))
            self._log(scope, "WEBSOCKET", code, time.monotonic() - began, request_id)

    def _note(self, scope: Scope, method: str, status: int, seconds: float, request_id: str) -> None:
        self._metrics.requests.add(1, self._route(scope), shown_method(method), str(status))
        self._metrics.request_seconds.observe(seconds)
        self._log(scope, method, status, seconds, request_id)

    def _log(self, scope: Scope, method: str, status: int, seconds: float, request_id: str) -> None:
        client = scope.get("client")
        logger.info(
            "request",
            extra={
                "request_id": request_id,
                "method": shown_method(method),
                "route": self._route(scope),
                "status": status,
                "seconds": round(seconds, 3),
                "client": client[0] if client else None,
            },
        )

    def _route(self, scope: Scope) -> str:
        """The path where it is one of ours: what clients make up is neither a label nor logged."""
        path: str = scope["path"]
        if path.startswith("/static/"):
            return "/static"
        return path if path in self._routes else "other"


def request_id_of(headers: Headers) -> str:
    """The id that a client gave, where it is one, or a new one."""
    given = headers.get("x-request-id", "")
    return given if ANSWERED_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


def shown_method(method: str) -> str:
    """A method as it is counted: clients may make up others."""
    known = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "WEBSOCKET"}
    return method if method in known else "other"


def error_response(fault: ApiError) -> JSONResponse:
    """A fault as an answer."""
    headers = dict(fault.headers)
    if fault.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(fault.body, status_code=fault.status, headers=headers)


async def refuse(socket: WebSocket, fault: ApiError) -> None:
    """Say on a socket why it is closed: browsers do not see the status of a refused handshake."""
    if socket.scope["path"] == LISTEN_PATH:
        await deny(socket, fault)
        return
    await socket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None)
    await close_with(socket, fault)


def own_error(fault: ApiError) -> dict[str, Json]:
    """A fault as a message of the server's own protocol, and of OpenAI's."""
    return {"type": "error", **fault.body}


def listen_error(fault: ApiError) -> dict[str, Json]:
    """A fault as a message of Deepgram's protocol."""
    return {"type": "Error", "variant": fault.code or fault.kind, "description": fault.message}


async def deny(socket: WebSocket, fault: ApiError) -> None:
    """Refuse a handshake with a status, as Deepgram's clients expect it."""
    body = {
        "err_code": fault.code,
        "err_msg": fault.message,
        "request_id": socket.scope["state"]["request_id"],
    }
    await socket.send_denial_response(
        JSONResponse(body, status_code=fault.status, headers=dict(fault.headers))
    )


async def close_with(
    socket: WebSocket, fault: ApiError, shape: Callable[[ApiError], dict[str, Json]] = own_error
) -> None:
    """Tell a fault and close: 1013 where another try may be worth it, 1011 for our own fault, else 1008."""
    await socket.send_text(json_text(shape(fault)))
    code = TRY_AGAIN if fault.retry_s is not None else FAILED if fault.status >= 500 else REFUSED
    await socket.close(code, reason_of(fault.message))


def reason_of(message: str) -> str:
    """A close reason of a length that fits into its frame."""
    return message.encode()[:MOST_REASON].decode("utf-8", "ignore")
