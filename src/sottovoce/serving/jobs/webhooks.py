"""What is told to the address of a job when it is over: signed, and told again where nobody takes it.

Headers and signature are those of Standard Webhooks (standardwebhooks.com), which OpenAI's client checks.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import random
import time
from collections.abc import Callable, Sequence

import anyio

from sottovoce.formats.document import Json, json_text
from sottovoce.serving.access.public_post import PostError, PostTarget, post, target_of
from sottovoce.serving.jobs.transcription_job import TranscriptionJob
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.settings import network_of

logger = logging.getLogger(__name__)

WAITS_S = (0.0, 5.0, 30.0, 120.0, 600.0, 1800.0)
"""Before each try."""
SPREAD = 0.2
"""Of a wait, so that many that fail together do not come again together."""
AT_ONCE = 4
GONE = 410
"""A status that asks for no more."""


class WebhookSender:
    """Tells the addresses of jobs. networks: private ones that may be called.

    secret_for: what signs the jobs of a key by its name; None: nothing does, and no address is called.
    Raises: OptionError for a network that is none.
    """

    def __init__(self, secret_for: Callable[[str], bytes | None], networks: Sequence[str] = ()) -> None:
        self._secret_for = secret_for
        self._networks = [network_of(network) for network in networks]
        self._places = anyio.CapacityLimiter(AT_ONCE)

    def check(self, url: str, owner: str) -> PostTarget:
        """Read the address of an owner's job. Raises: ApiError 400 for one that could not be called."""
        if self._secret_for(owner) is None:
            message = "webhook_url: not done here: this server has no secret to sign with"
            raise ApiError(message, param="webhook_url", code="unsupported_value")
        return target_of("webhook_url", url, self._networks)

    async def wait(self, n_tries: int) -> None:
        """Wait before the next try, after so many."""
        await anyio.sleep(WAITS_S[min(n_tries, len(WAITS_S) - 1)] * random.uniform(1 - SPREAD, 1 + SPREAD))

    async def tell(self, job: TranscriptionJob) -> bool:
        """Tell the address of a job what became of it, once; returns whether that is done with.

        Raises: ApiError where the address may not be called any more.
        """
        target, body = self.check(job.webhook_url or "", job.owner), json_text(event_of(job)).encode()
        headers = signed_headers(self._secret_for(job.owner) or b"", event_id(job), body, int(time.time()))
        async with self._places:
            try:
                status = await post(target, headers, body, self._networks)
            except PostError as error:
                logger.warning("webhook not delivered", extra={"job": job.id, "cause": str(error)})
                return False
        if 200 <= status < 300:
            return True
        logger.warning("webhook not taken", extra={"job": job.id, "status": status})
        if status == GONE:
            raise ApiError("webhook_url: it is gone", status=GONE)
        return False


def event_id(job: TranscriptionJob) -> str:
    """Name what is told of a job: the same at every try."""
    return f"evt_{job.id.removeprefix('job_')}"


def event_of(job: TranscriptionJob) -> dict[str, Json]:
    """Render what is told of a job that is over: without its result, which is to be fetched."""
    return {
        "id": event_id(job),
        "object": "event",
        "type": f"transcription.job.{job.state}",
        "created_at": int(job.finished_s or 0),
        "data": {name: value for name, value in job.document.items() if name != "webhook"},
    }


def signed_headers(secret: bytes, name: str, body: bytes, now_s: int) -> list[tuple[str, str]]:
    """Return the headers of a body, with its signature: HMAC-SHA256 of "id.seconds.body" in base64."""
    signed = f"{name}.{now_s}.".encode() + body
    signature = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return [
        ("content-type", "application/json"),
        ("user-agent", "sottovoce"),
        ("webhook-id", name),
        ("webhook-timestamp", str(now_s)),
        ("webhook-signature", f"v1,{signature}"),
    ]
