"""`/asr` and `/detect-language` of whisper-asr-webservice, which Bazarr and other subtitle managers call.

Source: ahmetoner/whisper-asr-webservice 1.10, `app/webservice.py`; McCloudS/subgen, `subgen.py` (`/status`).
"""

from __future__ import annotations

from importlib.metadata import version
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sottovoce.formats.document import json_text, score
from sottovoce.formats.files import writer_for
from sottovoce.formats.output import write_transcript
from sottovoce.options.decoding import DecodingOptions, FallbackOptions
from sottovoce.options.schema import Values, from_values
from sottovoce.options.transcribe import SpeakerOptions, TranscribeOptions
from sottovoce.server import api, fields
from sottovoce.server.apis.openai_files import languages_of, segment_document, word_document
from sottovoce.server.errors import ApiError, invalid_options
from sottovoce.server.uploads import FileRequest, received_form, running_job
from sottovoce.text.languages import language_name
from sottovoce.types import Transcript

SAMPLES = "s16le:16000:1"
"""Uploads with `encode=false`."""


async def asr(request: Request) -> Response:
    async with running_job(request, received_form(request), asr_request) as job:
        transcript = await job.collected(request)
    output = job.request.response_format
    name = quote(f"{job.recording.name}.{output}")
    headers = {
        "content-type": "text/plain; charset=utf-8",
        "content-disposition": f'attachment; filename="{name}"',
    }
    return Response(asr_answer(transcript, output), headers=headers)


def asr_answer(transcript: Transcript, output: str) -> str:
    if output != "json":
        return write_transcript(writer_for(output), transcript)
    segments = [
        {**segment_document(segment), "words": [word_document(word) for word in segment.words or ()]}
        for segment in transcript.segments
    ]
    return json_text({"text": transcript.text, "segments": segments, "language": transcript.language})


async def detect_language(request: Request) -> Response:
    async with running_job(request, received_form(request), detection_request) as job:
        detection = await job.handle.detect_language()
    if detection is None:
        raise ApiError("detect-language: expected a recording and a model of several languages", status=422)
    return JSONResponse(
        {
            "detected_language": language_name(detection.language).lower(),
            "language_code": detection.language,
            "confidence": score(detection.probability),
        }
    )


async def status(request: Request) -> Response:
    return JSONResponse({"version": f"sottovoce {version('sottovoce')}"})


def asr_request(form: fields.Fields) -> FileRequest:
    values = fields.read_form(form, "whisper_asr")
    output = values["output"] or "txt"
    with invalid_options("min_speakers"):
        speakers = from_values(SpeakerOptions, {key: values[key] for key in ("min_speakers", "max_speakers")})
    options = from_values(
        TranscribeOptions,
        values,
        decoding=from_values(DecodingOptions, values),
        speakers=speakers if values["diarize_voices"] else None,
        word_timestamps=bool(values["word_timestamps"]) or output in ("srt", "vtt"),
        input_format=input_format(values),
    )
    return FileRequest(
        options=options, languages=languages_of(values), response_format=output, ignored=form.unread
    )


def detection_request(form: fields.Fields) -> FileRequest:
    """Return a request whose first segment takes little time: greedy, and read once."""
    values = fields.read_form(form, "whisper_asr", fields.DETECTION)
    options = from_values(
        TranscribeOptions,
        values,
        decoding=DecodingOptions(beam_size=1),
        fallback=FallbackOptions(temperatures=(0.0,)),
        read_again=False,
        input_format=input_format(values),
    )
    return FileRequest(options=options, ignored=form.unread)


def input_format(values: Values) -> str | None:
    return SAMPLES if values["encode"] is False else None


DETECTED = api.an_object(detected_language=api.STRING, language_code=api.STRING, confidence=api.NUMBER)
BODY = api.form({"audio_file": {"type": "string", "format": "binary"}}, required="audio_file")
API = api.Api(
    routes=(
        api.http_route(
            "POST",
            "/asr",
            asr,
            "Text or subtitles, as whisper-asr-webservice",
            api.answers({"text/plain": api.STRING}),
            *(api.parameter(name, schema) for name, schema in api.form_schemas("whisper_asr").items()),
            body=BODY,
            reads_query=True,
        ),
        api.http_route(
            "POST",
            "/detect-language",
            detect_language,
            "The language of a recording, as whisper-asr-webservice",
            api.answers({"application/json": DETECTED}),
            *(
                api.parameter(name, fields.schema_of(*declared))
                for name, declared in fields.fields_of("whisper_asr", fields.DETECTION).items()
            ),
            body=BODY,
            reads_query=True,
        ),
        api.http_route(
            "GET",
            "/status",
            status,
            "The version, as Subgen",
            api.json_answers(api.an_object("version", version=api.STRING)),
        ),
    )
)
