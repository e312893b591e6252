"""`/v1/models`: which models may be asked for, under which names."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sottovoce.formats.document import Json
from sottovoce.serving.shelf import Shelf
from sottovoce.serving.state import services_of


async def model_list(request: Request) -> Response:
    """All models, and the other names of them."""
    shelf = services_of(request).shelf
    names = (*shelf.offer.names, *shelf.offer.all_aliases)
    return JSONResponse({"object": "list", "data": [entry(shelf, name) for name in names]})


async def model_entry(request: Request) -> Response:
    """One model.

    Raises: ApiError 404.
    """
    shelf = services_of(request).shelf
    name = request.path_params["name"]
    shelf.name_of(name)
    return JSONResponse(entry(shelf, name))


def entry(shelf: Shelf, name: str) -> dict[str, Json]:
    """One name. Beyond OpenAI's: the model it stands for, and its languages."""
    meant = shelf.name_of(name)
    return {
        "id": name,
        "object": "model",
        "created": shelf.began,
        "owned_by": "sottovoce",
        "model": meant,
        "languages": list(shelf.languages(meant)),
    }
