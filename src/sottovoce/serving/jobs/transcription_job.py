"""One recording that is answered later: what is known of it, on disk and to its client."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from sottovoce.formats.document import Json

JobState: TypeAlias = Literal["queued", "running", "succeeded", "failed"]
JOB_STATES: tuple[JobState, ...] = get_args(JobState)
WebhookState: TypeAlias = Literal["pending", "delivered", "failed"]
ID = re.compile(r"job_[0-9a-f]{32}")


@dataclass(slots=True)
class TranscriptionJob:
    """A job. Times are seconds since 1970.

    owner: name of the key that made it, "" without one. model: as it was asked for. duration_s: of the audio.
    n_bytes: on disk. n_tries: how often it was begun. error: see OpenAI's error objects. progress: the part
    of the recording that is done.
    """

    id: str
    owner: str
    created_s: float
    filename: str
    duration_s: float
    response_format: str
    n_bytes: int
    model: str | None = None
    state: JobState = "queued"
    n_tries: int = 0
    started_s: float | None = None
    finished_s: float | None = None
    error: dict[str, Json] | None = None
    webhook_url: str | None = None
    webhook_state: WebhookState = "pending"
    n_webhook_tries: int = 0
    progress: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.finished_s is not None

    def begin(self) -> None:
        """Note that it is begun."""
        self.state, self.started_s, self.progress = "running", time.time(), 0.0
        self.n_tries += 1

    def end(self, error: dict[str, Json] | None) -> None:
        """Note that it is over. error: None: it went well."""
        self.state = "succeeded" if error is None else "failed"
        self.error, self.finished_s = error, time.time()
        self.progress = 1.0 if error is None else self.progress

    @property
    def record(self) -> dict[str, Any]:
        """What is kept on disk; one that is under way is to be read again at the next start."""
        return {**asdict(self), "state": "queued" if self.state == "running" else self.state}

    @property
    def document(self) -> dict[str, Json]:
        """What its client is told, without the result."""
        webhook: dict[str, Json] | None = None
        if self.webhook_url is not None:
            webhook = {"url": self.webhook_url, "status": self.webhook_state, "tries": self.n_webhook_tries}
        return {
            "id": self.id,
            "object": "transcription.job",
            "status": self.state,
            "created_at": int(self.created_s),
            "started_at": None if self.started_s is None else int(self.started_s),
            "finished_at": None if self.finished_s is None else int(self.finished_s),
            "model": self.model,
            "filename": self.filename,
            "duration": round(self.duration_s, 3),
            "response_format": self.response_format,
            "progress": round(self.progress, 3),
            "error": None if self.error is None else dict(self.error),
            "webhook": webhook,
        }


def new_id() -> str:
    """Make the id of a job, which nobody can guess."""
    return f"job_{secrets.token_hex(16)}"


def job_of(record: Mapping[str, Any]) -> TranscriptionJob:
    """Return the job of a record. Raises: TypeError for what is none."""
    names = {field.name for field in fields(TranscriptionJob)}
    return TranscriptionJob(**{name: value for name, value in record.items() if name in names})
