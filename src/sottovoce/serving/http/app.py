"""The app of the server: the list of its APIs, its middleware, and its lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import starlette.routing
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket

from sottovoce.api import Model
from sottovoce.serving.access.gate import AccessControl
from sottovoce.serving.api import (
    FolderRoute,
    HttpHandler,
    HttpRoute,
    Route,
    RouteTable,
    SocketRoute,
    error_answer,
)
from sottovoce.serving.apis import (
    caption_routes,
    convert,
    deepgram,
    flux,
    models,
    openai_files,
    openai_realtime,
    operations,
    sottovoce_live,
    transcription_jobs,
    whisper_cpp,
)
from sottovoce.serving.http.connections import ConnectionMiddleware
from sottovoce.serving.http.request_log import RequestLogMiddleware
from sottovoce.serving.parsing.faults import ApiError, leaving, logged_fault
from sottovoce.serving.parsing.values import HEADER as IGNORED_HEADER
from sottovoce.serving.scheduling.model_registry import ModelRegistry
from sottovoce.serving.scheduling.scheduler import Scheduler
from sottovoce.serving.services import Services, services_of, unless
from sottovoce.serving.settings import ServerSettings
from sottovoce.serving.telemetry import Metrics

APIS = (
    operations.API,
    models.API,
    openai_files.API,
    openai_realtime.API,
    whisper_cpp.API,
    convert.API,
    transcription_jobs.API,
    deepgram.API,
    flux.API,
    sottovoce_live.API,
    caption_routes.API,
)
"""The APIs of the server; another one is a module that exports an `Api`, and its line here."""


def make_app(settings: ServerSettings, open_model: Callable[[str], Model]) -> Starlette:
    """Make the app of a server, which loads its models with open_model once it runs.

    Raises: OptionError for an invalid file of keys.
    """
    metrics = Metrics()

    def on_live(waited_s: float, worked_s: float) -> None:
        metrics.live_wait.observe(waited_s)
        metrics.live_work.observe(worked_s)

    def make(model: Model) -> Scheduler:
        models = settings.models
        return Scheduler(
            model, settings.work, beam_size=models.beam_size, deferral=models.deferral, on_live=on_live
        )

    services = Services(settings, ModelRegistry(settings.models, open_model, make), metrics)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with services.running():
            yield

    app = Starlette(
        routes=[starlette_route(route) for api in APIS for route in api.routes],
        middleware=middleware(services),
        exception_handlers={HTTPException: not_found},
        lifespan=lifespan,
    )
    app.state.services = services
    app.state.apis = APIS
    return app


def middleware(services: Services) -> list[Middleware]:
    settings = services.settings
    access = AccessControl(settings, services.secrets, services.keys)
    logged = Middleware(
        RequestLogMiddleware,
        access=access,
        key_limits=services.key_limits,
        metrics=services.metrics,
        routes=RouteTable(APIS),
        tracing=services.tracing,
    )
    outermost = Middleware(ConnectionMiddleware)
    if not settings.access.origins:
        return [outermost, logged]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(settings.access.origins),
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=["authorization", "content-type", "x-request-id"],
        expose_headers=["x-request-id", "retry-after", "location", IGNORED_HEADER],
    )
    return [outermost, cors, logged]


def starlette_route(route: Route) -> BaseRoute:
    match route:
        case HttpRoute(path, handler, method):
            return starlette.routing.Route(path, error_boundary(handler), methods=[method])
        case SocketRoute(path, connect):

            async def serve(socket: WebSocket) -> None:
                await connect(socket).serve()

            return WebSocketRoute(path, serve)
        case FolderRoute(path, folder):
            return Mount(path, StaticFiles(directory=folder))


def error_boundary(handler: HttpHandler) -> HttpHandler:
    """Wrap a handler so that its errors become answers, and the end of the server cuts it short."""

    async def answer(request: Request) -> Response:
        try:
            return await unless(services_of(request).until_cut, handler(request), leaving())
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return error_answer(request, logged_fault(error, request.state.request_id))

    return answer


async def not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    message = f"{request.method} {path}: {error.detail.lower()}"
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
    fault = ApiError(message, status=error.status_code, code=code)
    return JSONResponse(fault.body, status_code=fault.status)
