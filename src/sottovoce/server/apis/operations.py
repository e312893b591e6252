"""The web pages, health, readiness, metrics and OpenAPI document."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from sottovoce.formats.document import Json
from sottovoce.server.api import Api, Auth, FolderRoute, HttpHandler, HttpRoute
from sottovoce.server.openapi import (
    FLAG,
    INTEGER,
    NUMBER,
    STRING,
    Schema,
    an_object,
    answers,
    document,
    get,
    json_answer,
)
from sottovoce.server.services import engine_states, services_of
from sottovoce.server.telemetry import CONTENT_TYPE

WEB = Path(str(resources.files("sottovoce.server") / "web"))


def page(name: str) -> HttpHandler:
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
    return JSONResponse({"status": status, "behind_s": behind_s, "engines": engine_states(services)})


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
    return JSONResponse(document(request.app.state.apis))


def openapi_paths() -> dict[str, Json]:
    state: dict[str, Json] = {
        "model": STRING,
        "engine": INTEGER,
        "live_updates": INTEGER,
        "recording": FLAG,
        "busy": NUMBER,
    }
    engines: Schema = {"type": "array", "items": an_object(*state, **state)}
    alive = an_object("status", "behind_s", "engines", status=STRING, behind_s=NUMBER, engines=engines)
    status = an_object("status", status=STRING)
    loading: Json = {
        "description": "loading, or going down",
        "content": {"application/json": {"schema": status}},
    }
    return {
        "/health": get("The process answers, and what its engines are at", json_answer(alive)),
        "/ready": get("The model is loaded", {**json_answer(status), "503": loading}),
        "/metrics": get("Counts and times for Prometheus", answers({"text/plain": {"schema": STRING}})),
        "/openapi.json": get("This document", json_answer(an_object())),
    }


API = Api(
    routes=(
        HttpRoute("/", page("index.html"), auth=Auth.OPEN),
        HttpRoute("/captions", page("captions.html"), auth=Auth.OPEN),
        HttpRoute("/read", page("read.html"), auth=Auth.OPEN),
        HttpRoute("/favicon.ico", icon, auth=Auth.OPEN),
        FolderRoute("/static", WEB, Auth.OPEN),
        HttpRoute("/health", health, auth=Auth.PROBE),
        HttpRoute("/ready", ready, auth=Auth.PROBE),
        HttpRoute("/metrics", metrics_text),
        HttpRoute("/openapi.json", openapi),
    ),
    openapi=openapi_paths,
)
