"""`sottovoce align`: its options; the work is in `align_files`."""

from __future__ import annotations

from typing import Any

import click

from sottovoce.cli.call import this_call
from sottovoce.cli.options import MODEL
from sottovoce.cli.sections import SectionedCommand
from sottovoce.cli.transcribe import LAYOUT
from sottovoce.formats.registry import FORMATS

ALIGNMENT = (
    click.option(
        "-l",
        "--language",
        metavar="CODE",
        help="Language of the text. [that of the transcript, or what is heard first]",
    ),
    click.option(
        "--method",
        type=click.Choice(["attention", "ctc"]),
        default="attention",
        show_default=True,
        help="attention: of the decoder; ctc: the model's CTC head, where it has one.",
    ),
    click.option(
        "--keep-to-speech/--no-keep-to-speech",
        default=True,
        show_default=True,
        help="Bring bounds of words that lie in silence to the speech beside it.",
    ),
)
ALIGNED = (
    click.option(
        "-f",
        "--output-format",
        default="srt",
        show_default=True,
        metavar="FORMAT[,FORMAT…]",
        help=f"{', '.join(FORMATS)} or all.",
    ),
    click.option(
        "-o",
        "--output-dir",
        default="-",
        show_default=True,
        metavar="DIR",
        help="Where files go, made if it is not there; - writes documents to standard output.",
    ),
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
    times are to be refined; `-` reads a text from standard input. Every segment has its words with times.
    """
    from sottovoce.cli.align_files import align_file

    return align_file(recording, text, given, this_call(context))
