"""The JSON document of a recording, on one line, and its parts as plain values.

Times are rounded to milliseconds and scores to six digits. JSON has no NaN and no infinity: a score
that is not finite is written as null. `words` is an empty list when no word times were asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from sottovoce.formats.base import TranscriptInfo
from sottovoce.types import Segment, Token, Transcript, Turn, Word

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


class JsonWriter:
    """One JSON object and a line break; the segments come first, since the text is known at the end.

    Holds the text of the recording, and nothing else of its segments.
    """

    extension = "json"

    def __init__(self) -> None:
        self._texts: list[str] = []

    def begin(self, info: TranscriptInfo) -> str:
        self._texts = []
        return f'{{"model": {json_text(info.model)}, "segments": ['

    def segment(self, segment: Segment) -> str:
        separator = ", " if self._texts else ""
        self._texts.append(segment.text)
        return separator + json_text(self._entry(segment))

    def end(self, info: TranscriptInfo) -> str:
        duration = None if info.duration is None else seconds(info.duration)
        rest: dict[str, Json] = {
            "text": "".join(self._texts).strip(),
            "language": info.language,
            "duration": duration,
        }
        if info.turns:
            rest["turns"] = [turn_document(turn) for turn in info.turns]
        return "], " + json_text(rest)[1:] + "\n"

    def _entry(self, segment: Segment) -> Mapping[str, Json]:
        return segment_document(segment)


class JsonFullWriter(JsonWriter):
    """The JSON document with the tokens of every segment; none where no word times were asked for."""

    extension = "full.json"

    def _entry(self, segment: Segment) -> Mapping[str, Json]:
        details = [token_document(token) for word in segment.words or () for token in word.tokens]
        return {**segment_document(segment), "token_details": details}


def document(transcript: Transcript) -> dict[str, Json]:
    """The JSON document of a whole transcript, as plain values."""
    turns = {"turns": [turn_document(turn) for turn in transcript.turns]} if transcript.turns else {}
    return {
        "text": transcript.text,
        "language": transcript.language,
        "duration": seconds(transcript.duration),
        "model": transcript.model,
        "segments": [segment_document(segment) for segment in transcript.segments],
        **turns,
    }


def segment_document(segment: Segment) -> dict[str, Json]:
    """One entry of `segments`."""
    translation = {} if segment.translation is None else {"translation": segment.translation}
    return {
        "id": segment.id,
        "start": seconds(segment.start),
        "end": seconds(segment.end),
        "text": segment.text,
        "language": segment.language,
        "speaker": segment.speaker,
        "tokens": list(segment.tokens),
        "temperature": score(segment.temperature),
        "avg_logprob": score(segment.avg_logprob),
        "compression_ratio": score(segment.compression_ratio),
        "no_speech_prob": score(segment.no_speech_prob),
        "words": [word_document(word) for word in segment.words or ()],
        **translation,
    }


def word_document(word: Word) -> dict[str, Json]:
    """One entry of `words`."""
    return {
        "word": word.word,
        "start": seconds(word.start),
        "end": seconds(word.end),
        "probability": score(word.probability),
        "language": word.language,
        "speaker": word.speaker,
    }


def turn_document(turn: Turn) -> dict[str, Json]:
    """One entry of `turns`."""
    return {"start": seconds(turn.start), "end": seconds(turn.end), "speaker": turn.speaker}


def token_document(token: Token) -> dict[str, Json]:
    """One entry of `token_details`."""
    return {
        "id": token.id,
        "text": token.text,
        "start": seconds(token.start),
        "end": seconds(token.end),
        "probability": score(token.probability),
    }


def json_text(value: Json) -> str:
    """JSON on one line, letters as they are; ValueError for a number that is not finite."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def seconds(value: float) -> float:
    """A time, to the millisecond."""
    return round(float(value), 3)


def score(value: float) -> float | None:
    """A log-probability, probability or ratio to six digits; None when it is not finite."""
    return round(float(value), 6) if math.isfinite(value) else None
