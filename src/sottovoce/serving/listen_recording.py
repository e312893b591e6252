"""A transcript as Deepgram's API answers it. Knows no web framework."""

from __future__ import annotations

from datetime import datetime, timezone

from sottovoce.formats.document import Json, seconds
from sottovoce.serving.listen_items import alternative_of, model_info
from sottovoce.serving.listen_wish import ListenWish
from sottovoce.speakers.names import place_of
from sottovoce.types import Segment, Transcript


def recording_document(transcript: Transcript, wish: ListenWish, request_id: str) -> dict[str, Json]:
    """The document of a recording."""
    words = [word for segment in transcript.segments for word in segment.words or ()]
    channel: dict[str, Json] = {"alternatives": [alternative_of(words, wish)]}
    if not wish.languages and transcript.language:
        channel["detected_language"] = transcript.language
    results: dict[str, Json] = {"channels": [channel]}
    if wish.utterances:
        results["utterances"] = [utterance(segment, wish) for segment in transcript.segments]
    name = wish.model or ""
    metadata: dict[str, Json] = {
        "transaction_key": "deprecated",
        "request_id": request_id,
        "created": datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "duration": seconds(transcript.duration),
        "channels": 1,
        "models": [name],
        "model_info": {name: model_info(name)},
    }
    return {"metadata": metadata, "results": results}


def utterance(segment: Segment, wish: ListenWish) -> dict[str, Json]:
    """One of `utterances`."""
    alternative = alternative_of(segment.words or (), wish)
    times = {"start": seconds(segment.start), "end": seconds(segment.end), "channel": 0}
    document: dict[str, Json] = {**times, **alternative, "id": str(segment.id)}
    if wish.has_speakers and segment.speaker is not None:
        document["speaker"] = place_of(segment.speaker)
    return document
