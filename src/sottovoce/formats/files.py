"""Reading of transcript files (JSON, SubRip, WebVTT), and writing by file extension."""

from __future__ import annotations

import json
from pathlib import Path

from sottovoce.errors import OptionError, cause_of
from sottovoce.formats.base import write_document
from sottovoce.formats.output import format_named, label_of, open_output
from sottovoce.formats.parse_json import transcript_of_json
from sottovoce.formats.srt_vtt import has_cues, transcript_of_cues
from sottovoce.formats.writers import FORMATS, extension_of, writer_for
from sottovoce.options.writer import WriterOptions
from sottovoce.text.files import decode_text, read_text
from sottovoce.types import Transcript

READABLE = (".json", ".srt", ".vtt")
UNREADABLE = (".ass", ".ssa", ".sbv", ".sub", ".smi", ".ttml", ".dfxp", ".lrc", ".tsv", ".csv", ".textgrid")
"""Extensions of unsupported transcripts, whose times must not be read as words."""


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
    try:
        text = decode_text(data)
    except ValueError as error:
        raise OptionError(f"{name}: expected a text, got {error}") from error
    return _text_or_transcript(text, name)


def _text_or_transcript(text: str, name: str) -> str | Transcript:
    is_json = text.lstrip().startswith("{") and ('"segments"' in text or '"transcription"' in text)
    return _transcript(text, name, is_json=is_json) if is_json or has_cues(text) else text


def parse_transcript(data: bytes, name: str, *, is_json: bool | None = None) -> Transcript:
    """Parse the bytes of a transcript. name: start of errors. is_json: None: detect it. Raises:
    OptionError.
    """
    text = _decoded(data, name)
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


def _decoded(data: bytes, name: str) -> str:
    encoding = json.detect_encoding(data)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        if not encoding.startswith("utf-8"):
            raise OptionError(f"{name}: expected {encoding.upper()}, got other bytes") from error
        if b'"transcription"' in data:  # whisper.cpp's tokens may be parts of characters
            return data.decode(encoding, "surrogateescape")
        line, byte = data[: error.start].count(b"\n") + 1, data[error.start]
        raise OptionError(
            f"{name}: expected text, got the byte 0x{byte:02x}, which is not UTF-8, in line {line} "
            "(iconv -f CP1252 -t UTF-8 converts Latin-1)"
        ) from error


def save_transcript(transcript: Transcript, path: str | Path, options: WriterOptions | None = None) -> None:
    """Write the document atomically, in the format of the name's extension.

    Raises: OptionError for an unknown extension, unused options, or an unwritable path; MissingExtraError.
    """
    path = Path(path)
    writer = writer_for(format_of(path), options)
    with open_output(path) as output:
        output.write(write_document(writer, transcript, source=label_of(path.name)))


def format_of(path: Path) -> str:
    found = format_named(path.name)
    if found is None:
        endings = ", ".join(f".{extension_of(one)}" for one in FORMATS)
        raise OptionError(f"transcript '{path}': expected a name that ends in {endings}")
    return found


class _Files:
    def load(self, path: str | Path) -> Transcript:
        return load_transcript(path)

    def save(self, transcript: Transcript, path: str | Path) -> None:
        save_transcript(transcript, path)


Transcript.files = _Files()
