"""`/v1/jobs`: recordings that are answered later, with the form of `/v1/audio/transcriptions`."""

from __future__ import annotations

from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sottovoce.formats.document import Json
from sottovoce.server.api import Api, HttpRoute
from sottovoce.server.errors import ApiError, invalid_value
from sottovoce.server.fields import Fields, note_ignored, read_number
from sottovoce.server.jobs import JOB_STATUSES, JobRunner, TranscriptionJob
from sottovoce.server.openai_format import SUPPORTED, FileRequest, size_of, transcription_request
from sottovoce.server.openapi import (
    NUMBER,
    STRING,
    Schema,
    an_object,
    answers,
    form,
    form_schemas,
    get,
    json_answer,
    parameter,
    post,
)
from sottovoce.server.services import key_of, services_of
from sottovoce.server.uploads import checked_request, received_form
from sottovoce.server.webhooks import MAX_URL, WEBHOOK_URL, Webhook

DEFAULT_LISTED, MOST_LISTED = 20, 100
LIST_PARAMS = ("limit", "after")


async def create_job(request: Request) -> Response:
    """Take a recording, and answer 202 with its job. Raises: ApiError, AudioError."""
    jobs, owner = runner_of(request), owner_of(request)
    with jobs.new(owner) as job:
        async with AsyncExitStack() as stack:
            with services_of(request).upload(is_queued=True):
                fields, upload = await stack.enter_async_context(received_form(request))
            url = fields.text(WEBHOOK_URL)
            if url is not None:
                jobs.webhooks.check(url, owner)
                job.webhook = Webhook(url)
            fields = fields.without(WEBHOOK_URL)
            file_request, recording, audio_s = await checked_request(
                request, lambda: job_request(fields), upload
            )
            job.filename, job.duration = recording.name, round(audio_s, 3)
            job.fields, job.model = list(fields.pairs), file_request.model
            job.response_format = file_request.response_format
            n_bytes = size_of(recording) + sum(len(name) + len(value) for name, value in job.fields)
            await jobs.add(job, recording.source, n_bytes)
    return JSONResponse(job.document, status_code=202, headers={"location": f"/v1/jobs/{job.id}"})


def job_request(fields: Fields) -> FileRequest:
    request = transcription_request(fields)
    if request.stream:
        raise invalid_value("stream", "false, of what is answered later", "true")
    return request


async def job_list(request: Request) -> Response:
    """List the jobs of a key, newest first, without results. Raises: ApiError 400."""
    query = request.query_params
    note_ignored(request, (name for name in query if name not in LIST_PARAMS))
    limit = int(read_number("limit", query.get("limit", DEFAULT_LISTED), 1, MOST_LISTED))
    jobs = runner_of(request).jobs_of(owner_of(request))
    if (after := query.get("after")) is not None:
        names = [job.id for job in jobs]
        if after not in names:
            raise invalid_value("after", "the id of a job that is here", "another")
        jobs = jobs[names.index(after) + 1 :]
    listed = [job.document for job in jobs[:limit]]
    return JSONResponse({"object": "list", "data": listed, "has_more": len(jobs) > limit})


async def job_info(request: Request) -> Response:
    body = await runner_of(request).document_with_result(job_of(request))
    return Response(body, media_type="application/json")


async def delete_job(request: Request) -> Response:
    job = job_of(request)
    await runner_of(request).delete(job)
    return JSONResponse({"id": job.id, "object": "transcription.job", "deleted": True})


def runner_of(request: Request) -> JobRunner:
    jobs = services_of(request).jobs
    if jobs is None:
        message = "jobs: expected a server that keeps them, got one without --jobs-dir"
        raise ApiError(message, status=403, code="not_allowed")
    return jobs


def job_of(request: Request) -> TranscriptionJob:
    return runner_of(request).find(owner_of(request), request.path_params["id"])


def owner_of(request: Request) -> str:
    """Return the name of a request's key; requests without a named key share their jobs."""
    key = key_of(request)
    return key.name if key else ""


def openapi_paths() -> dict[str, Json]:
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


API = Api(
    routes=(
        HttpRoute("/v1/jobs", create_job, "POST"),
        HttpRoute("/v1/jobs", job_list),
        HttpRoute("/v1/jobs/{id}", job_info),
        HttpRoute("/v1/jobs/{id}", delete_job, "DELETE"),
    ),
    openapi=openapi_paths,
)
