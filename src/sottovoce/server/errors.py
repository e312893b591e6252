"""Errors in the shape of OpenAI's API: {"error": {message, type, param, code}}."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass

from sottovoce.errors import (
    AudioError,
    CheckpointError,
    InputError,
    MissingExtraError,
    ModelNotFoundError,
    OptionError,
    SottovoceError,
    is_out_of_memory,
)
from sottovoce.formats.document import Json

logger = logging.getLogger(__name__)

UNAVAILABLE = "model_unavailable"
INTERNAL = "internal_error"
OUT_OF_MEMORY = "out_of_memory"
RETRY_S = 10.0
"""Seconds until a retry, if nothing more is known."""


@dataclass(eq=False, repr=False)
class ApiError(Exception):
    """An error that is sent to a client. retry_s: until a retry may succeed, or None."""

    message: str
    _: KW_ONLY
    status: int = 400
    kind: str = ""
    param: str | None = None
    code: str | None = None
    retry_s: float | None = None

    def __post_init__(self) -> None:
        self.kind = self.kind or ("invalid_request_error" if self.status < 500 else "server_error")

    @property
    def body(self) -> dict[str, Json]:
        return {"error": self.details}

    @property
    def details(self) -> dict[str, Json]:
        return {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}

    @property
    def live_details(self) -> dict[str, Json]:
        return self.details if self.retry_s is None else {**self.details, "retry_after": self.retry_after}

    @property
    def retry_after(self) -> int:
        return 0 if self.retry_s is None else max(1, round(self.retry_s))


def unsupported(name: str, reason: str = "not done here") -> ApiError:
    return ApiError(f"{name}: {reason}", param=name, code="unsupported_value")


@contextmanager
def invalid_options(param: str) -> Iterator[None]:
    """Raises: ApiError 400 in place of an OptionError."""
    try:
        yield
    except OptionError as error:
        raise ApiError(str(error), param=param, code="invalid_value") from error


def invalid_value(name: str, expected: str, got: str) -> ApiError:
    return ApiError(f"{name}: expected {expected}, got {got}", param=name, code="invalid_value")


def too_many_requests(message: str, retry_s: float = RETRY_S) -> ApiError:
    return ApiError(message, status=429, kind="rate_limit_error", code="rate_limit_exceeded", retry_s=retry_s)


def shutting_down() -> ApiError:
    message = "the server is shutting down: try again in a moment"
    return ApiError(message, status=503, code="shutting_down", retry_s=5.0)


def to_api_error(error: BaseException, *, param: str | None = None) -> ApiError:
    """Return the error for a client; messages of internal errors are replaced."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ModelNotFoundError | CheckpointError):  # their messages name files of the server
        message = "a model that this needs cannot be loaded on this server; its log has the cause"
        return ApiError(message, status=503, code=UNAVAILABLE)
    if isinstance(error, MissingExtraError):  # its message names the folder of a checkout
        message = f"{error.purpose} needs a package that this server lacks; its log has the name"
        return ApiError(message, status=503, code=UNAVAILABLE)
    if isinstance(error, AudioError):
        return ApiError(str(error), param=param or "file", code="invalid_audio")
    if isinstance(error, InputError):
        return ApiError(str(error), param=param)
    if is_out_of_memory(error):
        message = "memory ran out: try a shorter recording, or later"
        return ApiError(message, status=503, code=OUT_OF_MEMORY, retry_s=30.0)
    if isinstance(error, SottovoceError):
        return ApiError(str(error), status=500)
    message = "the server failed at this; its log has the cause, by the request id"
    return ApiError(message, status=500, code=INTERNAL)


def logged_api_error(error: BaseException, request_id: str, what: str = "request failed") -> ApiError:
    fault = to_api_error(error)
    if fault.status >= 500 and not isinstance(error, ApiError):
        logger.error(what, exc_info=error, extra={"request_id": request_id})
    return fault
