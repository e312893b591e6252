"""`POST /v1/convert`: a finished transcript in another format, as `sottovoce convert` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from starlette.requests import Request
from starlette.responses import Response

from sottovoce.errors import MissingExtraError, OptionError
from sottovoce.formats.files import FORMATS, OF_SPEAKERS, parse_transcript, writer_for
from sottovoce.formats.output import as_bytes, info_of, pieces_of
from sottovoce.offline.regroup import parse_rules, regrouped
from sottovoce.options.schema import ApiField, Option, from_values, options_of
from sottovoce.options.transcribe import WriterOptions
from sottovoce.server import api
from sottovoce.server.errors import ApiError, invalid_value, to_api_error
from sottovoce.server.fields import TEXT, one_of, query_of, read_field, read_text, schema_of
from sottovoce.server.services import services_of
from sottovoce.server.uploads import limited_stream, whole_body
from sottovoce.server.worker import Slices
from sottovoce.types import Transcript

MAX_BYTES = 16_000_000
"""Of a transcript: about twenty hours of speech with words."""
WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
CONTENT_TYPES = {
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
    "json": "application/json",
    "json-full": "application/json",
    "docx": WORD,
}
PLAIN = "text/plain; charset=utf-8"
LAYOUT: Mapping[str, tuple[Option, ApiField]] = {
    option.key: (option, ApiField(option.key)) for option in options_of(WriterOptions)
}


@dataclass(frozen=True, slots=True)
class Conversion:
    """The requested document. title: of the recording. regroup: rules of `sottovoce convert`."""

    format: str
    title: str = ""
    regroup: str = ""
    layout: WriterOptions = field(default_factory=WriterOptions)


async def convert(request: Request) -> Response:
    """Answer with the document of the transcript. Raises: ApiError 400, 413."""
    services = services_of(request)
    wanted = conversion(query_of(request))
    with services.upload():
        body = await whole_body(limited_stream(request, services.settings.limits), MAX_BYTES)
        document = await services.decoding.run(converted(body, wanted))
    headers = {
        "content-type": CONTENT_TYPES.get(wanted.format, PLAIN),
        "content-disposition": f'attachment; filename="transcript.{writer_for(wanted.format).extension}"',
    }
    return Response(document, headers=headers)


def conversion(query: Mapping[str, str]) -> Conversion:
    name = one_of(*FORMATS)("format", query.get("format", "json"))
    layout = {key: read_field(key, query[key], *declared) for key, declared in LAYOUT.items() if key in query}
    try:
        wanted = Conversion(
            name,
            read_text("title", query.get("title", "")),
            read_text("regroup", query.get("regroup", "")),
            from_values(WriterOptions, layout),
        )
        writer_for(name, wanted.layout)
    except MissingExtraError as error:
        message = f"format: '{name}' is not available on this server"
        raise ApiError(message, param="format", code="unsupported_value") from error
    except OptionError as error:
        raise to_api_error(error, param="format") from error
    return wanted


def converted(body: bytes, wanted: Conversion) -> Slices[bytes]:
    transcript = parse_transcript(body, "body", is_json=True)
    yield
    if (wanted.regroup or wanted.layout.need_words) and any(
        segment.words is None for segment in transcript.segments
    ):
        raise OptionError("body: expected words with times, got none; an option places words")
    if wanted.format in OF_SPEAKERS and not has_speakers(transcript):
        raise invalid_value("format", "speakers in the transcript", "none")
    if wanted.regroup:
        segments = regrouped(transcript.segments, parse_rules(wanted.regroup))
        transcript = replace(transcript, segments=tuple(segments))
    info = info_of(transcript, f"{wanted.title}.json" if wanted.title else None)
    document = bytearray()
    for piece in pieces_of(writer_for(wanted.format, wanted.layout), transcript, info):
        document += as_bytes(piece)
        yield
    return bytes(document)


def has_speakers(transcript: Transcript) -> bool:
    return bool(transcript.turns) or any(segment.speaker for segment in transcript.segments)


SCHEMAS: dict[str, api.Schema] = {
    "format": {"type": "string", "enum": [*FORMATS]},
    "title": TEXT,
    "regroup": TEXT,
    **{name: schema_of(option, field) for name, (option, field) in LAYOUT.items()},
}
KINDS = sorted({kind.partition(";")[0] for kind in (PLAIN, *CONTENT_TYPES.values())})
CONVERT = api.http_route(
    "POST",
    "/v1/convert",
    convert,
    "A transcript in another format, as `sottovoce convert`",
    api.answers(dict.fromkeys(KINDS, api.STRING)),
    *(api.parameter(name, schema) for name, schema in SCHEMAS.items()),
    body={"required": True, "content": {"application/json": {"schema": api.an_object()}}},
)
API = api.Api(routes=(CONVERT,))
