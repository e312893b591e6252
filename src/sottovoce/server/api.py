"""The declaration of an API: its routes, their authentication, error format and OpenAPI paths.

An API is a module in `apis` that exports an `Api`, and its line in `app`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeAlias, cast

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path
from starlette.websockets import WebSocket

from sottovoce.formats.document import Json
from sottovoce.server.errors import ApiError

HttpHandler: TypeAlias = Callable[[Request], Awaitable[Response]]
ErrorRenderer: TypeAlias = Callable[[HTTPConnection, ApiError], dict[str, Json]]


class Auth(Enum):
    """The authentication of a route, on a server with keys."""

    KEY = "an API key"
    KEY_OR_CLIENT_SECRET = "an API key, or a client secret that was made with one"
    OPEN = "none, or a secret that the API checks itself"
    PROBE = "none, under any host name: for probes that watch the server"

    @property
    def is_open(self) -> bool:
        return self in (Auth.OPEN, Auth.PROBE)


class SocketSession(Protocol):
    async def serve(self) -> None:
        """Serve the client of a WebSocket to its end."""
        ...


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A handler of requests; GET includes HEAD. path: a Starlette pattern."""

    path: str
    handler: HttpHandler
    method: str = "GET"
    auth: Auth = Auth.KEY

    @property
    def methods(self) -> frozenset[str]:
        return frozenset({"GET", "HEAD"} if self.method == "GET" else {self.method})


@dataclass(frozen=True, slots=True)
class SocketRoute:
    """A WebSocket. connect: makes a client's session before the handshake is answered."""

    path: str
    connect: Callable[[WebSocket], SocketSession]
    auth: Auth = Auth.KEY
    methods: frozenset[str] = frozenset({"WEBSOCKET"})


@dataclass(frozen=True, slots=True)
class FolderRoute:
    path: str
    folder: Path
    auth: Auth = Auth.KEY
    methods: frozenset[str] = frozenset({"GET", "HEAD"})


Route: TypeAlias = HttpRoute | SocketRoute | FolderRoute


def openai_error(connection: HTTPConnection, fault: ApiError) -> dict[str, Json]:
    return fault.body


@dataclass(frozen=True, slots=True)
class Api:
    """An API of the server.

    key_prefixes: of WebSocket subprotocols that carry a key. key_schemes: subprotocols followed by a key.
    Browsers cannot set headers of a WebSocket; every route takes keys in each of these ways.
    """

    routes: tuple[Route, ...] = ()
    error: ErrorRenderer = openai_error
    key_prefixes: tuple[str, ...] = ()
    key_schemes: tuple[str, ...] = ()
    openapi: Callable[[], dict[str, Json]] = dict
    schemas: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The route of a path. label: its name in metrics and logs."""

    api: Api
    auth: Auth
    label: str


NO_MATCH = RouteMatch(Api(), Auth.KEY, "other")


class RouteTable:
    def __init__(self, apis: Iterable[Api]) -> None:
        apis = tuple(apis)
        self._key_prefixes = tuple(prefix for api in apis for prefix in api.key_prefixes)
        self._key_schemes = frozenset(scheme for api in apis for scheme in api.key_schemes)
        self._routes = [
            (pattern_of(route), route.methods, RouteMatch(api, route.auth, route.path.replace(":path", "")))
            for api in apis
            for route in api.routes
        ]

    def find(self, path: str, method: str) -> RouteMatch:
        """Find the route of a path. method: of HTTP, or "WEBSOCKET"; without a match by method, any (405)."""
        found = [(methods, match) for pattern, methods, match in self._routes if pattern.match(path)]
        by_method = (match for methods, match in found if method in methods)
        return next(by_method, found[0][1] if found else NO_MATCH)

    def given_keys(self, authorization: str, subprotocols: Sequence[str] = ()) -> list[str]:
        scheme, _, token = authorization.partition(" ")
        keys = [token.strip()] if scheme.lower() in ("bearer", "token") and token.strip() else []
        if len(subprotocols) > 1 and subprotocols[0] in self._key_schemes:
            keys.append(subprotocols[1])
        for prefix in self._key_prefixes:
            keys += [word[len(prefix) :] for word in subprotocols if word.startswith(prefix)]
        return keys


def pattern_of(route: Route) -> re.Pattern[str]:
    return compile_path(f"{route.path}/{{path:path}}" if isinstance(route, FolderRoute) else route.path)[0]


def error_answer(connection: HTTPConnection, fault: ApiError) -> JSONResponse:
    headers = {} if fault.retry_s is None else {"retry-after": str(fault.retry_after)}
    if fault.status == 401:
        headers["www-authenticate"] = "Bearer"
    api = cast(Api, connection.scope["state"]["api"])
    return JSONResponse(api.error(connection, fault), status_code=fault.status, headers=headers)
