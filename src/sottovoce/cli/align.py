"""`sottovoce align`: forced alignment of a text with its recording."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from sottovoce.cli.documents import documents_of, with_output_file
from sottovoce.cli.flags import SectionedCommand, given_as, grouped, typed_options
from sottovoce.cli.invocation import invocation_of
from sottovoce.cli.options import (
    LAYOUT,
    MODEL,
    OUTPUT_DIR,
    OUTPUT_FORMAT,
    ModelOptions,
    OutputOptions,
    open_model,
)
from sottovoce.cli.progress import for_each_file, source_of
from sottovoce.errors import OptionError
from sottovoce.formats.base import info_of
from sottovoce.formats.files import load_text, parse_text
from sottovoce.formats.output import STANDARD_OUTPUT
from sottovoce.options.align import AlignOptions
from sottovoce.options.schema import Option, options_of
from sottovoce.options.writer import WriterOptions
from sottovoce.types import Transcript

if TYPE_CHECKING:
    from sottovoce.api import Model
    from sottovoce.audio.io import AudioSource

ALIGNMENT = (
    Option(
        "Language of the text.",
        key="language",
        short="-l",
        metavar="CODE",
        unset="that of the transcript, or what is heard first",
    ),
    *grouped("Alignment", of=options_of(AlignOptions)),
)
ALIGNED = (
    replace(OUTPUT_FORMAT, cli_default="srt"),
    replace(OUTPUT_DIR, cli_default=STANDARD_OUTPUT),
    *LAYOUT,
)
SECTIONS = {"Model": MODEL, "Alignment": ALIGNMENT, "Output": ALIGNED}


@click.command(cls=SectionedCommand, sections=SECTIONS)
@click.argument("recording")
@click.argument("text")
@click.pass_context
def align(context: click.Context, /, recording: str, text: str, language: str | None, **given: object) -> int:
    """Find out when each word of a text is said in a recording.

    TEXT is a file: a text, whose lines and sentences become segments, or a transcript (json, srt, vtt) whose
    times are to be refined; `-` reads either from standard input. Every segment has its words with times.
    """
    output = given_as(OutputOptions, given, quiet=True)
    output = with_output_file([recording], output, typed_options(context))
    options = given_as(AlignOptions, given)
    if recording == text == "-":
        raise OptionError("standard input: expected the recording or the text there, got '-' for both")
    documents = documents_of([recording], output, given_as(WriterOptions, given))
    script = read_text(text)
    model = open_model(given_as(ModelOptions, given))
    invocation = invocation_of(context)

    def work(name: str) -> None:
        aligned = model.align(source_of(name), script, language=language, options=options)
        invocation.interrupts.check()
        begun = documents.info(name, aligned.model)
        info = replace(info_of(aligned, begun.source), audio=begun.audio, spectrogram=begun.spectrogram)
        documents.write(name, aligned, info)

    return for_each_file([recording], work, invocation=invocation)


def read_text(name: str) -> str | Transcript:
    return parse_text(sys.stdin.buffer.read(), "standard input") if name == "-" else load_text(name)


def transcript_with_words(
    model: Model, source: AudioSource, text: str | Transcript | None, language: str
) -> Transcript:
    """Align the text if there is one, else transcribe the recording."""
    if text is None:
        return model.transcribe(source, language=language, word_timestamps=True).collect()
    return model.align(source, text, language=None if language == "auto" else language)
