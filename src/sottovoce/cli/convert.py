"""`sottovoce convert`: its options; the work is in `convert_files`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from sottovoce.cli.call import this_call
from sottovoce.cli.sections import SectionedCommand
from sottovoce.cli.transcribe import COLOUR_CONFIDENCE, LAYOUT, OUTPUT_DIR, OUTPUT_FORMAT, REGROUP
from sottovoce.cli.transcribe_request import typed_options
from sottovoce.options.schema import Option

CONVERTED = (
    OUTPUT_FORMAT,
    OUTPUT_DIR,
    replace(
        COLOUR_CONFIDENCE,
        help="Colour the words of the text on the terminal by how sure they are, where words are known.",
    ),
)
WORDS = (
    replace(
        REGROUP, help="Cut and join segments, as 'split pause=0.5 after=.?!; merge letters=80' (needs words)."
    ),
    *LAYOUT,
    Option("html: what the page plays.", key="recording", metavar="FILE", unset="it asks for the file"),
)


@click.command(cls=SectionedCommand, sections={"Output": CONVERTED, "Layout": WORDS})
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.pass_context
def convert(context: click.Context, /, files: tuple[str, ...], **given: Any) -> int:
    """Write finished transcripts in other formats and layouts, without a model.

    FILE is what `transcribe` wrote as json or json-full, JSON of another program (openai-whisper, WhisperX,
    whisper.cpp, OpenAI's API …), or subtitles (srt, vtt), which hold less; `-` reads one on standard input.
    Options that place single words need a transcript with words. Documents are called as those of
    `transcribe`: talk.srt of talk.json.
    """
    from sottovoce.cli.convert_files import convert_files
    from sottovoce.cli.documents import with_output_file

    return convert_files(files, with_output_file(files, given, typed_options(context)), this_call(context))
