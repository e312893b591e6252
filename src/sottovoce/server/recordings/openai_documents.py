"""Transcripts in the formats of OpenAI's API, with the `language` of every segment added.

This module does not depend on a web framework.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sottovoce.formats.base import write_transcript
from sottovoce.formats.document import Json, score, seconds
from sottovoce.formats.document import word_document as live_word
from sottovoce.formats.writers import writer_for
from sottovoce.options.writer import WriterOptions
from sottovoce.server.recordings.requests import FileRequest
from sottovoce.text.languages import language_name
from sottovoce.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, Segment, Transcript, Word

TEXT_TYPES = {
    "text": "text/plain; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}
"""Content types of the formats that are not JSON."""


def json_answer(transcript: Transcript, request: FileRequest) -> dict[str, Json]:
    if request.response_format == "diarized_json":
        return diarized_document(transcript)
    if request.response_format == "verbose_json":
        return verbose_document(transcript, request)
    document: dict[str, Json] = {"text": transcript.text}
    if request.task == "transcribe":
        document["languages"] = languages_of(transcript)
        document["usage"] = duration_usage(transcript)
    if request.logprobs:
        document["logprobs"] = [logprob(word) for word in words_of(transcript.segments)]
    return document


def text_answer(transcript: Transcript, request: FileRequest) -> str:
    if request.response_format == "text":
        return transcript.text + "\n"
    writer = writer_for(request.response_format, WriterOptions(offset_n=request.offset_n))
    return write_transcript(writer, transcript)


def verbose_document(transcript: Transcript, request: FileRequest) -> dict[str, Json]:
    is_translation = request.task == "translate"
    language = "english" if is_translation else name_of(transcript.language)
    document: dict[str, Json] = {
        "task": request.task,
        "language": language,
        "duration": seconds(transcript.duration),
        "text": transcript.text,
    }
    if request.words:
        document["words"] = [word_document(word) for word in words_of(transcript.segments)]
    if request.segments:
        document["segments"] = [segment_document(segment) for segment in transcript.segments]
    if not is_translation:
        document["usage"] = duration_usage(transcript)
    return document


def diarized_document(transcript: Transcript) -> dict[str, Json]:
    return {
        "task": "transcribe",
        "duration": seconds(transcript.duration),
        "text": transcript.text,
        "segments": [speaker_segment(segment) for segment in transcript.segments],
        "usage": duration_usage(transcript),
    }


def speaker_segment(segment: Segment) -> dict[str, Json]:
    """Render a segment with its speaker; a segment without one is A's."""
    return {
        "type": "transcript.text.segment",
        "id": segment_id(segment),
        "start": seconds(segment.start),
        "end": seconds(segment.end),
        "text": segment.text,
        "speaker": segment.speaker or "A",
    }


def streamed_segment(segment: Segment, request: FileRequest) -> dict[str, Json]:
    """Render the event of a segment, with its language, and words as in the live protocol."""
    event = speaker_segment(segment)
    if request.response_format != "diarized_json":
        del event["speaker"]
    event["language"] = segment.language
    if request.words:
        event["words"] = [live_word(word) for word in segment.words or ()]
    return event


def segment_id(segment: Segment) -> str:
    return f"seg_{segment.id}"


def segment_document(segment: Segment) -> dict[str, Json]:
    """Render one of `segments`; seek: its start in log-mel frames of 10 ms."""
    return {
        "id": segment.id,
        "seek": round(segment.start * SAMPLE_RATE / HOP_SAMPLES),
        "start": seconds(segment.start),
        "end": seconds(segment.end),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": score(segment.temperature),
        "avg_logprob": score(segment.avg_logprob),
        "compression_ratio": score(segment.compression_ratio),
        "no_speech_prob": score(segment.no_speech_prob),
        "language": segment.language,
    }


def word_document(word: Word) -> dict[str, Json]:
    """Render one of `words`, without its leading space."""
    return {"word": word.word.strip(), "start": seconds(word.start), "end": seconds(word.end)}


def logprob(word: Word) -> dict[str, Json]:
    """Render one of `logprobs`, whose tokens are words here with their mean log-probability."""
    value = math.log(word.probability) if word.probability > 0 else -100.0
    return {"token": word.word, "bytes": list(word.word.encode()), "logprob": score(value)}


def words_of(segments: Sequence[Segment]) -> Iterator[Word]:
    return (word for segment in segments for word in segment.words or ())


def languages_of(transcript: Transcript) -> list[dict[str, Json]]:
    """List the spoken languages in order of appearance."""
    codes = dict.fromkeys(segment.language for segment in transcript.segments if segment.language)
    return [{"code": code} for code in codes]


def name_of(code: str) -> str:
    """Return the name of a language in `verbose_json`: English, lower case; "" without speech."""
    return language_name(code).lower() if code else ""


def duration_usage(transcript: Transcript) -> dict[str, Json]:
    return {"type": "duration", "seconds": seconds(transcript.duration)}


def token_usage(transcript: Transcript, n_prompt_tokens: int) -> dict[str, Json]:
    """Render usage by tokens, which the end of a stream requires: an encoder frame (20 ms) is one."""
    n_audio = math.ceil(transcript.duration * FRAMES_PER_SECOND)
    n_written = sum(len(segment.tokens) for segment in transcript.segments)
    return {
        "type": "tokens",
        "input_tokens": n_audio + n_prompt_tokens,
        "input_token_details": {"audio_tokens": n_audio, "text_tokens": n_prompt_tokens},
        "output_tokens": n_written,
        "total_tokens": n_audio + n_prompt_tokens + n_written,
    }


class Deltas:
    """The text of a stream in pieces, which joined are the final text."""

    def __init__(self) -> None:
        self._space = ""
        self._has_begun = False

    def add(self, segment: Segment) -> str:
        """Return the text that a segment adds; spaces at its end wait for the next one."""
        text = self._space + segment.text if self._has_begun else segment.text.lstrip()
        delta = text.rstrip()
        self._space = text[len(delta) :]
        self._has_begun = self._has_begun or bool(delta)
        return delta


def delta_event(delta: str, segment: Segment, request: FileRequest) -> dict[str, Json]:
    event: dict[str, Json] = {"type": "transcript.text.delta", "delta": delta}
    if request.logprobs:
        event["logprobs"] = [logprob(word) for word in segment.words or ()]
    if request.response_format == "diarized_json":
        event["segment_id"] = segment_id(segment)
    return event


def done_event(transcript: Transcript, request: FileRequest, n_prompt_tokens: int) -> dict[str, Json]:
    event: dict[str, Json] = {
        "type": "transcript.text.done",
        "text": transcript.text,
        "languages": languages_of(transcript),
        "usage": token_usage(transcript, n_prompt_tokens),
    }
    if request.logprobs:
        event["logprobs"] = [logprob(word) for word in words_of(transcript.segments)]
    return event
