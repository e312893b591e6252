"""The OpenAPI 3.1 document of the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TypeAlias

from sottovoce.formats.document import Json
from sottovoce.options.schema import Api as FormApi
from sottovoce.server.api import Api
from sottovoce.server.fields import fields_of, schema_of

DESCRIPTION = """\
The requests of the server. OpenAPI does not cover WebSockets: see docs/protocol.md.
"""

Schema: TypeAlias = dict[str, Json]

STRING: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
TEXT_ANSWERS: Schema = {
    kind: {"schema": STRING} for kind in ("text/plain", "application/x-subrip", "text/vtt")
}


def form_schemas(api: FormApi) -> dict[str, Schema]:
    return {name: schema_of(option, field) for name, (option, field) in fields_of(api).items()}


def document(apis: Iterable[Api]) -> dict[str, Json]:
    apis = tuple(apis)
    text_or_null: Schema = {"type": ["string", "null"]}
    error = an_object(
        "message", "type", "param", "code", message=STRING, type=STRING, param=text_or_null, code=text_or_null
    )
    schemas: Schema = {"Error": an_object("error", error=error)}
    for api in apis:
        schemas.update(api.schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "sottovoce", "version": version("sottovoce"), "description": DESCRIPTION},
        "paths": {path: item for api in apis for path, item in api.openapi().items()},
        "components": {
            "schemas": schemas,
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


def parameter(name: str, schema: Schema, place: str = "query") -> Json:
    described: Schema = {"name": name, "in": place, "schema": schema}
    return {**described, "required": True} if place == "path" else described


def post(summary: str, body: Json, responses: dict[str, Json], parameters: Sequence[Json] = ()) -> Schema:
    operation: Schema = {"summary": summary, "parameters": list(parameters)}
    return {"post": {**operation, "requestBody": body, "responses": responses}}


def get(summary: str, responses: dict[str, Json], parameters: Sequence[Json] = ()) -> Schema:
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": responses}}


def form(names: Sequence[str], schemas: Mapping[str, Schema], required: str = "file") -> Schema:
    schema = an_object(required, **{name: schemas[name] for name in names})
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}


def component(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def answers(content: Mapping[str, Json], error: Schema | None = None) -> dict[str, Json]:
    """Describe an answer and its errors. error: their schema; None: OpenAI's."""
    fault: Json = {"application/json": {"schema": error or component("Error")}}
    return {
        "200": {"description": "done", "content": dict(content)},
        "4XX": {"description": "the request cannot be answered", "content": fault},
        "503": {"description": "not now: see retry-after", "content": fault},
    }


def json_answer(schema: Schema) -> dict[str, Json]:
    return answers({"application/json": {"schema": schema}})


def transcript_content() -> dict[str, Json]:
    return {"application/json": {"schema": an_object("text", text=STRING)}, **TEXT_ANSWERS}
