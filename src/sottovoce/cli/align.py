"""`sottovoce align`: its options; the work is in `align_files`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from sottovoce.cli.call import this_call
from sottovoce.cli.flags import grouped
from sottovoce.cli.options import MODEL
from sottovoce.cli.sections import SectionedCommand
from sottovoce.cli.transcribe import LAYOUT, OUTPUT_DIR, OUTPUT_FORMAT
from sottovoce.cli.transcribe_request import typed_options
from sottovoce.formats.output import STANDARD_OUTPUT
from sottovoce.options.align import AlignOptions
from sottovoce.options.schema import Option, options_of

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
    replace(OUTPUT_FORMAT, default="srt"),
    replace(OUTPUT_DIR, default=STANDARD_OUTPUT),
    *LAYOUT,
)
SECTIONS = {"Model": MODEL, "Alignment": ALIGNMENT, "Output": ALIGNED}


@click.command(cls=SectionedCommand, sections=SECTIONS)
@click.argument("recording")
@click.argument("text")
@click.pass_context
def align(context: click.Context, /, recording: str, text: str, **given: Any) -> int:
    """Find out when each word of a text is said in a recording.

    TEXT is a file: a text, whose lines and sentences become segments, or a transcript (json, srt, vtt) whose
    times are to be refined; `-` reads either from standard input. Every segment has its words with times.
    """
    from sottovoce.cli.align_files import align_file
    from sottovoce.cli.documents import with_output_file

    named = with_output_file([recording], given, typed_options(context))
    return align_file(recording, text, named, this_call(context))
