"""The app: routes, what is around them, and what lives as long as they do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles

from sottovoce.api import Model
from sottovoce.serving.client_secrets import client_secrets
from sottovoce.serving.faults import ApiError, logged_fault
from sottovoce.serving.gate import Gate
from sottovoce.serving.inference import inference, load, plainly
from sottovoce.serving.listen import listen, listen_recording
from sottovoce.serving.live import live
from sottovoce.serving.metrics import CONTENT_TYPE, Metrics
from sottovoce.serving.models import model_entry, model_list
from sottovoce.serving.observed import Observed, error_response
from sottovoce.serving.openapi import document as openapi_document
from sottovoce.serving.realtime import realtime
from sottovoce.serving.scheduler import Scheduler
from sottovoce.serving.settings import Settings
from sottovoce.serving.shelf import Shelf
from sottovoce.serving.state import Services, engine_states, services_of
from sottovoce.serving.transcriptions import transcriptions, translations

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
WEB = Path(str(resources.files("sottovoce.serving") / "web"))


def make_app(settings: Settings, open_model: Callable[[str], Model]) -> Starlette:
    """The app of a server; it loads its models itself, with open_model, once it runs."""
    metrics = Metrics()

    def on_live(waited_s: float, worked_s: float) -> None:
        metrics.live_wait.observe(waited_s)
        metrics.live_work.observe(worked_s)

    def make(model: Model) -> Scheduler:
        return Scheduler(model, settings.work, beam_size=settings.offer.beam_size, on_live=on_live)

    services = Services(settings, Shelf(settings.offer, open_model, make), metrics)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with services.running():
            yield

    app = Starlette(
        routes=ROUTES,
        middleware=layers(settings, Gate(settings, services.secrets), metrics),
        exception_handlers={HTTPException: missed},
        lifespan=lifespan,
    )
    app.state.services = services
    return app


def layers(settings: Settings, gate: Gate, metrics: Metrics) -> list[Middleware]:
    """What is around the routes, outermost first."""
    paths = frozenset(route.path for route in ROUTES if isinstance(route, Route | WebSocketRoute))
    observed = Middleware(Observed, gate=gate, metrics=metrics, routes=paths)
    if not settings.access.origins:
        return [observed]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(settings.access.origins),
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type", "x-request-id"],
        expose_headers=["x-request-id", "retry-after"],
    )
    return [cors, observed]


def guarded(endpoint: Endpoint) -> Endpoint:
    """The endpoint with its errors as answers."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return error_response(logged_fault(error, request.state.request_id))

    return answer


async def missed(request: Request, error: Exception) -> Response:
    """The answer where no route is, or not for this method."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    message = f"{request.method} {path}: {error.detail.lower()}"
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
    return error_response(ApiError(message, status=error.status_code, code=code))


async def page(request: Request) -> Response:
    """The live web page."""
    return FileResponse(WEB / "index.html", headers={"cache-control": "no-cache"})


async def icon(request: Request) -> Response:
    """The page's icon, where browsers look without being told."""
    return FileResponse(WEB / "icon.svg")


async def health(request: Request) -> Response:
    """That the process answers, and what the engines of its models are at."""
    return JSONResponse({"status": "ok", "engines": engine_states(services_of(request))})


async def ready(request: Request) -> Response:
    """Whether requests can be served: the default model is there, and the server does not go down."""
    services = services_of(request)
    if services.is_leaving:
        return JSONResponse({"status": "shutting down"}, status_code=503)
    if not services.is_ready:
        return JSONResponse({"status": "loading"}, status_code=503, headers={"retry-after": "2"})
    return JSONResponse({"status": "ready", "model": services.settings.offer.model})


async def metrics_text(request: Request) -> Response:
    """Counts and times for Prometheus."""
    return PlainTextResponse(services_of(request).metrics.text(), headers={"content-type": CONTENT_TYPE})


async def openapi(request: Request) -> Response:
    """What may be asked, for programs."""
    return JSONResponse(openapi_document())


ROUTES = [
    Route("/", guarded(page)),
    Route("/favicon.ico", guarded(icon)),
    Route("/health", guarded(health)),
    Route("/ready", guarded(ready)),
    Route("/metrics", guarded(metrics_text)),
    Route("/openapi.json", guarded(openapi)),
    Route("/v1/models", guarded(model_list)),
    Route("/v1/models/{name:path}", guarded(model_entry)),
    Route("/v1/realtime/client_secrets", guarded(client_secrets), methods=["POST"]),
    Route("/inference", guarded(plainly(inference)), methods=["POST"]),
    Route("/load", guarded(plainly(load)), methods=["POST"]),
    Route("/v1/audio/transcriptions", guarded(transcriptions), methods=["POST"]),
    Route("/v1/audio/translations", guarded(translations), methods=["POST"]),
    Route("/v1/listen", guarded(listen_recording), methods=["POST"]),
    WebSocketRoute("/v1/listen", listen),
    WebSocketRoute("/v1/live", live),
    WebSocketRoute("/v1/realtime", realtime),
    Mount("/static", StaticFiles(directory=WEB)),
]
"""Every path that the server knows."""
