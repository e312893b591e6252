"""`POST /v1/realtime/client_secrets`: a secret for a page, with the session that it opens."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sottovoce.serving.client_json import read_json
from sottovoce.serving.faults import ApiError
from sottovoce.serving.fields import wrong
from sottovoce.serving.realtime_wish import RealtimeWish, json_number, mapping, require_only, updated
from sottovoce.serving.state import services_of

USUAL_S, LEAST_S, MOST_S = 600.0, 10.0, 7200.0
MOST_BYTES = 64_000


async def client_secrets(request: Request) -> Response:
    """Give out a secret.

    Raises: ApiError 400.
    """
    services = services_of(request)
    given = await json_body(request)
    require_only("body", given, ("expires_after", "session"))
    expires = mapping("expires_after", given.get("expires_after"), optional=True)
    require_only("expires_after", expires, ("anchor", "seconds"))
    if expires.get("anchor", "created_at") != "created_at":
        raise wrong("expires_after.anchor", "'created_at'", f"'{str(expires['anchor'])[:50]}'")
    seconds = json_number("expires_after.seconds", expires.get("seconds", USUAL_S), LEAST_S, MOST_S)
    session = given.get("session")
    wish = updated(RealtimeWish(), {"type": "transcription"} if session is None else session)
    if wish.model is not None:
        services.shelf.name_of(wish.model)
    value, expires_at = services.secrets.make(wish, seconds)
    about = {"id": f"sess_{secrets.token_hex(8)}", "object": "realtime.transcription_session"}
    told = {**about, **wish.document, "expires_at": expires_at}
    return JSONResponse({"value": value, "expires_at": expires_at, "session": told})


async def json_body(request: Request) -> Mapping[str, object]:
    """The object that a request brings. Raises: ApiError 400, 413."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise ApiError(f"body: expected at most {MOST_BYTES} bytes", status=413, code="body_too_large")
    return mapping("body", read_json(body or b"{}"))
