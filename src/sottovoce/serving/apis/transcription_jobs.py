"""`/v1/jobs`: recordings that are answered later, with the form of `/v1/audio/transcriptions`."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sottovoce.formats.document import Json
from sottovoce.serving.jobs.job_runner import JobRunner, TranscriptionJob, new_id
from sottovoce.serving.parsing.faults import ApiError, wrong
from sottovoce.serving.parsing.forms import Fields
from sottovoce.serving.parsing.values import note_ignored, number_of
from sottovoce.serving.recordings.requests import FileRequest, size_of, transcription_request
from sottovoce.serving.recordings.uploads import check_duration, received_form, require_file, while_there
from sottovoce.serving.services import key_of, services_of

DEFAULT_LISTED, MOST_LISTED = 20, 100
OF_LISTS = ("limit", "after")
WEBHOOK_URL = "webhook_url"
"""A field that other forms do not have."""


async def create_job(request: Request) -> Response:
    """Take a recording, and answer 202 with its job. Raises: ApiError, AudioError."""
    jobs, owner = runner_of(request), owner_of(request)
    services = services_of(request)
    async with AsyncExitStack() as stack:
        stack.enter_context(jobs.place(owner))
        with services.upload(is_for_later=True):
            fields, upload = await stack.enter_async_context(received_form(request))
        url = fields.text(WEBHOOK_URL)
        if url is not None:
            jobs.webhooks.check(url, owner)
        fields = fields.without(WEBHOOK_URL)
        file_request = await services.decoding.call(lambda: job_request(fields))
        services.registry.resolve(file_request.model)
        note_ignored(request, services.registry.ignored(file_request.model, file_request.ignored))
        recording = require_file(upload)
        n_bytes = size_of(recording) + sum(len(name) + len(value) for name, value in fields.pairs)
        jobs.check_bytes(n_bytes)
        checked = check_duration(recording, services.settings.limits.duration_s)
        duration_s = await while_there(request, services.decoding.run(checked))
        services.key_limits.count_audio(key_of(request), duration_s)
        job = TranscriptionJob(
            new_id(),
            owner,
            time.time(),
            recording.name,
            duration_s,
            file_request.response_format,
            n_bytes,
            fields=list(fields.pairs),
            model=file_request.model,
            webhook_url=url,
        )
        await jobs.add(job, recording.source)
    return JSONResponse(job.document, status_code=202, headers={"location": f"/v1/jobs/{job.id}"})


def job_request(fields: Fields) -> FileRequest:
    request = transcription_request(fields)
    if request.stream:
        raise wrong("stream", "false, of what is answered later", "true")
    return request


async def job_list(request: Request) -> Response:
    """List the jobs of who asks, newest first, without their results. Raises: ApiError 400."""
    query = request.query_params
    note_ignored(request, (name for name in query if name not in OF_LISTS))
    limit = int(number_of("limit", query.get("limit", DEFAULT_LISTED), 1, MOST_LISTED))
    jobs = runner_of(request).jobs_of(owner_of(request))
    after = query.get("after")
    if after is not None:
        places = [i for i, job in enumerate(jobs) if job.id == after]
        if not places:
            raise wrong("after", "the id of a job that is here", "another")
        jobs = jobs[places[0] + 1 :]
    listed: list[Json] = [job.document for job in jobs[:limit]]
    return JSONResponse({"object": "list", "data": listed, "has_more": len(jobs) > limit})


async def job_info(request: Request) -> Response:
    """Answer with a job, and its result once it went well. Raises: ApiError 404."""
    jobs = runner_of(request)
    job = jobs.find(owner_of(request), request.path_params["id"])
    return Response(await jobs.document_with_result(job), media_type="application/json")


async def delete_job(request: Request) -> Response:
    """Stop a job, and remove it with its result. Raises: ApiError 404."""
    jobs = runner_of(request)
    job = jobs.find(owner_of(request), request.path_params["id"])
    await jobs.delete(job)
    return JSONResponse({"id": job.id, "object": "transcription.job", "deleted": True})


def runner_of(request: Request) -> JobRunner:
    """Return what works jobs off. Raises: ApiError 403 where nothing does."""
    jobs = services_of(request).jobs
    if jobs is None:
        message = "jobs: expected a server that keeps them, got one without --jobs-dir"
        raise ApiError(message, status=403, code="not_allowed")
    return jobs


def owner_of(request: Request) -> str:
    """Return the name of the key that asks: who has none, or no key, shares jobs with all of these."""
    key = key_of(request)
    return key.name if key else ""
