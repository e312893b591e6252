"""Requests of other Whisper servers: `/inference` and `/load` of whisper.cpp's; `/asr` and `/detect-language`
of whisper-asr-webservice, which Bazarr and other subtitle managers call.

Source: ahmetoner/whisper-asr-webservice 1.10, `app/webservice.py`; McCloudS/subgen, `subgen.py` (`/status`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from itertools import zip_longest
from urllib.parse import quote

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from sottovoce.audio.io import Recording
from sottovoce.formats.document import Json, json_text, score, span_document
from sottovoce.formats.files import writer_for
from sottovoce.formats.output import write_transcript
from sottovoce.options.decoding import HOTTEST, DecodingOptions, FallbackOptions, VadOptions
from sottovoce.options.schema import Values, from_values, options_of
from sottovoce.options.transcribe import SpeakerOptions, TranscribeOptions
from sottovoce.server import api
from sottovoce.server.apis import openai_files
from sottovoce.server.errors import ApiError, invalid_options
from sottovoce.server.fields import DETECTION, TEXT, Fields, fields_of, note_ignored, read_form, schema_of
from sottovoce.server.services import services_of
from sottovoce.server.uploads import (
    FileRequest,
    UploadedFile,
    cancel_on_disconnect,
    received_form,
    running_job,
)
from sottovoce.speakers.diarize import has_channels_apart
from sottovoce.speakers.labels import letter_index, parts_of, spoken_by
from sottovoce.text.languages import language_name
from sottovoce.types import Segment, Transcript, Word

SPEAKER_TURN = " [SPEAKER_TURN]"
"""whisper.cpp's mark of a change of speaker (tinydiarize)."""


async def inference(request: Request) -> Response:
    read = partial(inference_request, model=services_of(request).inference_model)
    async with running_job(request, received_form(request), read, adapt=with_voice_diarization) as job:
        transcript = await job.collected(request)
    wanted = job.request
    transcript = with_speakers(with_max_length(transcript, wanted), wanted)
    if wanted.response_format in openai_files.TEXT_TYPES:
        return openai_files.text_response(transcript, wanted)
    if wanted.response_format == "json":
        return JSONResponse({"text": "".join(f"{segment.text}\n" for segment in transcript.segments)})
    return JSONResponse(inference_document(transcript, wanted))


async def load(request: Request) -> Response:
    """Change the model of `/inference`. Raises: ApiError 403 if the server has one model only."""
    services = services_of(request)
    if len(services.registry.settings.names) == 1:
        message = "/load: expected models to choose from, got one alone (see --also-model)"
        raise ApiError(message, status=403, code="not_allowed")
    async with received_form(request) as (fields, _):
        wanted = fields.text("model")
        if wanted is None:
            raise ApiError("model: expected a name, got none", param="model", code="missing_parameter")
        name = services.registry.resolve(wanted)
        note_ignored(request, services.registry.ignored(wanted, fields.unread))
    async with services.registry.use(name):
        services.inference_model = name
    return PlainTextResponse("Load was successful!\n")


def with_voice_diarization(request: FileRequest, upload: UploadedFile) -> FileRequest:
    """Diarize by voice if both channels have the same sound."""
    options = request.options
    if options.channels != "energy" or has_channels_apart(Recording(upload.source, options)):
        return request
    return replace(request, options=replace(options, channels="mixed", speakers=SpeakerOptions()))


def with_max_length(transcript: Transcript, request: FileRequest) -> Transcript:
    limit = request.max_len
    if limit is None:
        return transcript
    parts = [part for segment in transcript.segments for part in split_segment(segment, limit)]
    numbered = [
        replace(part, id=i, words=part.words if request.words else None) for i, part in enumerate(parts)
    ]
    return replace(transcript, segments=tuple(numbered))


def split_segment(segment: Segment, limit: int) -> Iterator[Segment]:
    """One word may have more than `limit` letters."""
    groups: list[list[Word]] = []
    room = 0
    for word in segment.words or ():
        if not groups or len(word.word) > room:
            groups.append([])
            room = limit + len(word.word) - len(word.word.lstrip())
        groups[-1].append(word)
        room -= len(word.word)
    parts = parts_of(segment, [tuple(group) for group in groups]) if groups else iter((segment,))
    return (replace(part, speaker=segment.speaker) for part in parts)


def with_speakers(transcript: Transcript, request: FileRequest) -> Transcript:
    """Write speakers like whisper.cpp: before a segment, as a voice in `vtt`, or a mark where a turn ends."""
    options = request.options
    if options.decoding.speaker_turns:
        return replace(transcript, segments=tuple(with_turn_marks(transcript.segments)))
    if (
        options.channels != "energy" and options.speakers is None
    ) or request.response_format == "verbose_json":
        return transcript
    in_text = request.response_format != "vtt"
    return replace(
        transcript,
        segments=tuple(_label_speaker(segment, in_text=in_text) for segment in transcript.segments),
    )


def with_turn_marks(segments: Sequence[Segment]) -> Iterator[Segment]:
    for segment, after in zip_longest(segments, segments[1:]):
        is_end = after is not None and after.speaker != segment.speaker
        yield replace(spoken_by(segment, None), text=segment.text + (SPEAKER_TURN if is_end else ""))


def _label_speaker(segment: Segment, *, in_text: bool) -> Segment:
    if segment.speaker is None:
        return segment
    place = letter_index(segment.speaker)
    if in_text:  # the words would tell the text without it
        return replace(segment, text=f"(speaker {place}){segment.text}", speaker=None, words=None)
    return spoken_by(segment, f"Speaker{place}")


def inference_document(transcript: Transcript, request: FileRequest) -> dict[str, Json]:
    """Render `verbose_json`: OpenAI's, with words in segments, and languages with probabilities."""
    document = openai_files.verbose_document(transcript, request)
    document["segments"] = [
        {
            **openai_files.segment_document(segment),
            **({} if segment.speaker is None else {"speaker": str(letter_index(segment.speaker))}),
            "words": [word_of(word) for word in segment.words or ()],
        }
        for segment in transcript.segments
    ]
    document.pop("words", None)
    document["detected_language"] = document["language"]
    document["detected_language_probability"] = transcript.language_probability
    if request.language_probabilities:
        likely = {code: score(p) for code, p in transcript.language_probabilities.items() if p > 0.001}
        document["language_probabilities"] = likely
    return document


def word_of(word: Word) -> dict[str, Json]:
    """Render a word of a segment; t_dtw: its start in hundredths of a second."""
    return {
        "word": word.word,
        **span_document(word.start, word.end),
        "t_dtw": round(100 * word.start),
        "probability": score(word.probability),
    }


def inference_request(fields: Fields, model: str) -> FileRequest:
    values = read_form(fields, "whisper_cpp")
    response_format = values["response_format"]
    words = response_format == "verbose_json" and not values["no_timestamps"]
    return FileRequest(
        options=transcribe_options(values, words=words or values["max_len"] is not None),
        languages=() if values["detect_language"] else openai_files.languages_of(values),
        model=model,
        response_format=response_format,
        words=words,
        max_len=values["max_len"],
        offset_n=(values["offset_n"] or 0) if response_format == "srt" else 0,
        language_probabilities=not values["no_language_probabilities"],
        ignored=fields.unread,
    )


def transcribe_options(values: Values, *, words: bool) -> TranscribeOptions:
    threshold = values["word_threshold"] or 0.0
    return from_values(
        TranscribeOptions,
        values,
        decoding=from_values(DecodingOptions, values),
        fallback=from_values(FallbackOptions, values, temperatures=temperatures(values)),
        vad=vad_options(values),
        word_timestamps=words,
        word_threshold=threshold if words else 0.0,
    )


def temperatures(values: Values) -> tuple[float, ...]:
    first = values["first_temperature"] or 0.0
    # 0.2: the default of whisper.cpp.
    step = 0.2 if values["temperature_step"] is None else values["temperature_step"]
    n_steps = min((HOTTEST - first) / step + 1e-6, 10) if step else 0  # of a tiny one without end
    return tuple(round(first + i * step, 6) for i in range(math.floor(n_steps) + 1))


def vad_options(values: Values) -> VadOptions | None:
    if values["mode"] is None:
        return None
    given = {
        option.field: values[option.key]
        for option in options_of(VadOptions)
        if values.get(option.key) is not None
    }
    return openai_files.window_vad("vad", given)


def render_error(connection: HTTPConnection, fault: ApiError) -> dict[str, Json]:
    return {"error": fault.message}


CPP_ERROR = api.an_object("error", error=api.STRING)
WHISPER_CPP = api.Api(
    routes=(
        api.http_route(
            "POST",
            "/inference",
            inference,
            "Text, as whisper.cpp's server",
            api.answers(api.TRANSCRIPT, CPP_ERROR),
            body=api.form(api.form_schemas("whisper_cpp")),
            reads_query=True,
        ),
        api.http_route(
            "POST",
            "/load",
            load,
            "Change the model of /inference, among those offered",
            api.answers({"text/plain": api.STRING}, CPP_ERROR),
            body=api.form({"model": TEXT}, required="model"),
            reads_query=True,
        ),
    ),
    error=render_error,
)


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
        {
            **openai_files.segment_document(segment),
            "words": [openai_files.word_document(word) for word in segment.words or ()],
        }
        for segment in transcript.segments
    ]
    return json_text({"text": transcript.text, "segments": segments, "language": transcript.language})


async def detect_language(request: Request) -> Response:
    async with running_job(request, received_form(request), detection_request) as job:
        detection = await cancel_on_disconnect(request, job.handle.detect_language())
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


def asr_request(form: Fields) -> FileRequest:
    values = read_form(form, "whisper_asr")
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
        options=options,
        languages=openai_files.languages_of(values),
        response_format=output,
        ignored=form.unread,
    )


def detection_request(form: Fields) -> FileRequest:
    """Return a request whose first segment takes little time: greedy, and read once."""
    values = read_form(form, "whisper_asr", DETECTION)
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
    return SAMPLES if values["encode"] is False else values["input_format"]


DETECTED = api.an_object(detected_language=api.STRING, language_code=api.STRING, confidence=api.NUMBER)
BODY = api.form({"audio_file": {"type": "string", "format": "binary"}}, required="audio_file")
WHISPER_ASR = api.Api(
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
                api.parameter(name, schema_of(*declared))
                for name, declared in fields_of("whisper_asr", DETECTION).items()
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
