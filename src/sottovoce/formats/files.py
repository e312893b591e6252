"""Read transcripts from files, and write one in the format that the file's name ends in.

Readable are our JSON, that of openai-whisper and whisper.cpp, SubRip and WebVTT.
"""

from __future__ import annotations

import json
from pathlib import Path

from sottovoce.errors import OptionError, cause_of
from sottovoce.formats.base import write_document
from sottovoce.formats.output import open_output
from sottovoce.formats.output_names import format_named, label_of
from sottovoce.formats.parse_json import transcript_of_json
from sottovoce.formats.parse_subtitles import transcript_of_cues
from sottovoce.formats.writers import FORMATS, extension_of, writer_for
from sottovoce.options.writer import WriterOptions
from sottovoce.text.files import decode_text
from sottovoce.types import Transcript

READABLE = (".json", ".srt", ".vtt")
"""Endings of the files that are transcripts rather than text."""


def load_transcript(path: str | Path) -> Transcript:
    """Read a transcript from a file whose ending is one of `READABLE`.

    Raises: OptionError naming the file and what was expected.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in READABLE:
        raise OptionError(f"transcript '{path}': expected a name that ends in {', '.join(READABLE)}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OptionError(f"transcript '{path}': cannot be read ({cause_of(error)})") from error
    return parse_transcript(data, f"transcript '{path}'", is_json=kind == ".json")


def parse_transcript(data: bytes, name: str, *, is_json: bool | None = None) -> Transcript:
    """Parse the bytes of a transcript. name: what an error begins with. is_json: None to detect it.

    Raises: OptionError.
    """
    try:
        text = decode_text(data)
    except ValueError as error:
        raise OptionError(f"{name}: expected text, got {error}") from error
    if is_json is None:
        is_json = text.lstrip()[:1] in ("{", "[")
    try:
        return transcript_of_json(_json(text, name)) if is_json else transcript_of_cues(text)
    except ValueError as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"{name}: expected segments with times, got none ({error})") from error


def _json(text: str, name: str) -> object:
    """Parse JSON.

    Raises: OptionError for other text, or JSON nested deeper than any transcript is.
    """
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{name}: expected JSON, got something else ({cause_of(error)})") from error
    return document


def save_transcript(transcript: Transcript, path: str | Path, options: WriterOptions | None = None) -> None:
    """Write the document whose format the ending of the name tells; it appears whole or not at all.

    Raises: OptionError for an ending that no format has, options that the format has no use for, and where
        nothing can be written; MissingExtraError.
    """
    path = Path(path)
    writer = writer_for(format_of(path), options)
    with open_output(path) as output:
        output.write(write_document(writer, transcript, source=label_of(path.name)))


def format_of(path: Path) -> str:
    """Return the format whose ending a name has: json-full of talk.full.json.

    Raises: OptionError.
    """
    found = format_named(path.name)
    if found is None:
        endings = ", ".join(f".{extension_of(one)}" for one in FORMATS)
        raise OptionError(f"transcript '{path}': expected a name that ends in {endings}")
    return found
