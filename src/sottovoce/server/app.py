"""The app of the server: its APIs, middleware and lifespan.

Log lines never hold transcribed text or names of files.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Container
from contextlib import asynccontextmanager, nullcontext

import starlette.routing
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.status import WS_1000_NORMAL_CLOSURE
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from sottovoce.recogniser import Recogniser
from sottovoce.server import api
from sottovoce.server.apis import (
    captions,
    convert,
    deepgram,
    flux,
    jobs,
    openai_files,
    openai_realtime,
    operations,
    sottovoce_live,
    whisper_servers,
)
from sottovoce.server.auth import AccessControl
from sottovoce.server.errors import ApiError, logged_api_error, shutting_down
from sottovoce.server.fields import IGNORED_HEADER, ignored_header, note_ignored
from sottovoce.server.live import deny
from sottovoce.server.models import ModelRegistry
from sottovoce.server.scheduler import Scheduler
from sottovoce.server.services import Services, cancel_when, services_of
from sottovoce.server.settings import ServerSettings
from sottovoce.server.telemetry import STATUS, Metrics

APIS = (
    operations.API,
    openai_files.API,
    openai_realtime.API,
    whisper_servers.WHISPER_CPP,
    whisper_servers.WHISPER_ASR,
    convert.API,
    jobs.API,
    deepgram.API,
    flux.API,
    sottovoce_live.API,
    captions.API,
)


def make_app(settings: ServerSettings, open_model: Callable[[str], Recogniser]) -> Starlette:
    """Make the app of a server. open_model: loads a model by name.

    Raises: OptionError for an invalid key file, or an unusable folder of jobs.
    """
    metrics = Metrics()

    def on_live(waited_s: float, worked_s: float) -> None:
        metrics.live_wait.observe(waited_s)
        metrics.live_work.observe(worked_s)

    def make(model: Recogniser) -> Scheduler:
        models = settings.models
        return Scheduler(
            model,
            settings.work,
            beam_size=models.beam_size,
            deferral=models.deferral,
            voices=models.voices,
            on_live=on_live,
        )

    services = Services(settings, ModelRegistry(settings.models, open_model, make), metrics)

    runner = None if settings.jobs is None else jobs.JobRunner(services, settings.jobs)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with services.running(), nullcontext() if runner is None else runner.running():
            yield

    app = Starlette(
        routes=[
            starlette_route
            for each in APIS
            for route in each.routes
            for starlette_route in starlette_routes(route)
        ],
        middleware=middleware(services),
        exception_handlers={HTTPException: not_found},
        lifespan=lifespan,
    )
    app.state.services = services
    app.state.jobs = runner
    app.state.captions = captions.CaptionRegistry(services)
    app.state.apis = APIS
    return app


def middleware(services: Services) -> list[Middleware]:
    logged = Middleware(RequestLogMiddleware, services=services)
    origins = services.settings.access.origins
    if not origins:
        return [logged]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=["authorization", "content-type", "x-request-id"],
        expose_headers=["x-request-id", "retry-after", "location", IGNORED_HEADER],
    )
    return [cors, logged]


def starlette_routes(route: api.Route) -> list[BaseRoute]:
    match route:
        case api.HttpRoute(path, handler, method):
            answer = error_boundary(handler, route.query)
            return [starlette.routing.Route(path, answer, methods=[method])]
        case api.SocketRoute(path, serve):
            refusal = starlette.routing.Route(path, error_boundary(route.refuse))
            return [WebSocketRoute(path, serve), refusal]
        case api.FolderRoute(path, folder):
            return [Mount(path, StaticFiles(directory=folder))]


def error_boundary(handler: api.HttpHandler, query: Container[str] | None = None) -> api.HttpHandler:
    async def answer(request: Request) -> Response:
        if query is not None:
            note_ignored(request, (name for name in request.query_params if name not in query))
        try:
            return await cancel_when(services_of(request).aborted.wait, handler(request), shutting_down())
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return api.error_answer(request, logged_api_error(error, request.state.request_id))

    return answer


async def not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    message = f"{request.method} {path}: {error.detail.lower()}"
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
    fault = ApiError(message, status=error.status_code, code=code)
    return JSONResponse(fault.body, status_code=fault.status)


logger = logging.getLogger(__name__)

CLOSE_CODES = frozenset({*range(1000, 1004), *range(1005, 1015)})
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


class RequestLogMiddleware:
    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services
        self._access = AccessControl(services.settings, services.secrets, services.keys)
        self._routes = api.RouteTable(APIS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        # Clients join an address that ends in a slash and a path.
        scope["path"] = "/" + scope["path"].lstrip("/")
        is_socket = scope["type"] == "websocket"
        method = "WEBSOCKET" if is_socket else shown_method(scope["method"])
        began_s, headers = time.monotonic(), Headers(scope=scope)
        request_id = request_id_of(headers)
        route = self._routes.find(scope["path"], "WEBSOCKET" if is_socket else scope["method"])
        scope.setdefault("state", {}).update(request_id=request_id, api=route.api)
        outcome = 1006 if is_socket else 500
        """A status of HTTP, or the close code of a socket."""

        async def receiving() -> Message:
            nonlocal outcome
            message = await receive()
            if message["type"] == "websocket.disconnect":
                outcome = message.get("code") or 1005
            return message

        async def sending(message: Message) -> None:
            nonlocal outcome
            match message["type"]:
                case "http.response.start":
                    outcome = message["status"]
                    answered = MutableHeaders(scope=message)
                    answered["x-request-id"] = request_id
                    answered.update(ignored_header(scope["state"]))
                    for name, value in SECURITY_HEADERS.items():
                        answered.setdefault(name, value)
                case "websocket.accept":
                    MutableHeaders(scope=message).update(ignored_header(scope["state"]))
                case "websocket.http.response.start":
                    outcome = message["status"]
                case "websocket.close":
                    outcome = message.get("code", 1000)
            await send(message)

        span = self._services.tracing.span(
            f"{method} {route.label}",
            headers,
            http__request__method=method,
            http__route=route.label,
            sottovoce__request_id=request_id,
        )
        with span as set_attribute:
            try:
                fault = self._refusal(scope, route, headers)
                if fault is None:
                    await self._app(scope, receiving, sending)
                elif is_socket:
                    await deny(WebSocket(scope, receiving, sending), fault)
                else:
                    await api.error_answer(HTTPConnection(scope), fault)(scope, receiving, sending)
            finally:
                seconds, metrics = time.monotonic() - began_s, self._services.metrics
                set_attribute(STATUS if outcome < WS_1000_NORMAL_CLOSURE else "websocket.close_code", outcome)
                if is_socket:
                    is_known = outcome in CLOSE_CODES or 100 <= outcome < 600
                    metrics.sessions.labels(route.label, str(outcome) if is_known else "other").inc()
                else:
                    metrics.requests.labels(route.label, method, str(outcome)).inc()
                    metrics.request_seconds.observe(seconds)
                self._log(scope, route, method, outcome, seconds)

    def _refusal(self, scope: Scope, route: api.RouteMatch, headers: Headers) -> ApiError | None:
        given = self._routes.given_keys(headers.get("authorization", ""), scope.get("subprotocols", ()))
        try:
            key = self._access.admit(route.auth, headers, given)
            scope["state"].update(key=key, given_keys=given)
            self._services.key_limits.take_request(key)
        except ApiError as fault:
            return fault
        return None

    def _log(self, scope: Scope, route: api.RouteMatch, method: str, status: int, seconds: float) -> None:
        client, key = scope.get("client"), scope["state"].get("key")
        logger.log(
            logging.DEBUG if route.is_folder else logging.INFO,
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
    methods = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "WEBSOCKET"}
    return method if method in methods else "other"
