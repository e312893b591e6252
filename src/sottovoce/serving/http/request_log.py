"""The layer around every request and socket: id, log line, counts, access, and headers of every answer.

Logs are lines of JSON with the request and its outcome, never with transcribed text or names of files.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from sottovoce.serving.access.api_keys import KeyLimits
from sottovoce.serving.access.gate import AccessControl
from sottovoce.serving.api import RouteMatch, RouteTable, error_answer
from sottovoce.serving.live.transport import deny
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.values import ignored_header
from sottovoce.serving.telemetry import STATUS, Metrics, SetAttribute, Tracing

logger = logging.getLogger(__name__)

CLOSE_CODES = frozenset({*range(1000, 1004), *range(1005, 1015)})
"""Of RFC 6455, and those that were registered after it."""
FIRST_CLOSE_CODE = 1000
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
OF_EVERY_RECORD = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message", "taskName"}
)
"""Attributes of every record, which are not fields of its message."""
QUIET_LOGGERS = ("uvicorn.error", "uvicorn.access", "asyncio", "websockets.server")
"""Of which only warnings are shown: requests are logged here."""


class RequestLogMiddleware:
    """The outermost layer of the app."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: AccessControl,
        key_limits: KeyLimits,
        metrics: Metrics,
        routes: RouteTable,
        tracing: Tracing,
    ) -> None:
        self._app = app
        self._access = access
        self._key_limits = key_limits
        self._metrics = metrics
        self._routes = routes
        self._tracing = tracing

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
        route = self._begin(scope, scope["method"], request_id)
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                answered["x-request-id"] = request_id
                answered.update(ignored_header(scope["state"]))
                for name, value in SECURITY_HEADERS.items():
                    answered.setdefault(name, value)
            await send(message)

        with self._span(scope, route, scope["method"], headers) as set_attribute:
            try:
                fault = self._refusal(scope, route, headers)
                inner = self._app if fault is None else error_answer(HTTPConnection(scope), fault)
                await inner(scope, receive, sending)
            finally:
                set_attribute(STATUS, status)
                seconds, method = time.monotonic() - began, shown_method(scope["method"])
                self._metrics.requests.labels(route.label, method, str(status)).inc()
                self._metrics.request_seconds.observe(seconds)
                self._log(scope, route, method, status, seconds)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        headers = Headers(scope=scope)
        request_id = request_id_of(headers)
        route = self._begin(scope, "WEBSOCKET", request_id)
        code = 1006

        async def receiving() -> Message:
            nonlocal code
            message = await receive()
            if message["type"] == "websocket.disconnect":
                code = message.get("code") or 1005
            return message

        async def sending(message: Message) -> None:
            nonlocal code
            if message["type"] == "websocket.accept":
                MutableHeaders(scope=message).update(ignored_header(scope["state"]))
            elif message["type"] == "websocket.close":
                code = message.get("code", 1000)
            elif message["type"] == "websocket.http.response.start":
                code = message["status"]
            await send(message)

        try:
            with self._span(scope, route, "WEBSOCKET", headers) as set_attribute:
                fault = self._refusal(scope, route, headers, scope["subprotocols"])
                if fault is None:
                    await self._app(scope, receiving, sending)
                else:
                    await deny(WebSocket(scope, receiving, sending), fault)
                set_attribute(STATUS if code < FIRST_CLOSE_CODE else "websocket.close_code", code)
        finally:
            self._metrics.sessions.labels(route.label, shown_code(code)).inc()
            self._log(scope, route, "WEBSOCKET", code, time.monotonic() - began)

    def _begin(self, scope: Scope, method: str, request_id: str) -> RouteMatch:
        """Find the route of a connection; keep its API and id in the state of the scope."""
        route = self._routes.find(scope["path"], method)
        scope.setdefault("state", {}).update(request_id=request_id, api=route.api)
        return route

    def _span(
        self, scope: Scope, route: RouteMatch, method: str, headers: Headers
    ) -> AbstractContextManager[SetAttribute]:
        return self._tracing.span(
            f"{shown_method(method)} {route.label}",
            headers,
            http__request__method=shown_method(method),
            http__route=route.label,
            sottovoce__request_id=scope["state"]["request_id"],
        )

    def _refusal(
        self, scope: Scope, route: RouteMatch, headers: Headers, subprotocols: Sequence[str] = ()
    ) -> ApiError | None:
        """Return the reason to refuse a connection, or note its key and return None."""
        given = self._routes.given_keys(headers.get("authorization", ""), subprotocols)
        fault = self._access.refusal(route.auth, headers, given)
        if fault is not None:
            return fault
        key = self._access.key_of(route.auth, given)
        scope["state"].update(key=key, given_keys=given)
        try:
            self._key_limits.take_request(key)
        except ApiError as too_many:
            return too_many
        return None

    def _log(self, scope: Scope, route: RouteMatch, method: str, status: int, seconds: float) -> None:
        client, key = scope.get("client"), scope["state"].get("key")
        logger.info(
            "request",
            extra={
                "request_id": scope["state"]["request_id"],
                "method": method,
                "route": route.label,
                "status": status,
                "seconds": round(seconds, 3),
                "client": client[0] if client else None,
                **({"key": key.name} if key is not None and key.name else {}),
            },
        )


def request_id_of(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if ANSWERED_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


def shown_method(method: str) -> str:
    """Return the label of a method; unknown ones share one."""
    methods = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "WEBSOCKET"}
    return method if method in methods else "other"


def shown_code(code: int) -> str:
    """Return the label of a close code; unknown ones share one."""
    return str(code) if code in CLOSE_CODES or 100 <= code < 600 else "other"


class JsonLogFormatter(logging.Formatter):
    """Writes a record as one line of JSON with its extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line.update({name: value for name, value in vars(record).items() if name not in OF_EVERY_RECORD})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_as_json(level: int = logging.INFO) -> None:
    """Log JSON to standard error in the whole process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
