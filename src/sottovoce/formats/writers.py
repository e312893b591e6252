"""Writers of formats by name."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from types import MappingProxyType

from sottovoce.errors import MissingExtraError, OptionError
from sottovoce.formats.ass import AssWriter
from sottovoce.formats.base import Writer
from sottovoce.formats.document import JsonFullWriter, JsonWriter
from sottovoce.formats.page.html import HtmlWriter
from sottovoce.formats.paragraphs import DocxWriter, MarkdownWriter
from sottovoce.formats.plain import (
    CsvWriter,
    LabelsWriter,
    LrcWriter,
    RttmWriter,
    TextGridWriter,
    TsvWriter,
    TxtWriter,
)
from sottovoce.formats.srt_vtt import SrtWriter, VttWriter
from sottovoce.formats.subtitles import CueWriter
from sottovoce.options.writer import WriterOptions

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
    }
)
FORMATS: tuple[str, ...] = tuple(WRITERS)
SUBTITLES = tuple(name for name, writer in WRITERS.items() if issubclass(writer, CueWriter))
"""Formats with layout options."""
OF_SPEAKERS: tuple[str, ...] = ("rttm",)
"""Formats that are empty without speakers."""
BINARY: tuple[str, ...] = ("docx",)


def writer_for(name: str, options: WriterOptions | None = None) -> Writer:
    """Create a writer of the format `name`, one of FORMATS.

    Raises: OptionError for another name, or unused options; MissingExtraError.
    """
    options = options or WriterOptions()
    if name not in FORMATS:
        close = difflib.get_close_matches(name, FORMATS, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise OptionError(f"output format '{name}': expected one of {', '.join(FORMATS)}{hint}")
    if options.offset_n and name != "srt":
        raise OptionError(f"output format '{name}': offset_n numbers the subtitles of srt")
    if options.need_words and name not in SUBTITLES:
        raise OptionError(f"output format '{name}': line breaking and highlighting are for srt, vtt and ass")
    if not is_installed(name):
        raise MissingExtraError("python-docx", "docx", f"output format '{name}'")
    writer = WRITERS[name]
    return writer(options) if issubclass(writer, CueWriter) else writer()


def is_installed(name: str) -> bool:
    return name != "docx" or find_spec("docx") is not None


def extension_of(name: str) -> str:
    return WRITERS[name].extension


def writers_for(
    names: str, options: WriterOptions | None = None, *, has_speakers: bool = True, has_files: bool = True
) -> list[Writer]:
    """Create writers for a list such as "srt,json", or "all"; each format once, in order.

    "all" omits speaker formats unless has_speakers, binary formats unless has_files, and, with a warning,
    formats whose package is not installed. Raises: as `writer_for`.
    """
    options = options or WriterOptions()
    wanted = [name.strip() for name in names.split(",")]
    if names == "all":
        wanted = _all(has_speakers=has_speakers, has_files=has_files)
    unique = list(dict.fromkeys(wanted))
    if options.offset_n and "srt" not in unique:
        raise OptionError(f"output format '{names}': offset_n numbers the subtitles of srt")
    plain = replace(options, offset_n=0)
    layouts = dict.fromkeys(SUBTITLES, plain) | {"srt": options}
    of_others = None if layouts.keys() & set(unique) else plain
    return [writer_for(name, layouts.get(name, of_others)) for name in unique]


def _all(*, has_speakers: bool, has_files: bool) -> list[str]:
    left_out = (() if has_speakers else OF_SPEAKERS) + (() if has_files else BINARY)
    wanted = [name for name in FORMATS if name not in left_out]
    for name in wanted:
        if not is_installed(name):
            logger.warning("all formats but %s, which needs a package: sottovoce[%s]", name, name)
    return [name for name in wanted if is_installed(name)]
