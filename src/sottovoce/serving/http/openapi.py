"""The server's requests as an OpenAPI 3.1 document, from the tables that the code reads them by.

Forms are described by the options that they name (`forms`); the parameters of addresses are here.
Sockets are no part of OpenAPI: docs/protocol.md has ours; uploads are those of tus.
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
from sottovoce.serving.access.public_post import MAX_URL
from sottovoce.serving.apis.convert import CONTENT_TYPES, LAYOUT, PLAIN
from sottovoce.serving.apis.deepgram import ENCODINGS, OF_BOTH, OF_RECORDINGS, UTT_SPLIT_S
from sottovoce.serving.apis.openai_realtime import MAX_SECRET_S, MIN_SECRET_S
from sottovoce.serving.apis.transcription_jobs import MOST_LISTED, UPLOAD_ID, WEBHOOK_URL
from sottovoce.serving.jobs.transcription_job import JOB_STATES
from sottovoce.serving.parsing.forms import TEXT, TEXTS, fields_of, schema_of
from sottovoce.serving.parsing.pcm import MAX_RATE, MIN_RATE
from sottovoce.serving.recordings.requests import SUPPORTED

Schema: TypeAlias = dict[str, Json]

STRING: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
RECORDING: Schema = {"type": "string", "format": "binary"}
LANGUAGE: Schema = {"type": "string", "examples": [*LANGUAGE_EXAMPLES], "maxLength": 50}


def form_schemas(api: Api) -> dict[str, Schema]:
    """Describe the fields of an API's form by name."""
    return {name: schema_of(option, field) for name, (option, field) in fields_of(api).items()}


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


@lru_cache(maxsize=1)
def document() -> dict[str, Json]:
    """Describe the whole server."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "sottovoce", "version": version("sottovoce"), "description": __doc__ or ""},
        "paths": {**recordings(), **jobs(), **conversions(), **models(), **operation_paths()},
        "components": {
            "schemas": {"Error": error_schema(), "WhisperCppError": one_line("error")},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def recordings() -> dict[str, Json]:
    """Describe what takes a recording."""
    kinds = ("text/plain", "application/x-subrip", "text/vtt")
    text: dict[str, Json] = {kind: {"schema": STRING} for kind in kinds}
    whole: dict[str, Json] = {"application/json": {"schema": transcript_schema()}, **text}
    streamed: dict[str, Json] = {**whole, "text/event-stream": {"schema": STRING}}
    transcript: Schema = {"type": "object", "required": ["metadata", "results"]}
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
            answers({"application/json": {"schema": transcript}}, None),
            parameters=[
                {"name": name, "in": "query", "schema": DEEPGRAM[name]} for name in (*OF_BOTH, *OF_RECORDINGS)
            ],
        ),
    }


def jobs() -> dict[str, Json]:
    """Describe what takes a recording that is answered later."""
    states: Schema = {"type": "string", "enum": [*JOB_STATES]}
    job: Schema = {
        "type": "object",
        "required": ["id", "object", "status", "created_at", "progress", "error", "webhook"],
        "properties": {"id": STRING, "status": states, "progress": {"type": "number"}},
    }
    several: Schema = {
        "type": "object",
        "required": ["data", "has_more"],
        "properties": {"data": {"type": "array", "items": job}},
    }
    gone: Schema = {"type": "object", "required": ["id", "deleted"]}
    name: Json = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    limit: Json = {"type": "integer", "minimum": 1, "maximum": MOST_LISTED}
    pages: list[Json] = [
        {"name": "limit", "in": "query", "schema": limit},
        {"name": "after", "in": "query", "schema": STRING},
    ]
    names = (*SUPPORTED["transcribe"], UPLOAD_ID, WEBHOOK_URL)
    fields: dict[str, Schema] = {
        **form_schemas("openai"),
        UPLOAD_ID: STRING,
        WEBHOOK_URL: {"type": "string", "format": "uri", "maxLength": MAX_URL},
    }
    taken = answers({"application/json": {"schema": job}})
    taken["202"] = taken.pop("200")
    one = get("A job, and its result once it is there", json_answer(job), parameters=[name])
    removed: Json = {
        "summary": "Stop a job and remove it",
        "parameters": [name],
        "responses": json_answer(gone),
    }
    return {
        "/v1/jobs": {
            **post("A recording that is answered later", form(names, fields), taken),
            **get("Jobs, newest first", json_answer(several), parameters=pages),
        },
        "/v1/jobs/{id}": {**one, "delete": removed},
    }


def conversions() -> dict[str, Json]:
    """Describe what takes a transcript."""
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
    """Describe what tells and chooses models."""
    entry: Schema = {"type": "object", "required": ["id", "object", "created", "owned_by"]}
    several: Schema = {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"type": "array", "items": entry}},
    }
    name: Json = {
        "name": "name",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    }
    return {
        "/v1/models": get("Models that may be asked for", json_answer(several)),
        "/v1/models/{name}": get("One model", json_answer(entry), parameters=[name]),
        "/load": post(
            "Change the model of /inference, among those offered",
            form(("model",), {"model": TEXT}, required="model"),
            answers({"text/plain": {"schema": {"type": "string"}}}, "WhisperCppError"),
        ),
        "/v1/realtime/client_secrets": post(
            "A secret for a page, with the realtime session that it opens",
            {"content": {"application/json": {"schema": secret_schema()}}},
            json_answer({"type": "object", "required": ["value", "expires_at", "session"]}),
        ),
    }


def operation_paths() -> dict[str, Json]:
    """Describe what tells how the server is."""
    plain: dict[str, Json] = {"text/plain": {"schema": {"type": "string"}}}
    status: Schema = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}
    engine: Schema = {
        "type": "object",
        "required": ["model", "engine", "live_updates", "recording", "busy"],
        "properties": {
            "model": {"type": "string"},
            "engine": {"type": "integer"},
            "live_updates": {"type": "integer"},
            "recording": {"type": "boolean"},
            "busy": {"type": "number"},
        },
    }
    alive: Schema = {
        "type": "object",
        "required": ["status", "behind_s", "engines"],
        "properties": {
            "status": {"type": "string"},
            "behind_s": {"type": "number"},
            "engines": {"type": "array", "items": engine},
        },
    }
    loading: Json = {
        "description": "loading, or going down",
        "content": {"application/json": {"schema": status}},
    }
    return {
        "/health": get("The process answers, and what its engines are at", json_answer(alive)),
        "/ready": get("The model is loaded", {**json_answer(status), "503": loading}),
        "/metrics": get("Counts and times for Prometheus", answers(plain)),
        "/openapi.json": get("This document", json_answer({"type": "object"})),
    }


def post(summary: str, body: Json, responses: dict[str, Json], parameters: Sequence[Json] = ()) -> Schema:
    """Describe a path that takes something."""
    return {
        "post": {
            "summary": summary,
            "parameters": list(parameters),
            "requestBody": body,
            "responses": responses,
        }
    }


def get(summary: str, responses: dict[str, Json], parameters: Sequence[Json] = ()) -> Schema:
    """Describe a path that tells something."""
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": responses}}


def form(names: Sequence[str], schemas: Mapping[str, Schema], required: str = "file") -> Schema:
    """Describe a form of these fields, in this order."""
    schema: Schema = {
        "type": "object",
        "properties": {name: schemas[name] for name in names},
        "required": [required],
    }
    return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}


def answers(content: Mapping[str, Json], error: str | None = "Error") -> dict[str, Json]:
    """Describe the answer, and what comes in its place."""
    schema: Schema = one_line("err_msg") if error is None else {"$ref": f"#/components/schemas/{error}"}
    fault: Json = {"application/json": {"schema": schema}}
    return {
        "200": {"description": "done", "content": dict(content)},
        "4XX": {"description": "the request cannot be answered", "content": fault},
        "503": {"description": "not now: see retry-after", "content": fault},
    }


def json_answer(schema: Schema) -> dict[str, Json]:
    """Describe an answer in JSON."""
    return answers({"application/json": {"schema": schema}})


def transcript_schema() -> Schema:
    """Describe what every document of a transcript has."""
    return {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}


def error_schema() -> Schema:
    """OpenAI's errors."""
    text: Json = {"type": ["string", "null"]}
    fields: dict[str, Json] = {"message": {"type": "string"}, "type": {"type": "string"}}
    inner: Schema = {
        "type": "object",
        "required": ["message", "type", "param", "code"],
        "properties": {**fields, "param": text, "code": text},
    }
    return {"type": "object", "required": ["error"], "properties": {"error": inner}}


def one_line(name: str) -> Schema:
    """Describe an error that is one line."""
    return {"type": "object", "required": [name], "properties": {name: {"type": "string"}}}


def secret_schema() -> Schema:
    """Describe what a client secret is made of; the session's fields are OpenAI's."""
    seconds: Schema = {"type": "integer", "minimum": int(MIN_SECRET_S), "maximum": int(MAX_SECRET_S)}
    expires: Schema = {
        "type": "object",
        "properties": {"anchor": {"const": "created_at"}, "seconds": seconds},
    }
    session: Schema = {
        "type": "object",
        "properties": {"type": {"const": "transcription"}, "audio": {"type": "object"}},
        "required": ["type"],
    }
    return {
        "type": "object",
        "properties": {"expires_after": expires, "session": session},
    }
