"""The web pages, models, health, readiness, metrics and OpenAPI document."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from sottovoce.formats.document import Json
from sottovoce.server import api
from sottovoce.server.apis.sottovoce_live import target_languages
from sottovoce.server.models import ModelRegistry
from sottovoce.server.services import services_of
from sottovoce.server.settings import ServerSettings
from sottovoce.server.telemetry import CONTENT_TYPE

WEB = Path(str(resources.files("sottovoce.server") / "web"))


def page(name: str) -> api.HttpHandler:
    async def answer(request: Request) -> Response:
        return FileResponse(WEB / name, headers={"cache-control": "no-cache"})

    return answer


async def icon(request: Request) -> Response:
    return FileResponse(WEB / "icon.svg")


async def health(request: Request) -> Response:
    """Answer with the state of models and engines; 200 while the process answers."""
    services = services_of(request)
    status = "ok" if services.health_error is None else "failing"
    behind_s = round(services.behind_s, 3)
    engines = [
        {
            "model": name,
            "engine": number,
            "live_updates": state.n_live,
            "recording": state.has_recording,
            "busy": round(state.busy, 2),
        }
        for name, number, state in services.registry.engines
    ]
    return JSONResponse({"status": status, "behind_s": behind_s, "engines": engines})


async def ready(request: Request) -> Response:
    """Answer 200 if the default model works and the server is not shutting down, else 503."""
    services = services_of(request)
    if services.draining.is_set():
        return JSONResponse({"status": "shutting down"}, status_code=503)
    if not services.is_ready:
        return JSONResponse({"status": "loading"}, status_code=503, headers={"retry-after": "2"})
    if (cause := services.health_error) is not None:
        return JSONResponse({"status": "failing", "cause": cause}, status_code=503)
    return JSONResponse({"status": "ready", "model": services.settings.models.model})


async def metrics_text(request: Request) -> Response:
    return Response(services_of(request).metrics.text(), headers={"content-type": CONTENT_TYPE})


async def openapi(request: Request) -> Response:
    return JSONResponse(api.document(request.app.state.apis))


async def model_list(request: Request) -> Response:
    services = services_of(request)
    models = services.registry.settings
    names = (*models.names, *models.all_aliases)
    documents = [model_document(services.registry, services.settings, name) for name in names]
    return JSONResponse({"object": "list", "data": documents})


async def model_info(request: Request) -> Response:
    services = services_of(request)
    name = request.path_params["name"]
    services.registry.resolve(name)
    return JSONResponse(model_document(services.registry, services.settings, name))


def model_document(registry: ModelRegistry, settings: ServerSettings, name: str) -> dict[str, Json]:
    """Describe a model by one of its names.

    Beyond OpenAI's fields: the model that the name means, its state, its languages, and those of live
    translations.
    """
    meant = registry.resolve(name)
    languages = registry.languages(meant)
    return {
        "id": name,
        "object": "model",
        "created": registry.created,
        "owned_by": "sottovoce",
        "model": meant,
        "loaded": registry.is_loaded(meant),
        "languages": list(languages),
        "translates_to": list(target_languages(languages, settings.translation)),
    }


ENGINE: api.Schema = {
    "model": api.STRING,
    "engine": api.INTEGER,
    "live_updates": api.INTEGER,
    "recording": api.FLAG,
    "busy": api.NUMBER,
}
ENGINES: api.Schema = {"type": "array", "items": api.an_object(*ENGINE, **ENGINE)}
STATE = api.an_object(
    "status", "behind_s", "engines", status=api.STRING, behind_s=api.NUMBER, engines=ENGINES
)
STATUS = api.an_object("status", status=api.STRING)
LOADING: api.Schema = {
    **api.json_answers(STATUS),
    "503": {"description": "loading, or going down", "content": {"application/json": {"schema": STATUS}}},
}
METRICS = api.answers({"text/plain": api.STRING})
MODEL = api.an_object("id", "object", "created", "owned_by")
MODELS = api.json_answers(api.an_object("data", data={"type": "array", "items": MODEL}))
NAME = api.parameter("name", {"type": "string", "minLength": 1}, "path")
ONE_MODEL = "/v1/models/{name:path}"
WORK = "Whether the process answers, and the state of its engines"
API = api.Api(
    routes=(
        api.HttpRoute("/", page("index.html"), auth=api.Auth.OPEN),
        api.HttpRoute("/captions", page("captions.html"), auth=api.Auth.OPEN),
        api.HttpRoute("/read", page("read.html"), auth=api.Auth.OPEN),
        api.HttpRoute("/favicon.ico", icon, auth=api.Auth.OPEN),
        api.FolderRoute("/static", WEB, api.Auth.OPEN),
        api.http_route("GET", "/health", health, WORK, api.json_answers(STATE), auth=api.Auth.PROBE),
        api.http_route("GET", "/ready", ready, "The model is loaded", LOADING, auth=api.Auth.PROBE),
        api.http_route("GET", "/metrics", metrics_text, "Counts and times for Prometheus", METRICS),
        api.http_route("GET", "/openapi.json", openapi, "This document", api.json_answers(api.an_object())),
        api.http_route("GET", "/v1/models", model_list, "Models that may be asked for", MODELS),
        api.http_route("GET", ONE_MODEL, model_info, "One model", api.json_answers(MODEL), NAME),
    )
)
