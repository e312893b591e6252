"""`/v1/audio/transcriptions` and `/v1/audio/translations`: recordings in, text out, whole or streamed.

Jobs and whisper.cpp's API use the same fields and documents.
"""

from __future__ import annotations

import base64
import binascii
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from sottovoce.audio.io import load_audio
from sottovoce.errors import AudioError
from sottovoce.formats.document import Json, json_text, score, seconds, span_document
from sottovoce.formats.document import word_document as live_word
from sottovoce.formats.files import writer_for
from sottovoce.formats.output import write_transcript
from sottovoce.options.decoding import WINDOW_VAD, DecodingOptions, FallbackOptions, VadOptions
from sottovoce.options.schema import Option, Values, from_values
from sottovoce.options.transcribe import SpeakerOptions, TranscribeOptions, WriterOptions
from sottovoce.server import api, fields
from sottovoce.server.errors import invalid_options, invalid_value, shutting_down, to_api_error
from sottovoce.server.fields import TRANSLATION_FORMATS
from sottovoce.server.services import run_until_first
from sottovoce.server.uploads import FileRequest, RunningJob, received_form, running_job
from sottovoce.text.languages import find_language, language_name
from sottovoce.types import (
    FRAMES_PER_SECOND,
    HOP_SAMPLES,
    SAMPLE_RATE,
    Samples,
    Segment,
    Task,
    Transcript,
    Word,
)

logger = logging.getLogger(__name__)
STREAMED = ("verbose_json", "json", "text", "diarized_json")
TRANSLATED = ("file", "model", "prompt", "response_format", "temperature", "seed")
CHUNKING = {
    "threshold": ("threshold", 1.0),
    "silence_duration_ms": ("min_silence_ms", 10_000.0),
    "prefix_padding_ms": ("speech_pad_ms", 5_000.0),
}
"""fields.Fields of `chunking_strategy`: our name, and the greatest value."""
SUPPORTED = {"transcribe": tuple(fields.fields_of("openai")), "translate": TRANSLATED}
MOST_SPEAKERS = 4
"""Source: OpenAI, `known_speaker_names`."""
LEAST_SPEECH_S, MOST_SPEECH_S = 1.0, 30.0
NAMES, REFERENCES = "known_speaker_names[]", "known_speaker_references[]"
TEXT_TYPES = {
    "text": "text/plain; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}


async def respond(request: Request, read: Callable[[fields.Fields], FileRequest]) -> Response:
    async with AsyncExitStack() as stack:
        job = await stack.enter_async_context(running_job(request, received_form(request), read))
        if job.request.stream:
            return EventStream(job, stack.pop_all())
        transcript = await job.collected(request)
    if job.request.response_format in TEXT_TYPES:
        return text_response(transcript, job.request)
    return JSONResponse(json_answer(transcript, job.request))


def text_response(transcript: Transcript, request: FileRequest) -> Response:
    kind = TEXT_TYPES[request.response_format]
    return Response(text_answer(transcript, request), headers={"content-type": kind})


class EventStream(Response):
    """Server-sent events of one job. resources: open until the stream ends."""

    media_type = "text/event-stream"

    def __init__(self, job: RunningJob, resources: AsyncExitStack) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._job = job
        self._resources = resources
        self._one_at_a_time = anyio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def until_disconnected() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with suppress(TimeoutError):  # of a client that does not read: uvicorn closes its connection
                await run_until_first(
                    partial(self._send_events, send),
                    partial(self._send_keepalives, send),
                    partial(self._end_when_aborted, send),
                    until_disconnected,
                )
        finally:
            with anyio.CancelScope(shield=True):
                await self._resources.aclose()

    async def _send_events(self, send: Send) -> None:
        async for event in events(self._job):
            await self._send(send, f"data: {json_text(event)}\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, text: str) -> None:
        with anyio.fail_after(self._job.services.settings.limits.send_s):
            async with self._one_at_a_time:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def _send_keepalives(self, send: Send) -> None:
        while True:
            await anyio.sleep(15.0)  # proxies close connections that are silent for longer
            await self._send(send, ": still working\n\n")

    async def _end_when_aborted(self, send: Send) -> None:
        await self._job.services.aborted.wait()
        await self._send(send, f"data: {json_text(shutting_down().body)}\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def events(job: RunningJob) -> AsyncIterator[dict[str, Json]]:
    """Yield text deltas and the final event; an error is the last event."""
    deltas = Deltas()
    try:
        async for segment in job.handle:
            delta = deltas.add(segment)
            if delta:
                yield delta_event(delta, segment, job.request)
            if job.request.response_format in ("verbose_json", "diarized_json"):
                yield streamed_segment(segment, job.request)
        transcript = await job.handle.collect()
    except Exception as error:
        fault = to_api_error(error)
        if fault.status >= 500:
            logger.exception("transcription failed")
        yield fault.body
        return
    job.services.metrics.file_seconds.inc(transcript.duration)
    yield done_event(transcript, job.request, job.handle.n_prompt_tokens)


def transcription_request(form: fields.Fields) -> FileRequest:
    values = fields.read_form(form, "openai")
    response_format = values["response_format"]
    logprobs, stream = bool(values["include"]), bool(values["stream"])
    granularities = values["granularities"]
    with_words = ("verbose_json", "diarized_json") if stream else ("verbose_json",)
    if granularities and response_format not in with_words:
        raise invalid_value(
            "timestamp_granularities[]", f"response_format {' or '.join(with_words)}", response_format
        )
    options = transcribe_options(values, "transcribe", words="word" in granularities or logprobs)
    if options.with_english and response_format in ("json", "text"):
        raise invalid_value("translate_to", "another response_format, with segments", response_format)
    names, references = values["reference_names"], values["references"]
    if response_format == "diarized_json":
        speakers = SpeakerOptions(known=known_speakers(names, references))
        options = replace(options, speakers=speakers)
    elif names or references:
        raise invalid_value("known_speaker_names[]", "response_format diarized_json", response_format)
    if logprobs and response_format != "json":
        raise invalid_value("include[]", "logprobs with response_format json", response_format)
    if stream and response_format not in STREAMED:
        raise invalid_value("stream", f"response_format {' or '.join(STREAMED)}", response_format)
    return FileRequest(
        options=options,
        languages=languages_of(values),
        phrases=phrases_of(values),
        model=values["model"],
        response_format=response_format,
        words="word" in granularities,
        segments="segment" in granularities or not granularities,
        logprobs=logprobs,
        stream=stream,
        ignored=(*form.unread, *unknown_chunking(values["chunking_strategy"])),
    )


def translation_request(form: fields.Fields) -> FileRequest:
    values = fields.read_form(form, "openai", translation_form())
    return FileRequest(
        options=transcribe_options(values, "translate", words=False),
        model=values["model"],
        response_format=values["response_format"],
        ignored=form.unread,
    )


def phrases_of(values: Values) -> tuple[str, ...]:
    hotwords = values["hotwords"] or ""
    if len(hotwords) > fields.MAX_CHARACTERS:
        raise invalid_value("hotwords", f"at most {fields.MAX_CHARACTERS} characters", str(len(hotwords)))
    return (*values["phrases"], *(word.strip() for word in hotwords.split(",") if word.strip()))


def translation_form() -> list[Option]:
    openai = fields.fields_of("openai")
    options = {name: openai[name][0] for name in TRANSLATED}
    formats = replace(openai["response_format"][1], choices=TRANSLATION_FORMATS)
    options["response_format"] = replace(options["response_format"], openai=formats)
    return list(options.values())


def languages_of(values: Values) -> tuple[str, ...]:
    language, several = values["language"], values.get("languages") or ()
    if language is not None and several:
        raise invalid_value("language", "language or languages[]", "both")
    names = [language] if language is not None else several
    with invalid_options("languages[]" if several else "language"):
        return tuple(dict.fromkeys(find_language(name) for name in names if name != "auto"))


def transcribe_options(values: Values, task: Task, *, words: bool) -> TranscribeOptions:
    strategy = values.get("chunking_strategy") or ("auto" if values.get("vad_filter") else None)
    return from_values(
        TranscribeOptions,
        values,
        decoding=from_values(DecodingOptions, values, task=task),
        fallback=from_values(FallbackOptions, values),
        mode="seek" if strategy is None else "vad",
        vad=vad_of(strategy),
        word_timestamps=words,
    )


def vad_of(strategy: str | Mapping[str, object] | None) -> VadOptions | None:
    if strategy is None or strategy == "auto":
        return None
    if isinstance(strategy, str) or strategy.get("type") != "server_vad":
        raise invalid_value(
            "chunking_strategy", "'auto' or an object of type 'server_vad'", f"'{str(strategy)[:100]}'"
        )
    given = {
        ours: fields.read_number(f"chunking_strategy[{key}]", strategy[key], 0.0, most)
        for key, (ours, most) in CHUNKING.items()
        if key in strategy
    }
    return window_vad("chunking_strategy", given)


def window_vad(name: str, given: Mapping[str, float]) -> VadOptions:
    with invalid_options(name):
        return replace(WINDOW_VAD, **given)


def unknown_chunking(strategy: str | Mapping[str, object] | None) -> tuple[str, ...]:
    known: fields.KnownFields = {"chunking_strategy": fields.known_fields("type", *CHUNKING)}
    return fields.unknown_fields({"chunking_strategy": strategy}, known)


def known_speakers(names: Sequence[str], references: Sequence[str]) -> dict[str, Samples]:
    """Return speech (n,) float32 at 16 kHz by name."""
    if len(names) != len(references):
        raise invalid_value(NAMES, "a reference for each name", f"{len(names)} and {len(references)}")
    if len(names) > MOST_SPEAKERS or len(set(names)) < len(names) or not all(name.strip() for name in names):
        raise invalid_value(NAMES, f"at most {MOST_SPEAKERS} different names", f"{len(names)}")
    return {name: speech_of(reference) for name, reference in zip(names, references, strict=True)}


def speech_of(reference: str) -> Samples:
    head, _, content = reference.partition(",")
    try:
        if not head.startswith("data:") or not head.endswith(";base64"):
            raise ValueError("no data: address")
        samples = load_audio(base64.b64decode(content, validate=True), duration_s=2 * MOST_SPEECH_S)
    except (binascii.Error, ValueError) as error:
        reason = str(error) if isinstance(error, AudioError) else "something else"
        raise invalid_value(REFERENCES, "'data:audio/wav;base64,…'", reason) from error
    speech_s = len(samples) / SAMPLE_RATE
    if not LEAST_SPEECH_S <= speech_s <= MOST_SPEECH_S:
        expected = f"{LEAST_SPEECH_S:.0f} to {MOST_SPEECH_S:.0f} seconds of speech"
        raise invalid_value(REFERENCES, expected, f"{speech_s:.1f}")
    return samples


def json_answer(transcript: Transcript, request: FileRequest) -> dict[str, Json]:
    if request.response_format == "diarized_json":
        return diarized_document(transcript)
    if request.response_format == "verbose_json":
        return verbose_document(transcript, request)
    document: dict[str, Json] = {"text": transcript.text}
    if not is_translation(request):
        document["languages"] = transcript_languages(transcript)
        document["usage"] = duration_usage(transcript)
    if request.logprobs:
        document["logprobs"] = [logprob(word) for word in words_of(transcript.segments)]
    return document


def is_translation(request: FileRequest) -> bool:
    return request.options.decoding.task == "translate"


def text_answer(transcript: Transcript, request: FileRequest) -> str:
    if request.response_format == "text":
        return transcript.text + "\n"
    # A cue for each segment, as these APIs give: clients join them with `verbose_json` by their times.
    layout = WriterOptions(layout="segments", offset_n=request.offset_n)
    writer = writer_for(request.response_format, layout)
    return write_transcript(writer, transcript)


def verbose_document(transcript: Transcript, request: FileRequest) -> dict[str, Json]:
    document: dict[str, Json] = {
        "task": request.options.decoding.task,
        "language": "english" if is_translation(request) else name_of(transcript.language),
        "duration": seconds(transcript.duration),
        "text": transcript.text,
    }
    if request.words:
        document["words"] = [word_document(word) for word in words_of(transcript.segments)]
    if request.segments:
        document["segments"] = [segment_document(segment) for segment in transcript.segments]
    if not is_translation(request):
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
    return {
        "type": "transcript.text.segment",
        "id": segment_id(segment),
        **span_document(segment.start, segment.end),
        "text": segment.text,
        "speaker": segment.speaker or "A",
        **translation_field(segment),
    }


def streamed_segment(segment: Segment, request: FileRequest) -> dict[str, Json]:
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
    """seek: the start in log-mel frames of 10 ms."""
    return {
        "id": segment.id,
        "seek": round(segment.start * SAMPLE_RATE / HOP_SAMPLES),
        **span_document(segment.start, segment.end),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": score(segment.temperature),
        "avg_logprob": score(segment.avg_logprob),
        "compression_ratio": score(segment.compression_ratio),
        "no_speech_prob": score(segment.no_speech_prob),
        "language": segment.language,
        **translation_field(segment),
    }


def translation_field(segment: Segment) -> dict[str, Json]:
    return {} if segment.translation is None else {"translation": segment.translation}


def word_document(word: Word) -> dict[str, Json]:
    return {"word": word.word.strip(), **span_document(word.start, word.end)}


def logprob(word: Word) -> dict[str, Json]:
    value = math.log(word.probability) if word.probability > 0 else -100.0
    return {"token": word.word, "bytes": list(word.word.encode()), "logprob": score(value)}


def words_of(segments: Sequence[Segment]) -> Iterator[Word]:
    return (word for segment in segments for word in segment.words or ())


def transcript_languages(transcript: Transcript) -> list[dict[str, Json]]:
    codes = dict.fromkeys(segment.language for segment in transcript.segments if segment.language)
    return [{"code": code} for code in codes]


def name_of(code: str) -> str:
    return language_name(code).lower() if code else ""


def duration_usage(transcript: Transcript) -> dict[str, Json]:
    return {"type": "duration", "seconds": seconds(transcript.duration)}


def token_usage(transcript: Transcript, n_prompt_tokens: int) -> dict[str, Json]:
    """Render usage by tokens; an encoder frame (20 ms) is one."""
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
    """The text of a stream in pieces; joined, they are the final text."""

    def __init__(self) -> None:
        self._space = ""
        self._has_begun = False

    def add(self, segment: Segment) -> str:
        """Return the text that a segment adds; trailing spaces wait for the next one."""
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
        "languages": transcript_languages(transcript),
        "usage": token_usage(transcript, n_prompt_tokens),
    }
    if request.logprobs:
        event["logprobs"] = [logprob(word) for word in words_of(transcript.segments)]
    return event


TRANSLATION_FIELDS = api.form_schemas("openai", SUPPORTED["translate"])
TRANSLATION_FIELDS["response_format"] = {"type": "string", "enum": [*TRANSLATION_FORMATS]}
API = api.Api(
    routes=(
        api.http_route(
            "POST",
            "/v1/audio/transcriptions",
            partial(respond, read=transcription_request),
            "Text in the language that is spoken, as OpenAI's API",
            api.answers({**api.TRANSCRIPT, "text/event-stream": api.STRING}),
            body=api.form(api.form_schemas("openai")),
            reads_query=True,
        ),
        api.http_route(
            "POST",
            "/v1/audio/translations",
            partial(respond, read=translation_request),
            "Text in English, as OpenAI's API",
            api.answers(api.TRANSCRIPT),
            body=api.form(TRANSLATION_FIELDS),
            reads_query=True,
        ),
    )
)
