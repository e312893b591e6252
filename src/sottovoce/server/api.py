"""The declaration of an API: its routes, their authentication, error format and OpenAPI descriptions.

An API is an `Api` of a module in `apis`, and its line in `app`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias, cast

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path
from starlette.websockets import WebSocket

from sottovoce.formats.document import Json
from sottovoce.options.schema import Api as FormApi
from sottovoce.server.errors import ApiError
from sottovoce.server.fields import fields_of, schema_of

HttpHandler: TypeAlias = Callable[[Request], Awaitable[Response]]
ErrorRenderer: TypeAlias = Callable[[HTTPConnection, ApiError], dict[str, Json]]
Schema: TypeAlias = dict[str, Json]


class Auth(Enum):
    KEY = "an API key"
    KEY_OR_CLIENT_SECRET = "an API key, or a client secret that was made with one"
    OPEN = "none, or a secret that the API checks itself"
    PROBE = "none, under any host name: for probes that watch the server"

    @property
    def is_open(self) -> bool:
        return self in (Auth.OPEN, Auth.PROBE)


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A handler of requests; GET includes HEAD. path: a Starlette pattern. query: the parameters that it
    reads; None: it reads the query, and names those without effect, by itself.
    """

    path: str
    handler: HttpHandler
    method: str = "GET"
    auth: Auth = Auth.KEY
    operation: Schema | None = None
    query: frozenset[str] | None = None

    @property
    def methods(self) -> frozenset[str]:
        return frozenset({"GET", "HEAD"} if self.method == "GET" else {self.method})


@dataclass(frozen=True, slots=True)
class SocketRoute:
    """A WebSocket. serve: answers the handshake, and serves the client to its end. check: raises the error
    of a handshake that would be refused.
    """

    path: str
    serve: Callable[[WebSocket], Awaitable[None]]
    auth: Auth = Auth.KEY
    check: Callable[[HTTPConnection], None] = lambda connection: None
    methods: frozenset[str] = frozenset({"WEBSOCKET", "GET", "HEAD"})

    async def refuse(self, request: Request) -> Response:
        """Answer a request why a handshake is refused, which browsers hide; 426 if it would be accepted."""
        self.check(request)
        raise ApiError(f"{self.path}: expected a WebSocket", status=426, code="upgrade_required")


@dataclass(frozen=True, slots=True)
class FolderRoute:
    path: str
    folder: Path
    auth: Auth = Auth.KEY
    methods: frozenset[str] = frozenset({"GET", "HEAD"})


Route: TypeAlias = HttpRoute | SocketRoute | FolderRoute


@dataclass(frozen=True, slots=True)
class Api:
    """An API of the server. error: renders an error; usually as OpenAI does.

    key_prefixes: of WebSocket subprotocols that carry a key, since browsers cannot set headers. key_schemes:
    subprotocols followed by a key. Every route takes keys in each of these ways.
    """

    routes: tuple[Route, ...] = ()
    error: ErrorRenderer = lambda connection, fault: fault.body
    key_prefixes: tuple[str, ...] = ()
    key_schemes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The route of a path. label: its name in metrics and logs. is_folder: of the files of a page."""

    api: Api
    auth: Auth
    label: str
    is_folder: bool = False


NO_MATCH = RouteMatch(Api(), Auth.KEY, "other")


class RouteTable:
    def __init__(self, apis: Iterable[Api]) -> None:
        apis = tuple(apis)
        self._key_prefixes = tuple(prefix for api in apis for prefix in api.key_prefixes)
        self._key_schemes = frozenset(scheme for api in apis for scheme in api.key_schemes)
        self._routes = [
            (
                pattern_of(route),
                route.methods,
                RouteMatch(api, route.auth, shown_path(route), isinstance(route, FolderRoute)),
            )
            for api in apis
            for route in api.routes
        ]

    def find(self, path: str, method: str) -> RouteMatch:
        """Find the route of a path. method: of HTTP, or "WEBSOCKET"; without a match by method, any (405)."""
        matches = [(methods, match) for pattern, methods, match in self._routes if pattern.match(path)]
        by_method = (match for methods, match in matches if method in methods)
        return next(by_method, matches[0][1] if matches else NO_MATCH)

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


def shown_path(route: Route) -> str:
    return route.path.replace(":path", "")


HEADERS = {401: {"www-authenticate": "Bearer"}, 426: {"connection": "upgrade", "upgrade": "websocket"}}
"""Of errors, by their status. Source: RFC 9110, 15.5.2 and 15.5.22."""


def error_answer(connection: HTTPConnection, fault: ApiError) -> JSONResponse:
    headers = {} if fault.retry_s is None else {"retry-after": str(fault.retry_after)}
    headers |= HEADERS.get(fault.status, {})
    api = cast(Api, connection.scope["state"]["api"])
    return JSONResponse(api.error(connection, fault), status_code=fault.status, headers=headers)


STRING: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
ERROR: Schema = {"$ref": "#/components/schemas/Error"}


def document(apis: Iterable[Api]) -> dict[str, Json]:
    text_or_null: Schema = {"type": ["string", "null"]}
    error = an_object(
        "message", "type", "param", "code", message=STRING, type=STRING, param=text_or_null, code=text_or_null
    )
    paths: dict[str, dict[str, Json]] = {}
    for route in (route for api in apis for route in api.routes if isinstance(route, HttpRoute)):
        if route.operation is not None:
            paths.setdefault(shown_path(route), {})[route.method.lower()] = route.operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sottovoce",
            "version": version("sottovoce"),
            "description": "The requests of the server. WebSockets: see docs/protocol.md.\n",
        },
        "paths": {**paths},
        "components": {
            "schemas": {"Error": an_object("error", error=error)},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def an_object(*required: str, **properties: Json) -> Schema:
    """Describe an object by the schemas of its properties; positional names are required."""
    schema: Schema = {"type": "object"}
    if required:
        schema["required"] = list(required)
    if properties:
        schema["properties"] = properties
    return schema


def parameter(name: str, schema: Schema, place: str = "query") -> Schema:
    described: Schema = {"name": name, "in": place, "schema": schema}
    return {**described, "required": True} if place == "path" else described


def http_route(
    method: str,
    path: str,
    handler: HttpHandler,
    summary: str,
    responses: Schema,
    *parameters: Schema,
    body: Schema | None = None,
    auth: Auth = Auth.KEY,
    reads_query: bool = False,
) -> HttpRoute:
    """Return a route with its operation of the OpenAPI document. reads_query: as `HttpRoute.query`, None."""
    operation: Schema = {"summary": summary, "parameters": [*parameters], "responses": responses}
    if body is not None:
        operation["requestBody"] = body
    query = frozenset(str(each["name"]) for each in parameters if each["in"] == "query")
    return HttpRoute(path, handler, method, auth, operation, None if reads_query else query)


def form_schemas(api: FormApi, names: Iterable[str] = ()) -> dict[str, Schema]:
    fields = fields_of(api)
    return {name: schema_of(*fields[name]) for name in names or fields}


def form(schemas: Mapping[str, Schema], required: str = "file") -> Schema:
    schema = an_object(required, **schemas)
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}


def answers(content: Mapping[str, Schema], error: Schema = ERROR, status: str = "200") -> dict[str, Json]:
    """Describe the responses of a route in OpenAPI: a schema for each content type, and one for errors."""
    fault: Json = {"application/json": {"schema": error}}
    return {
        status: {
            "description": "done",
            "content": {kind: {"schema": schema} for kind, schema in content.items()},
        },
        "4XX": {"description": "the request cannot be answered", "content": fault},
        "503": {"description": "not now: see retry-after", "content": fault},
    }


def json_answers(schema: Schema, status: str = "200") -> dict[str, Json]:
    return answers({"application/json": schema}, status=status)


TRANSCRIPT: Mapping[str, Schema] = {
    "application/json": an_object("text", text=STRING),
    **dict.fromkeys(("text/plain", "application/x-subrip", "text/vtt"), STRING),
}
"""The answers of transcriptions by their content type."""
