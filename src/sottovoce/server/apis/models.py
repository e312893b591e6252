"""`/v1/models`: the models of the server, as OpenAI's API lists them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sottovoce.formats.document import Json
from sottovoce.server.api import Api, HttpRoute
from sottovoce.server.apis.sottovoce_live import target_languages
from sottovoce.server.models import ModelRegistry
from sottovoce.server.openapi import an_object, get, json_answer, parameter
from sottovoce.server.services import services_of
from sottovoce.server.settings import ServerSettings


async def model_list(request: Request) -> Response:
    services = services_of(request)
    models = services.registry.settings
    names = (*models.names, *models.all_aliases)
    found = [model_document(services.registry, services.settings, name) for name in names]
    return JSONResponse({"object": "list", "data": found})


async def model_info(request: Request) -> Response:
    services = services_of(request)
    name = request.path_params["name"]
    services.registry.resolve(name)
    return JSONResponse(model_document(services.registry, services.settings, name))


def model_document(registry: ModelRegistry, settings: ServerSettings, name: str) -> dict[str, Json]:
    """Describe a model by one of its names.

    Beyond OpenAI's fields: the model that the name means, whether it is loaded, its languages, and those that
    it can be translated into live.
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


def openapi_paths() -> dict[str, Json]:
    entry = an_object("id", "object", "created", "owned_by")
    several = an_object("data", data={"type": "array", "items": entry})
    name = parameter("name", {"type": "string", "minLength": 1}, "path")
    return {
        "/v1/models": get("Models that may be asked for", json_answer(several)),
        "/v1/models/{name}": get("One model", json_answer(entry), [name]),
    }


API = Api(
    routes=(HttpRoute("/v1/models", model_list), HttpRoute("/v1/models/{name:path}", model_info)),
    openapi=openapi_paths,
)
