"""`/v1/uploads`: a recording of a job in pieces, over connections that may break.

Source: tus 1.0.0 (https://tus.io/protocols/resumable-upload), core with creation, expiration and termination.
"""

from __future__ import annotations

import base64
import binascii
from email.utils import formatdate

from starlette.requests import Request
from starlette.responses import Response

from sottovoce.serving.apis.transcription_jobs import owner_of, runner_of
from sottovoce.serving.jobs.upload_store import ResumableUpload, held
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.recordings.requests import MAX_NAME_LENGTH
from sottovoce.serving.recordings.uploads import check_size, pieces_of
from sottovoce.serving.services import services_of

VERSION = "1.0.0"
EXTENSIONS = "creation,expiration,termination"
PIECE_TYPE = "application/offset+octet-stream"


async def upload_options(request: Request) -> Response:
    """Say what is spoken here."""
    most = str(services_of(request).settings.limits.upload_bytes)
    return answer(204, {"tus-version": VERSION, "tus-extension": EXTENSIONS, "tus-max-size": most})


async def create_upload(request: Request) -> Response:
    """Begin an upload; answers with its place. Raises: ApiError."""
    jobs, owner = runner_of(request), owner_of(request)
    check_version(request)
    n_bytes = whole(request, "upload-length")
    check_size(n_bytes, services_of(request).settings.limits)
    filename = name_in(request.headers.get("upload-metadata", ""))
    upload = await jobs.begin_upload(owner, n_bytes, filename)
    location = f"/v1/uploads/{upload.id}"
    return answer(201, {"location": location, **expiry(upload, jobs.keep_s)})


async def upload_state(request: Request) -> Response:
    """Say how much of an upload is here. Raises: ApiError 404."""
    check_version(request)
    upload = upload_of(request)
    sizes = {"upload-offset": str(upload.offset), "upload-length": str(upload.n_bytes)}
    return answer(200, {**sizes, "cache-control": "no-store"})


async def continue_upload(request: Request) -> Response:
    """Take the next bytes of an upload; those that came before its connection broke stay.

    Raises: ApiError.
    """
    jobs, upload = runner_of(request), upload_of(request)
    check_version(request)
    if request.headers.get("content-type") != PIECE_TYPE:
        raise ApiError(f"content-type: expected {PIECE_TYPE}", status=415, code="invalid_value")
    offset = whole(request, "upload-offset")
    if offset != upload.offset:
        message = f"upload-offset: expected {upload.offset}, got {offset}"
        raise ApiError(message, status=409, code="invalid_value")
    with held(upload):
        async for piece in pieces_of(request):
            if upload.offset + len(piece) > upload.n_bytes:
                message = f"upload: expected {upload.n_bytes} bytes, got more"
                raise ApiError(message, status=413, code="file_too_large")
            await jobs.append(upload, piece)
    return answer(204, {"upload-offset": str(upload.offset), **expiry(upload, jobs.keep_s)})


async def delete_upload(request: Request) -> Response:
    """Remove an upload. Raises: ApiError 404."""
    check_version(request)
    upload = upload_of(request)
    with held(upload):
        await runner_of(request).uploads.remove(upload)
    return answer(204)


def upload_of(request: Request) -> ResumableUpload:
    """Return the upload that an address names. Raises: ApiError 404."""
    return runner_of(request).uploads.find(owner_of(request), request.path_params["id"])


def answer(status: int, headers: dict[str, str] | None = None) -> Response:
    """Make an answer without a body."""
    return Response(status_code=status, headers={"tus-resumable": VERSION, **(headers or {})})


def expiry(upload: ResumableUpload, keep_s: float) -> dict[str, str]:
    """Say until when it is kept, if nothing more comes."""
    return {"upload-expires": formatdate(upload.changed_s + keep_s, usegmt=True)}


def check_version(request: Request) -> None:
    """Check what the client speaks. Raises: ApiError 412."""
    if request.headers.get("tus-resumable") != VERSION:
        raise ApiError(f"tus-resumable: expected {VERSION}", status=412, code="unsupported_value")


def whole(request: Request, name: str) -> int:
    """Read a header that is a number. Raises: ApiError 400."""
    text = request.headers.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ApiError(f"{name}: expected a whole number", param=name, code="invalid_value")
    return int(text)


def name_in(metadata: str) -> str:
    """Return the name of the file of an `Upload-Metadata` header; "the upload" where there is none.

    Raises: ApiError 400.
    """
    for pair in metadata.split(","):
        key, _, value = pair.strip().partition(" ")
        if key == "filename":
            try:
                return base64.b64decode(value, validate=True).decode("utf-8", "replace")[:MAX_NAME_LENGTH]
            except binascii.Error as error:
                message = "upload-metadata: expected values in base64"
                raise ApiError(message, param="upload-metadata", code="invalid_value") from error
    return "the upload"
