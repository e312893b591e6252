"""The server's requests as an OpenAPI 3.1 document, from the tables that the code reads them by.

Forms are described by their options (`forms`); the parameters of addresses are declared here. OpenAPI does
not cover sockets: see docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from types import MappingProxyType
from typing import TypeAlias

from sottovoce.formats.document import Json
from sottovoce.formats.writers import FORMATS
from sottovoce.options.requests import LANGUAGE_EXAMPLES, TRANSLATION_FORMATS
from sottovoce.options.schema import Api
from sottovoce.serving.apis.convert import CONTENT_TYPES, LAYOUT, PLAIN
from sottovoce.serving.apis.deepgram import ENCODINGS, OF_BOTH, OF_RECORDINGS, UTT_SPLIT_S
from sottovoce.serving.apis.openai_realtime import MAX_SECRET_S, MIN_SECRET_S
from sottovoce.serving.apis.transcription_jobs import MOST_LISTED
from sottovoce.serving.jobs import JOB_STATUSES
from sottovoce.serving.parsing.forms import TEXT, TEXTS, fields_of, schema_of
from sottovoce.serving.parsing.pcm import MAX_RATE, MIN_RATE
from sottovoce.serving.recordings.requests import SUPPORTED
from sottovoce.serving.webhooks import MAX_URL, WEBHOOK_URL

Schema: TypeAlias = dict[str, Json]

STRING: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
RECORDING: Schema = {"type": "string", "format": "binary"}
LANGUAGE: Schema = {"type": "string", "examples": [*LANGUAGE_EXAMPLES], "maxLength": 50}
DEEPGRAM: Mapping[str, Schema] = MappingProxyType(
    {
        "model": TEXT,
        "language": {"type": "string", "examples": ["en-US", "multi"], "maxLength": 50},
        "language_hint": {"type": "array", "items": LANGUAGE},
        "keyterm": TEXTS,
        "keywords": TEXTS,
        "punctuate": FLAG,
        "smart_format": FLAG,
        "diarize": FLAG,
        "diarize_model": TEXT,
        "encoding": {"type": "string", "enum": [*ENCODINGS]},
        "sample_rate": {"type": "integer", "minimum": MIN_RATE, "maximum": MAX_RATE},
        "channels": {"type": "integer", "minimum": 1, "maximum": 1},
        "utterances": FLAG,
        "utt_split": {"type": "number", "minimum": UTT_SPLIT_S[0], "maximum": UTT_SPLIT_S[1]},
        "paragraphs": FLAG,
        "detect_language": {"anyOf": [FLAG, {"type": "array", "items": LANGUAGE}]},
    }
)


def form_schemas(api: Api) -> dict[str, Schema]:
    return {name: schema_of(option, field) for name, (option, field) in fields_of(api).items()}


@lru_cache(maxsize=1)
def document() -> dict[str, Json]:
    text_or_null: Schema = {"type": ["string", "null"]}
    error = an_object(
        "message", "type", "param", "code", message=STRING, type=STRING, param=text_or_null, code=text_or_null
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "sottovoce", "version": version("sottovoce"), "description": __doc__ or ""},
        "paths": {**recordings(), **jobs(), **conversions(), **models(), **operation_paths()},
        "components": {
            "schemas": {
                "Error": an_object("error", error=error),
                "WhisperCppError": an_object("error", error=STRING),
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def recordings() -> dict[str, Json]:
    kinds = ("text/plain", "application/x-subrip", "text/vtt")
    text: dict[str, Json] = {kind: {"schema": STRING} for kind in kinds}
    whole: dict[str, Json] = {"application/json": {"schema": an_object("text", text=STRING)}, **text}
    streamed: dict[str, Json] = {**whole, "text/event-stream": {"schema": STRING}}
    openai, whisper_cpp = form_schemas("openai"), form_schemas("whisper_cpp")
    formats: Schema = {"type": "string", "enum": [*TRANSLATION_FORMATS]}
    translation = {**openai, "response_format": formats}
    return {
        "/v1/audio/transcriptions": post(
            "Text in the language that is spoken, as OpenAI's API",
            form(SUPPORTED["transcribe"], openai),
            answers(streamed),
        ),
        "/v1/audio/translations": post(
            "Text in English, as OpenAI's API", form(SUPPORTED["translate"], translation), answers(whole)
        ),
        "/inference": post(
            "Text, as whisper.cpp's server",
            form(tuple(whisper_cpp), whisper_cpp),
            answers(whole, "WhisperCppError"),
        ),
        "/v1/listen": post(
            "Text, as Deepgram's API; also a WebSocket",
            {"required": True, "content": {"application/octet-stream": {"schema": RECORDING}}},
            answers({"application/json": {"schema": an_object("metadata", "results")}}, None),
            parameters=[parameter(name, DEEPGRAM[name]) for name in (*OF_BOTH, *OF_RECORDINGS)],
        ),
    }


def jobs() -> dict[str, Json]:
    states: Schema = {"type": "string", "enum": [*JOB_STATUSES]}
    required = ("id", "object", "status", "created_at", "progress", "error", "webhook")
    job = an_object(*required, id=STRING, status=states, progress=NUMBER)
    several = an_object("data", "has_more", data={"type": "array", "items": job})
    name = parameter("id", {"type": "string", "minLength": 1}, "path")
    limit: Schema = {"type": "integer", "minimum": 1, "maximum": MOST_LISTED}
    names = (*SUPPORTED["transcribe"], WEBHOOK_URL)
    fields: dict[str, Schema] = {
        **form_schemas("openai"),
        WEBHOOK_URL: {"type": "string", "format": "uri", "maxLength": MAX_URL},
    }
    taken = answers({"application/json": {"schema": job}})
    taken["202"] = taken.pop("200")
    one = get("A job, and its result once it is there", json_answer(job), [name])
    removed: Json = {
        "summary": "Stop a job and remove it",
        "parameters": [name],
        "responses": json_answer(an_object("id", "deleted")),
    }
    pages = [parameter("limit", limit), parameter("after", STRING)]
    return {
        "/v1/jobs": {
            **post("A recording that is answered later", form(names, fields), taken),
            **get("Jobs, newest first", json_answer(several), pages),
        },
        "/v1/jobs/{id}": {**one, "delete": removed},
    }


def conversions() -> dict[str, Json]:
    schemas: dict[str, Schema] = {
        "format": {"type": "string", "enum": [*FORMATS]},
        "title": TEXT,
        "regroup": TEXT,
        **{name: schema_of(option, field) for name, (option, field) in LAYOUT.items()},
    }
    kinds = sorted({PLAIN, *CONTENT_TYPES.values()})
    return {
        "/v1/convert": post(
            "A transcript in another format, as `sottovoce convert`",
            {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
            answers({kind.partition(";")[0]: {"schema": STRING} for kind in kinds}),
            parameters=[{"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()],
        )
    }


def models() -> dict[str, Json]:
    entry = an_object("id", "object", "created", "owned_by")
    several = an_object("data", data={"type": "array", "items": entry})
    name = parameter("name", {"type": "string", "minLength": 1}, "path")
    seconds: Schema = {"type": "integer", "minimum": int(MIN_SECRET_S), "maximum": int(MAX_SECRET_S)}
    secret = an_object(
        expires_after=an_object(anchor={"const": "created_at"}, seconds=seconds),
        session=an_object("type", type={"const": "transcription"}, audio=an_object()),
    )
    return {
        "/v1/models": get("Models that may be asked for", json_answer(several)),
        "/v1/models/{name}": get("One model", json_answer(entry), [name]),
        "/load": post(
            "Change the model of /inference, among those offered",
            form(("model",), {"model": TEXT}, required="model"),
            answers({"text/plain": {"schema": STRING}}, "WhisperCppError"),
        ),
        "/v1/realtime/client_secrets": post(
            "A secret for a page, with the realtime session that it opens",
            {"content": {"application/json": {"schema": secret}}},
            json_answer(an_object("value", "expires_at", "session")),
        ),
    }


def operation_paths() -> dict[str, Json]:
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


def an_object(*required: str, **properties: Json) -> Schema:
    """Describe an object by the schemas of its properties; positional names have any value."""
    schema: Schema = {"type": "object"}
    if required:
        schema["required"] = list(required)
    if properties:
        schema["properties"] = properties
    return schema


def parameter(name: str, schema: Schema, place: str = "query") -> Json:
    """Describe a parameter of an address; those of its path are required."""
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


def answers(content: Mapping[str, Json], error: str | None = "Error") -> dict[str, Json]:
    """Describe an answer and its errors; error: the name of a schema, None: Deepgram's."""
    schema = (
        an_object("err_msg", err_msg=STRING) if error is None else {"$ref": f"#/components/schemas/{error}"}
    )
    fault: Json = {"application/json": {"schema": schema}}
    return {
        "200": {"description": "done", "content": dict(content)},
        "4XX": {"description": "the request cannot be answered", "content": fault},
        "503": {"description": "not now: see retry-after", "content": fault},
    }


def json_answer(schema: Schema) -> dict[str, Json]:
    return answers({"application/json": {"schema": schema}})
