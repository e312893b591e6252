"""The output formats by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from sottovoce.errors import OptionError
from sottovoce.formats.ass import AssWriter
from sottovoce.formats.base import Writer, WriterOptions
from sottovoce.formats.document import JsonFullWriter, JsonWriter
from sottovoce.formats.labels import LabelsWriter
from sottovoce.formats.lrc import LrcWriter
from sottovoce.formats.page.html import HtmlWriter
from sottovoce.formats.rttm import RttmWriter
from sottovoce.formats.srt import SrtWriter
from sottovoce.formats.tables import CsvWriter, TsvWriter
from sottovoce.formats.textgrid import TextGridWriter
from sottovoce.formats.txt import TxtWriter
from sottovoce.formats.vtt import VttWriter

SUBTITLES: Mapping[str, Callable[[WriterOptions], Writer]] = MappingProxyType(
    {"srt": SrtWriter, "vtt": VttWriter, "ass": AssWriter}
)
"""Formats that break lines, and so take options."""
PLAIN: Mapping[str, Callable[[], Writer]] = MappingProxyType(
    {
        "txt": TxtWriter,
        "tsv": TsvWriter,
        "json": JsonWriter,
        "json-full": JsonFullWriter,
        "csv": CsvWriter,
        "lrc": LrcWriter,
        "labels": LabelsWriter,
        "textgrid": TextGridWriter,
        "html": HtmlWriter,
        "rttm": RttmWriter,
    }
)
FORMATS: tuple[str, ...] = (
    *("txt", "srt", "vtt", "tsv", "json", "csv", "lrc"),
    *("json-full", "ass", "labels", "textgrid", "html", "rttm"),
)

OF_SPEAKERS: tuple[str, ...] = ("rttm",)
"""Formats that hold nothing where speakers are not told apart."""


def writer_for(name: str, options: WriterOptions | None = None) -> Writer:
    """A new writer of the format `name`, one of FORMATS.

    Raises OptionError for another name, or for options that the format has no use for.
    """
    options = options or WriterOptions()
    if options.offset_n and name != "srt":
        raise OptionError(f"output format '{name}': offset_n numbers the subtitles of srt")
    if name in SUBTITLES:
        return SUBTITLES[name](options)
    if name not in PLAIN:
        close = difflib.get_close_matches(name, FORMATS, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise OptionError(f"output format '{name}': expected one of {', '.join(FORMATS)}{hint}")
    if options.need_words:
        raise OptionError(f"output format '{name}': line breaking and highlighting are for srt, vtt and ass")
    return PLAIN[name]()


def writers_for(
    names: str, options: WriterOptions | None = None, *, has_speakers: bool = True
) -> list[Writer]:
    """New writers for a list such as "srt,json", or "all"; each format once, in the order given.

    has_speakers: whether anyone tells speakers apart; "all" leaves out what would be empty without.
    Raises OptionError for an unknown name, or when none of the formats has a use for the options.
    """
    options = options or WriterOptions()
    wanted = [name.strip() for name in names.split(",")]
    if names == "all":
        wanted = [name for name in FORMATS if has_speakers or name not in OF_SPEAKERS]
    unique = list(dict.fromkeys(wanted))
    if options.offset_n and "srt" not in unique:
        raise OptionError(f"output format '{names}': offset_n numbers the subtitles of srt")
    plain = replace(options, offset_n=0)
    if not SUBTITLES.keys() & set(unique):
        return [writer_for(name, plain) for name in unique]
    return [writer_for(name, _told(name, options, plain)) for name in unique]


def _told(name: str, options: WriterOptions, plain: WriterOptions) -> WriterOptions | None:
    """What a format is told of options that are meant for others beside it too."""
    if name == "srt":
        return options
    return plain if name in SUBTITLES else None
