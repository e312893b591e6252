"""`/v1/models`: which models may be asked for, under which names."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sottovoce.formats.document import Json
from sottovoce.serving.interpreting import targets
from sottovoce.serving.settings import Settings
from sottovoce.serving.shelf import Shelf
from sottovoce.serving.state import services_of


async def model_list(request: Request) -> Response:
    """All models, and the other names of them."""
    services = services_of(request)
    offer = services.shelf.offer
    found = [entry(services.shelf, services.settings, name) for name in (*offer.names, *offer.all_aliases)]
    return JSONResponse({"object": "list", "data": found})


async def model_entry(request: Request) -> Response:
    """One model.

    Raises: ApiError 404.
    """
    services = services_of(request)
    name = request.path_params["name"]
    services.shelf.name_of(name)
    return JSONResponse(entry(services.shelf, services.settings, name))


def entry(shelf: Shelf, settings: Settings, name: str) -> dict[str, Json]:
    """One name. Beyond OpenAI's: the model it stands for, its languages, and those it can be translated into
    live."""
    meant = shelf.name_of(name)
    languages = shelf.languages(meant)
    return {
        "id": name,
        "object": "model",
        "created": shelf.began,
        "owned_by": "sottovoce",
        "model": meant,
        "languages": list(languages),
        "translates_to": list(targets(languages, settings.translation)),
    }
