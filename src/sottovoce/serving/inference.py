"""`/inference` and `/load`, as whisper.cpp's server has them: a form in, text or subtitles out.

What its fields mean, `inference_request` knows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import zip_longest

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from sottovoce.audio.recording import Recording
from sottovoce.formats.document import Json, score, seconds
from sottovoce.serving.answers import TEXT_TYPES, text_answer, verbose_document
from sottovoce.serving.faults import ApiError, logged_fault
from sottovoce.serving.inference_request import inference_request
from sottovoce.serving.requests import FileRequest
from sottovoce.serving.state import services_of
from sottovoce.serving.transcriptions import begun_with, collected
from sottovoce.serving.uploads import UploadedFile, received_form, require_file
from sottovoce.speakers.channels import has_channels_apart
from sottovoce.speakers.names import place_of
from sottovoce.speakers.options import SpeakerOptions
from sottovoce.speakers.words import parts_of
from sottovoce.types import Segment, Transcript, Word

SPEAKER_TURN = " [SPEAKER_TURN]"
"""What whisper.cpp writes where a checkpoint of tinydiarize hears that somebody else speaks next."""


def plainly(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint with its errors as whisper.cpp tells them: one line."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            raise
        except Exception as error:
            fault = logged_fault(error, request.state.request_id)
            return JSONResponse(
                {"error": fault.message}, status_code=fault.status, headers=dict(fault.headers)
            )

    return answer


async def inference(request: Request) -> Response:
    """The answer to one recording. Raises: ApiError, and the errors of the library."""
    services = services_of(request)
    async with AsyncExitStack() as stack:
        with services.upload():
            form = received_form(request, services.settings.limits)
            fields, upload = await stack.enter_async_context(form)
        stack.enter_context(services.recording())
        wanted = inference_request(fields, services.inference_model)
        opened = await begun_with(services, wanted, require_file(upload), stack, fitted=with_voices)
        transcript = await collected(request, opened.job)
        opened.note(transcript)
    wanted = opened.request
    transcript = with_speakers(of_length(transcript, wanted), wanted)
    if wanted.response_format in TEXT_TYPES:
        kind = TEXT_TYPES[wanted.response_format]
        return Response(text_answer(transcript, wanted), headers={"content-type": kind})
    if wanted.response_format == "json":
        return JSONResponse({"text": lines_of(transcript)})
    return JSONResponse(verbose(transcript, wanted))


async def load(request: Request) -> Response:
    """Change the model of `/inference`, to one of those that the server offers.

    Raises: ApiError 403 where it offers one alone, 404 for one that it does not offer.
    """
    services = services_of(request)
    if len(services.shelf.offer.names) == 1:
        message = "/load: expected models to choose from, got one alone (see --also-model)"
        raise ApiError(message, status=403, code="not_allowed")
    form = received_form(request, services.settings.limits)
    async with form as (fields, _):
        wanted = fields.text("model")
        if wanted is None:
            raise ApiError("model: expected a name, got none", param="model", code="missing_parameter")
        name = services.shelf.name_of(wanted)
    async with services.shelf.use(name):
        services.inference_model = name
    return PlainTextResponse("Load was successful!\n")


def with_voices(request: FileRequest, upload: UploadedFile) -> FileRequest:
    """The request with speakers told by their voices, where channels do not tell them. Blocks.

    Raises: AudioError.
    """
    options = request.wish.options
    if options.channels != "energy" or has_channels_apart(Recording(upload.source)):
        return request
    options = replace(options, channels="mixed", speakers=SpeakerOptions())
    return replace(request, wish=replace(request.wish, options=options))


def of_length(transcript: Transcript, request: FileRequest) -> Transcript:
    """Segments cut between words where they are longer than was asked for."""
    most = request.max_len
    if most is None:
        return transcript
    parts = [part for segment in transcript.segments for part in shortened(segment, most)]
    kept = [replace(part, id=i, words=part.words if request.words else None) for i, part in enumerate(parts)]
    return replace(transcript, segments=tuple(kept))


def shortened(segment: Segment, most: int) -> Iterator[Segment]:
    """Parts of a segment of at most so many letters; one word may have more."""
    groups: list[list[Word]] = []
    room = 0
    for word in segment.words or ():
        if not groups or len(word.word) > room:
            groups.append([])
            room = most + len(word.word) - len(word.word.lstrip())
        groups[-1].append(word)
        room -= len(word.word)
    parts = parts_of(segment, [tuple(group) for group in groups]) if groups else iter((segment,))
    return (replace(part, speaker=segment.speaker) for part in parts)


def with_speakers(transcript: Transcript, request: FileRequest) -> Transcript:
    """Speakers as whisper.cpp writes them: "(speaker 0)" before a segment, a voice in `vtt`, a sign where
    a turn ends."""
    options = request.wish.options
    if options.decoding.speaker_turns:
        return replace(transcript, segments=tuple(with_turn_signs(transcript.segments)))
    if (
        options.channels != "energy" and options.speakers is None
    ) or request.response_format == "verbose_json":
        return transcript
    in_text = request.response_format != "vtt"
    return replace(transcript, segments=tuple(_placed(one, in_text=in_text) for one in transcript.segments))


def with_turn_signs(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Segments without speakers, with a sign where somebody else speaks next."""
    for one, after in zip_longest(segments, segments[1:]):
        is_end = after is not None and after.speaker != one.speaker
        yield replace(one, text=one.text + (SPEAKER_TURN if is_end else ""), speaker=None)


def _placed(segment: Segment, *, in_text: bool) -> Segment:
    """The segment with its speaker (or channel), counted from 0, in its text or as its name."""
    if segment.speaker is None:
        return segment
    place = place_of(segment.speaker)
    if in_text:  # the words would tell the text without it
        return replace(segment, text=f"(speaker {place}){segment.text}", speaker=None, words=None)
    return replace(segment, speaker=f"Speaker{place}")


def lines_of(transcript: Transcript) -> str:
    """The text, a segment a line."""
    return "".join(f"{segment.text}\n" for segment in transcript.segments)


def verbose(transcript: Transcript, request: FileRequest) -> dict[str, Json]:
    """`verbose_json`: OpenAI's, with words in their segments, and languages with their probabilities."""
    document = verbose_document(transcript, request)
    document["segments"] = [
        {**bare, **_place(segment), "words": [word_of(segment, i) for i in range(len(segment.words or ()))]}
        for bare, segment in zip(segments_of(document), transcript.segments, strict=True)
    ]
    document.pop("words", None)
    document["detected_language"] = document["language"]
    document["detected_language_probability"] = transcript.language_probability
    if request.language_probabilities:
        likely = {code: score(p) for code, p in transcript.language_probabilities.items() if p > 0.001}
        document["language_probabilities"] = likely
    return document


def _place(segment: Segment) -> dict[str, Json]:
    """`speaker`, where it is known: which speaker or channel, counted from 0."""
    return {} if segment.speaker is None else {"speaker": str(place_of(segment.speaker))}


def segments_of(document: dict[str, Json]) -> list[dict[str, Json]]:
    """Those of a document of ours."""
    segments = document["segments"]
    assert isinstance(segments, list)
    return segments


def word_of(segment: Segment, index: int) -> dict[str, Json]:
    """One of a segment's words; t_dtw: its start in hundredths of a second."""
    word = (segment.words or ())[index]
    return {
        "word": word.word,
        "start": seconds(word.start),
        "end": seconds(word.end),
        "t_dtw": round(100 * word.start),
        "probability": score(word.probability),
    }
