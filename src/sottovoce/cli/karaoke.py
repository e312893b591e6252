"""`sottovoce karaoke`: a video that highlights words as they are spoken."""

from __future__ import annotations

import click

from sottovoce.cli.flags import SectionedCommand, given_as
from sottovoce.cli.invocation import invocation_of
from sottovoce.cli.options import LANGUAGE, MODEL, ModelOptions, open_model
from sottovoce.cli.progress import for_each_file

VIDEO = (
    click.option("-o", "--output", required=True, metavar="FILE", help="The video: .mp4, .mkv or .mov."),
    click.option(
        "--text",
        metavar="FILE",
        help="What is said, a text or a transcript (json, srt, vtt): it is aligned, not transcribed.",
    ),
    click.option(
        "--size", default="1280x720", show_default=True, metavar="WIDTHxHEIGHT", help="Of the picture."
    ),
    click.option(
        "--background", default="#101418", show_default=True, metavar="#RRGGBB", help="Of the picture."
    ),
)


@click.command(cls=SectionedCommand, sections={"Model": MODEL, "Language": LANGUAGE, "Video": VIDEO})
@click.argument("recording")
@click.pass_context
def karaoke(
    context: click.Context,
    /,
    recording: str,
    language: str,
    output: str,
    text: str | None,
    size: str,
    background: str,
    **given: object,
) -> int:
    """Make a video of a recording whose words are lit as they are said (needs the program ffmpeg).

    To burn words into a video that exists: `transcribe -w -f ass`, and `ffmpeg -i talk.mp4 -vf ass=talk.ass`.
    """
    from pathlib import Path

    from sottovoce.cli.align import read_text, transcript_with_words
    from sottovoce.errors import OptionError
    from sottovoce.formats.ass import check_video, write_karaoke

    if recording == "-":
        raise OptionError("karaoke: expected a file, whose sound the video has, got standard input")
    path = Path(output)
    check_video(path, size, background, Path(recording))
    script = None if text is None else read_text(text)
    model = open_model(given_as(ModelOptions, given))
    invocation = invocation_of(context)

    def work(name: str) -> None:
        transcript = transcript_with_words(model, name, script, language)
        invocation.interrupts.check()
        write_karaoke(transcript, Path(name), path, size=size, background=background)

    return for_each_file([recording], work, invocation=invocation)
