"""The app: routes, middleware, and its lifespan."""

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
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles

from sottovoce.api import Model
from sottovoce.formats.document import Json
from sottovoce.serving.access.gate import AccessControl
from sottovoce.serving.apis.caption_routes import captions_refusal, publish, read
from sottovoce.serving.apis.convert import convert
from sottovoce.serving.apis.deepgram import listen, listen_recording
from sottovoce.serving.apis.flux import listen_to_turns
from sottovoce.serving.apis.openai_files import transcriptions, translations
from sottovoce.serving.apis.openai_realtime import client_secrets, realtime
from sottovoce.serving.apis.sottovoce_live import live, live_refusal, targets
from sottovoce.serving.apis.transcription_jobs import create_job, delete_job, job_info, job_list
from sottovoce.serving.apis.whisper_cpp import inference, load
from sottovoce.serving.http.connections import ConnectionMiddleware
from sottovoce.serving.http.openapi import document as openapi_document
from sottovoce.serving.http.request_log import RequestLogMiddleware
from sottovoce.serving.live.transport import error_answer
from sottovoce.serving.parsing.faults import ApiError, leaving, logged_fault
from sottovoce.serving.parsing.values import HEADER as IGNORED_HEADER
from sottovoce.serving.scheduling.model_registry import ModelRegistry
from sottovoce.serving.scheduling.scheduler import Scheduler
from sottovoce.serving.services import Services, engine_states, services_of, unless
from sottovoce.serving.settings import ServerSettings
from sottovoce.serving.telemetry import CONTENT_TYPE, Metrics

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
WEB = Path(str(resources.files("sottovoce.serving") / "web"))


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
        routes=ROUTES,
        middleware=layers(services),
        exception_handlers={HTTPException: missed},
        lifespan=lifespan,
    )
    app.state.services = services
    return app


def layers(services: Services) -> list[Middleware]:
    settings = services.settings
    paths = frozenset(route.path for route in ROUTES if isinstance(route, Route | WebSocketRoute))
    access = AccessControl(settings, services.secrets, services.keys)
    logged = Middleware(
        RequestLogMiddleware,
        access=access,
        key_limits=services.key_limits,
        metrics=services.metrics,
        routes=paths,
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


def guarded(endpoint: Endpoint) -> Endpoint:
    """Wrap an endpoint so that its errors become answers, and the end of the server cuts it short."""

    async def answer(request: Request) -> Response:
        try:
            return await unless(services_of(request).until_cut, endpoint(request), leaving())
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return error_answer(request, logged_fault(error, request.state.request_id))

    return answer


async def missed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    message = f"{request.method} {path}: {error.detail.lower()}"
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
    fault = ApiError(message, status=error.status_code, code=code)
    return JSONResponse(fault.body, status_code=fault.status)


def page(name: str) -> Endpoint:
    async def answer(request: Request) -> Response:
        return FileResponse(WEB / name, headers={"cache-control": "no-cache"})

    return answer


async def icon(request: Request) -> Response:
    return FileResponse(WEB / "icon.svg")


async def health(request: Request) -> Response:
    """Answer with the state of models and engines; 200 as long as the process answers."""
    services = services_of(request)
    status = "ok" if services.trouble is None else "failing"
    behind_s = round(services.behind_s, 3)
    return JSONResponse({"status": status, "behind_s": behind_s, "engines": engine_states(services)})


async def ready(request: Request) -> Response:
    """Answer whether requests can be served: the default model works and the server is not shutting down."""
    services = services_of(request)
    if services.is_leaving:
        return JSONResponse({"status": "shutting down"}, status_code=503)
    if not services.is_ready:
        return JSONResponse({"status": "loading"}, status_code=503, headers={"retry-after": "2"})
    if (trouble := services.trouble) is not None:
        return JSONResponse({"status": "failing", "cause": trouble}, status_code=503)
    return JSONResponse({"status": "ready", "model": services.settings.models.model})


async def metrics_text(request: Request) -> Response:
    return Response(services_of(request).metrics.text(), headers={"content-type": CONTENT_TYPE})


async def openapi(request: Request) -> Response:
    return JSONResponse(openapi_document())


async def model_list(request: Request) -> Response:
    services = services_of(request)
    models = services.registry.settings
    names = (*models.names, *models.all_aliases)
    found = [model_document(services.registry, services.settings, name) for name in names]
    return JSONResponse({"object": "list", "data": found})


async def model_info(request: Request) -> Response:
    """Describe one model. Raises: ApiError 404."""
    services = services_of(request)
    name = request.path_params["name"]
    services.registry.resolve(name)
    return JSONResponse(model_document(services.registry, services.settings, name))


def model_document(registry: ModelRegistry, settings: ServerSettings, name: str) -> dict[str, Json]:
    """Describe a model by one of its names.

    Beyond OpenAI's fields: the model that the name means, whether it is loaded, its languages, and the
    languages that it can be translated into live.
    """
    meant = registry.resolve(name)
    languages = registry.languages(meant)
    return {
        "id": name,
        "object": "model",
        "created": registry.began,
        "owned_by": "sottovoce",
        "model": meant,
        "loaded": registry.is_loaded(meant),
        "languages": list(languages),
        "translates_to": list(targets(languages, settings.translation)),
    }


ROUTES = [
    Route("/", guarded(page("index.html"))),
    Route("/captions", guarded(page("captions.html"))),
    Route("/read", guarded(page("read.html"))),
    Route("/favicon.ico", guarded(icon)),
    Route("/health", guarded(health)),
    Route("/ready", guarded(ready)),
    Route("/metrics", guarded(metrics_text)),
    Route("/openapi.json", guarded(openapi)),
    Route("/v1/models", guarded(model_list)),
    Route("/v1/models/{name:path}", guarded(model_info)),
    Route("/v1/realtime/client_secrets", guarded(client_secrets), methods=["POST"]),
    Route("/inference", guarded(inference), methods=["POST"]),
    Route("/load", guarded(load), methods=["POST"]),
    Route("/v1/audio/transcriptions", guarded(transcriptions), methods=["POST"]),
    Route("/v1/audio/translations", guarded(translations), methods=["POST"]),
    Route("/v1/convert", guarded(convert), methods=["POST"]),
    Route("/v1/jobs", guarded(create_job), methods=["POST"]),
    Route("/v1/jobs", guarded(job_list), methods=["GET"]),
    Route("/v1/jobs/{id}", guarded(job_info), methods=["GET"]),
    Route("/v1/jobs/{id}", guarded(delete_job), methods=["DELETE"]),
    Route("/v1/listen", guarded(listen_recording), methods=["POST"]),
    WebSocketRoute("/v1/listen", listen),
    WebSocketRoute("/v2/listen", listen_to_turns),
    Route("/v1/live", guarded(live_refusal)),
    WebSocketRoute("/v1/live", live),
    Route("/v1/captions", guarded(captions_refusal)),
    WebSocketRoute("/v1/captions", publish),
    Route("/v1/captions/read", guarded(captions_refusal)),
    WebSocketRoute("/v1/captions/read", read),
    WebSocketRoute("/v1/realtime", realtime),
    Mount("/static", StaticFiles(directory=WEB)),
]
"""Every path that the server knows."""
