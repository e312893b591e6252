"""Options of a live request to the server alone: what its audio looks like, and what else it gets."""

from __future__ import annotations

from sottovoce.options.requests import requested
from sottovoce.options.schema import ApiField

MODEL = requested(
    "model", "text", {"sottovoce": ApiField("model", "one of `/v1/models`; without it the server's")}
)
LIVE_REQUEST = (
    requested(
        "translate_to",
        "language",
        {
            "sottovoce": ApiField(
                "translate_to",
                "also send a translation into this language: a code, tag or name, one of `translates_to` of "
                "the model in `/v1/models` ([translation](translation.md#in-the-server-and-on-the-page))",
            )
        },
    ),
    requested(
        "encoding",
        "text",
        {"sottovoce": ApiField("encoding", "`s16le`, the default, `f32le`, `mulaw` or `alaw`, one channel")},
    ),
    requested(
        "sample_rate", "integer", {"sottovoce": ApiField("sample_rate", "8000 to 96000 Hz; 16000 without it")}
    ),
)
