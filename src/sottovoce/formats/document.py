"""The JSON document of a recording, on one line, and the events of a stream as JSON lines.

Times are rounded to milliseconds and scores to six digits; scores that are not finite are null.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from sottovoce.formats.base import TranscriptInfo
from sottovoce.types import (
    Event,
    Final,
    LanguageChanged,
    Partial,
    Segment,
    Span,
    SpeechEnded,
    SpeechStarted,
    Token,
    Transcript,
    Turn,
    TurnEnded,
    Unstable,
    Word,
)

VERY_LOW_CONFIDENCE, LOW_CONFIDENCE = 0.5, 0.8
"""Probabilities below which a word is as likely wrong as right, and below which it may be wrong."""


def has_low_confidence(probability: float) -> bool:
    """Return whether a word of this probability is likely wrong; never for NaN."""
    return probability < LOW_CONFIDENCE


Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


class JsonWriter:
    """One JSON object and a line break. Segments come first, because the text is known at the end."""

    extension = "json"
    _texts: list[str]

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
            **detection_document(info.language_probability, info.language_probabilities),
            "duration": duration,
            **turns_document(info.turns),
            **unread_document(info.unread),
        }
        return "], " + json_text(rest)[1:] + "\n"

    def _entry(self, segment: Segment) -> Mapping[str, Json]:
        return segment_document(segment)


class JsonFullWriter(JsonWriter):
    extension = "full.json"
    _text: Callable[[int], str | None] | None

    def begin(self, info: TranscriptInfo) -> str:
        self._text = info.token_text
        return super().begin(info)

    def _entry(self, segment: Segment) -> Mapping[str, Json]:
        words = [
            {**word_document(word), "tokens": [token.id for token in word.tokens]}
            for word in segment.words or ()
        ]
        details = list(token_documents(segment, self._text))
        return {**segment_document(segment), "words": words, "token_details": details}


def document(transcript: Transcript) -> dict[str, Json]:
    return {
        "text": transcript.text,
        "language": transcript.language,
        **detection_document(transcript.language_probability, transcript.language_probabilities),
        "duration": seconds(transcript.duration),
        "model": transcript.model,
        "segments": [segment_document(segment) for segment in transcript.segments],
        **turns_document(transcript.turns),
        **unread_document(transcript.unread),
    }


def detection_document(
    probability: float | None, probabilities: Mapping[str, float] = MappingProxyType({})
) -> dict[str, Json]:
    found: dict[str, Json] = {} if probability is None else {"language_probability": score(probability)}
    if probabilities:
        found["language_probabilities"] = {code: score(value) for code, value in probabilities.items()}
    return found


def unread_document(unread: Sequence[Span] | None) -> dict[str, Json]:
    if unread is None:
        return {}
    total: dict[str, Json] = {"unread": seconds(sum(end - start for start, end in unread))}
    spans = [{"start": seconds(start), "end": seconds(end)} for start, end in unread]
    return total | {"unread_spans": spans} if spans else total


def segment_document(segment: Segment) -> dict[str, Json]:
    translation = {} if segment.translation is None else {"translation": segment.translation}
    return {
        "id": segment.id,
        "start": seconds(segment.start),
        "end": seconds(segment.end),
        "text": segment.text,
        "language": segment.language,
        **detection_document(segment.language_probability),
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
    mark: dict[str, Json] = {"doubtful": True} if has_low_confidence(word.probability) else {}
    return {
        "word": word.word,
        "start": seconds(word.start),
        "end": seconds(word.end),
        "probability": score(word.probability),
        "language": word.language,
        "speaker": word.speaker,
        **mark,
    }


def turns_document(turns: Sequence[Turn]) -> dict[str, Json]:
    found: list[Json] = [
        {"start": seconds(one.start), "end": seconds(one.end), "speaker": one.speaker} for one in turns
    ]
    return {"turns": found} if found else {}


def token_documents(
    segment: Segment, text_of: Callable[[int], str | None] | None
) -> Iterator[dict[str, Json]]:
    """Build `token_details`: an entry per token, without times for timestamps and unaligned tokens.

    text_of: the text of an unaligned token id.
    """
    aligned = deque(token for word in segment.words or () for token in word.tokens)
    for token in segment.tokens:
        if aligned and aligned[0].id == token:
            yield token_document(aligned.popleft())
        else:
            text = text_of(token) if text_of else None
            yield {"id": token, "text": text, "start": None, "end": None, "probability": None}
    yield from map(token_document, aligned)


def token_document(token: Token) -> dict[str, Json]:
    return {
        "id": token.id,
        "text": token.text,
        "start": seconds(token.start),
        "end": seconds(token.end),
        "probability": score(token.probability),
    }


def json_text(value: Json) -> str:
    """Encode as JSON on one line, without escaping letters. Raises: ValueError for a number that is not
    finite.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def seconds(value: float) -> float:
    return round(float(value), 3)


def score(value: float) -> float | None:
    """Round a score to six digits; None if it is not finite."""
    return round(float(value), 6) if math.isfinite(value) else None


def event_line(event: Event) -> str:
    return json_text(event_document(event)) + "\n"


def event_document(event: Event) -> dict[str, Json]:
    document = _document(event)
    document["seq"] = event.seq
    if event.utterance is not None:
        document["utterance"] = event.utterance
    return document


def _document(event: Event) -> dict[str, Json]:
    if isinstance(event, LanguageChanged):
        return _language_changed(event)
    if isinstance(event, SpeechStarted):
        return _line("speech_started", event.at, event.at, event.emission_time)
    if isinstance(event, SpeechEnded):
        return _line("speech_ended", event.at, event.at, event.emission_time)
    if isinstance(event, TurnEnded):
        line = _line("turn_ended", event.at, event.at, event.emission_time)
        return {**line, "probability": score(event.probability)}
    kind = {Partial: "partial", Final: "final", Unstable: "unstable"}[type(event)]
    words = () if isinstance(event, Unstable) else event.words
    times = (event.start, event.end, event.emission_time)
    line = _line(kind, *times, text=event.text, language=event.language, words=words)
    if isinstance(event, Final) and event.allowed_mass is not None:
        line["allowed_mass"] = score(event.allowed_mass)
    return line


def _language_changed(event: LanguageChanged) -> dict[str, Json]:
    return {
        **_line("language", event.at, event.at, event.confirmed_at, language=event.target),
        "from": event.source,
        "to": event.target,
        "at": seconds(event.at),
        "confirmed_at": seconds(event.confirmed_at),
        "posteriors": {language: score(p) for language, p in event.posteriors.items()},
    }


def _line(
    kind: str,
    start: float,
    end: float,
    emission_time: float,
    *,
    text: str = "",
    language: str | None = None,
    words: tuple[Word, ...] = (),
) -> dict[str, Json]:
    return {
        "type": kind,
        "start": seconds(start),
        "end": seconds(end),
        "text": text,
        "language": language,
        "words": [word_document(word) for word in words],
        "emission_time": seconds(emission_time),
    }
