"""Formats by name, and transcript files: written by extension, read from JSON, SubRip and WebVTT."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sottovoce.errors import MissingExtraError, OptionError, cause_of, expecting
from sottovoce.formats.document import JsonFullWriter, JsonWriter, transcript_of_json
from sottovoce.formats.output import Writer, label_of, open_output, write_document, write_transcript
from sottovoce.formats.pages import DocxWriter, HtmlWriter, MarkdownWriter
from sottovoce.formats.plain import (
    CsvWriter,
    EafWriter,
    LabelsWriter,
    LrcWriter,
    RttmWriter,
    TextGridWriter,
    TsvWriter,
    TtmlWriter,
    TxtWriter,
)
from sottovoce.formats.subtitle_files import AssWriter, SrtWriter, VttWriter, has_cues, transcript_of_cues
from sottovoce.formats.subtitles import CueWriter
from sottovoce.options.transcribe import WriterOptions
from sottovoce.text.files import decode_text, read_text
from sottovoce.types import Transcript

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

WRITERS: Mapping[str, type[Writer]] = MappingProxyType(
    {
        "txt": TxtWriter,
        "srt": SrtWriter,
        "vtt": VttWriter,
        "tsv": TsvWriter,
        "json": JsonWriter,
        "csv": CsvWriter,
        "lrc": LrcWriter,
        "json-full": JsonFullWriter,
        "ass": AssWriter,
        "labels": LabelsWriter,
        "textgrid": TextGridWriter,
        "html": HtmlWriter,
        "rttm": RttmWriter,
        "md": MarkdownWriter,
        "docx": DocxWriter,
        "ttml": TtmlWriter,
        "eaf": EafWriter,
    }
)
FORMATS: tuple[str, ...] = tuple(WRITERS)
SUBTITLES = ("srt", "vtt", "ass", "ttml")
"""Formats with layout options."""
OF_SPEAKERS: tuple[str, ...] = ("rttm",)
"""Formats that are empty without speakers."""
BINARY: tuple[str, ...] = ("docx",)
READABLE = (".json", ".srt", ".vtt")
UNREADABLE = (".ass", ".ssa", ".sbv", ".sub", ".smi", ".ttml", ".dfxp", ".lrc", ".tsv", ".csv", ".textgrid")
"""Extensions of unsupported transcripts, whose times must not be read as words."""


def writer_for(name: str, options: WriterOptions | None = None) -> Writer:
    """Create a writer of one of FORMATS. Raises: OptionError for unused options too; MissingExtraError."""
    options = options or WriterOptions()
    if name not in FORMATS:
        close = difflib.get_close_matches(name, FORMATS, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise OptionError(f"output format '{name}': expected one of {', '.join(FORMATS)}{hint}")
    if options.offset_n and name != "srt":
        raise OptionError(f"output format '{name}': offset_n numbers the subtitles of srt")
    if replace(options, offset_n=0) != WriterOptions() and name not in SUBTITLES:
        *others, last = SUBTITLES
        expected = f"{', '.join(others)} and {last}"
        raise OptionError(f"output format '{name}': line breaking and highlighting are for {expected}")
    if not _is_installed(name):
        raise MissingExtraError("python-docx", "docx", f"output format '{name}'")
    writer = WRITERS[name]
    return writer(options) if issubclass(writer, CueWriter) and name in SUBTITLES else writer()


def _is_installed(name: str) -> bool:
    return name != "docx" or find_spec("docx") is not None


def writers_for(
    names: str, options: WriterOptions | None = None, *, has_speakers: bool = True, has_files: bool = True
) -> list[Writer]:
    """Create writers for a list such as "srt,json", or "all"; each format once, in order.

    "all" omits formats of speakers unless has_speakers, binary ones unless has_files, and, with a warning,
    those whose package is missing. Raises: as `writer_for`.
    """
    options = options or WriterOptions()
    wanted = [name.strip() for name in names.split(",")]
    if names == "all":
        left_out = (() if has_speakers else OF_SPEAKERS) + (() if has_files else BINARY)
        wanted = [name for name in FORMATS if name not in left_out]
        for name in wanted:
            if not _is_installed(name):
                logger.warning("all formats but %s, which needs a package: sottovoce[%s]", name, name)
        wanted = list(filter(_is_installed, wanted))
    unique = list(dict.fromkeys(wanted))
    if options.offset_n and "srt" not in unique:
        raise OptionError(f"output format '{names}': offset_n numbers the subtitles of srt")
    plain = replace(options, offset_n=0)
    layouts = dict.fromkeys(SUBTITLES, plain) | {"srt": options}
    of_others = None if layouts.keys() & set(unique) else plain
    return [writer_for(name, layouts.get(name, of_others)) for name in unique]


def extension_of(name: str) -> str:
    return WRITERS[name].extension


def format_named(name: str) -> str | None:
    """Return the format of a file name's extension, or None."""
    base = Path(name).name.lower()
    fitting = [
        name
        for name in FORMATS
        for end in (f".{extension_of(name)}".lower(), f".{name}")
        if base.endswith(end) and base != end
    ]
    return max(fitting, key=lambda name: len(extension_of(name)), default=None)


def format_of(path: Path) -> str:
    name = format_named(path.name)
    if name is None:
        endings = ", ".join(f".{extension_of(each)}" for each in FORMATS)
        raise OptionError(f"transcript '{path}': expected a name that ends in {endings}")
    return name


def save_transcript(transcript: Transcript, path: str | Path, options: WriterOptions | None = None) -> None:
    """Write the document atomically, in the format of the name's extension. Raises: as `writer_for`."""
    path = Path(path)
    writer = writer_for(format_of(path), options)
    with open_output(path) as write:
        write(write_document(writer, transcript, source=label_of(path.name)))


def document_of(transcript: Transcript) -> dict[str, Any]:
    """Return the JSON document of a transcript, decoded."""
    document: dict[str, Any] = json.loads(write_transcript(JsonWriter(), transcript))
    return document


def dataframe_of(transcript: Transcript) -> pd.DataFrame:
    """Return the table of `Transcript.to_dataframe`. Raises: OptionError without pandas."""
    try:
        import pandas as pd
    except ImportError as error:
        raise OptionError("to_dataframe: needs the package 'pandas'") from error
    rows = [
        {
            "text": (word.word if word else segment.text).strip(),
            "start": (word or segment).start,
            "end": (word or segment).end,
            "language": (word and word.language) or segment.language,
            "speaker": (word and word.speaker) or segment.speaker,
            **({"probability": word.probability} if word else {}),
        }
        for segment in transcript.segments
        for word in segment.words or (None,)
    ]
    return pd.DataFrame(rows)


def load_transcript(path: str | Path) -> Transcript:
    """Read a transcript from a file with one of the `READABLE` extensions. Raises: OptionError."""
    path = Path(path)
    name = f"transcript '{path}'"
    kind = path.suffix.lower()
    if kind not in READABLE:
        raise OptionError(f"{name}: expected a name that ends in {', '.join(READABLE)}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OptionError(f"{name}: cannot be read ({cause_of(error)})") from error
    return parse_transcript(data, name, is_json=kind == ".json")


def load_text(path: str | Path) -> str | Transcript:
    """Read a text, or a transcript by its extension or content. Raises: OptionError."""
    path = Path(path)
    if path.suffix.lower() in READABLE + UNREADABLE:
        return load_transcript(path)
    name = f"text '{path}'"
    return _text_or_transcript(read_text(path, "a text", name=name), name)


def parse_text(data: bytes, name: str) -> str | Transcript:
    with expecting(name, "a text"):
        text = decode_text(data)
    return _text_or_transcript(text, name)


def _text_or_transcript(text: str, name: str) -> str | Transcript:
    is_json = text.lstrip().startswith("{") and ('"segments"' in text or '"transcription"' in text)
    return _transcript(text, name, is_json=is_json) if is_json or has_cues(text) else text


def parse_transcript(data: bytes, name: str, *, is_json: bool | None = None) -> Transcript:
    """Parse a transcript. name: start of errors. is_json: None: detect it. Raises: OptionError."""
    encoding = json.detect_encoding(data)
    try:
        # Tokens in whisper.cpp's JSON may be parts of characters.
        text = data.decode(encoding, "surrogateescape" if b'"transcription"' in data else "strict")
    except UnicodeDecodeError as error:
        if not encoding.startswith("utf-8"):
            raise OptionError(f"{name}: expected {encoding.upper()}, got other bytes") from error
        line, byte = data[: error.start].count(b"\n") + 1, data[error.start]
        raise OptionError(
            f"{name}: expected text, got the byte 0x{byte:02x}, which is not UTF-8, in line {line} "
            "(iconv -f CP1252 -t UTF-8 converts Latin-1)"
        ) from error
    return _transcript(text, name, is_json=text.lstrip()[:1] in ("{", "[") if is_json is None else is_json)


def _transcript(text: str, name: str, *, is_json: bool) -> Transcript:
    try:
        document: object = json.loads(text) if is_json else None
    except (ValueError, RecursionError) as error:  # nested too deeply for a transcript
        raise OptionError(f"{name}: expected JSON, got something else ({cause_of(error)})") from error
    try:
        return transcript_of_json(document) if is_json else transcript_of_cues(text)
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from error
