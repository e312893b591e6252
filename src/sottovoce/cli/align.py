"""`sottovoce align`, `karaoke` and `plot`: commands that need word times."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sottovoce.cli.documents import documents_of, with_output_file
from sottovoce.cli.flags import Clock, SectionedCommand, given_as, grouped, typed_options
from sottovoce.cli.invocation import invocation_of
from sottovoce.cli.options import (
    LANGUAGE,
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
from sottovoce.formats.ass import check_video, write_karaoke
from sottovoce.formats.base import info_of
from sottovoce.formats.files import load_text, parse_text
from sottovoce.formats.output import STANDARD_OUTPUT, label_of
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
        unset="that of the transcript, or detected",
    ),
    *grouped("Alignment", of=options_of(AlignOptions)),
)
ALIGNED = (
    replace(OUTPUT_FORMAT, cli_default="srt"),
    replace(OUTPUT_DIR, cli_default=STANDARD_OUTPUT),
    *LAYOUT,
)


@click.command(cls=SectionedCommand, sections={"Model": MODEL, "Alignment": ALIGNMENT, "Output": ALIGNED})
@click.argument("recording")
@click.argument("text")
@click.pass_context
def align(context: click.Context, /, recording: str, text: str, language: str | None, **given: object) -> int:
    """Find the times of the words of a text in a recording.

    TEXT is a text file, whose lines and sentences become segments, or a transcript (json, srt, vtt) with
    times to refine; `-` reads either from standard input. Every segment has its words with times.
    """
    output = given_as(OutputOptions, given, quiet=True)
    output = with_output_file([recording], output, typed_options(context))
    options = given_as(AlignOptions, given)
    if recording == text == "-":
        raise OptionError("standard input: expected '-' for the recording or the text, got both")
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
    """Align the text, or transcribe if it is None."""
    if text is None:
        return model.transcribe(source, language=language, word_timestamps=True).collect()
    return model.align(source, text, language=None if language == "auto" else language)


VIDEO = (
    click.option("-o", "--output", required=True, metavar="FILE", help="Video file: .mp4, .mkv or .mov."),
    click.option(
        "--text",
        metavar="FILE",
        help="Text or transcript (json, srt, vtt), which is aligned instead of transcribed.",
    ),
    click.option(
        "--size", default="1280x720", show_default=True, metavar="WIDTHxHEIGHT", help="Size of the picture."
    ),
    click.option(
        "--background",
        default="#101418",
        show_default=True,
        metavar="#RRGGBB",
        help="Colour of the background.",
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
    """Make a video in which the words of a recording are highlighted as they are spoken (needs the program
    ffmpeg).

    To add words to an existing video: `transcribe -w -f ass`, and `ffmpeg -i talk.mp4 -vf ass=talk.ass`.
    """
    if recording == "-":
        raise OptionError("karaoke: expected a file, got standard input")
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


PICTURE = (
    click.option("-o", "--output", required=True, metavar="FILE", help="Picture file: .png, .svg or .pdf."),
    click.option(
        "--panels",
        default="all",
        show_default=True,
        metavar="PANEL[,PANEL…]",
        help="mel, speech, language, attention, confidence or all.",
    ),
    click.option("--offset", type=Clock(), metavar="TIME", help="Start of the part. [the beginning]"),
    click.option("--duration", type=Clock(), metavar="TIME", help="Length of the part, at most 30 s. [30]"),
    click.option("--text", metavar="FILE", help="Text of the part; it is aligned instead of transcribed."),
)


@click.command(cls=SectionedCommand, sections={"Model": MODEL, "Language": LANGUAGE, "Picture": PICTURE})
@click.argument("recording")
@click.pass_context
def plot(
    context: click.Context,
    /,
    recording: str,
    language: str,
    output: str,
    panels: str,
    offset: float | None,
    duration: float | None,
    text: str | None,
    **given: object,
) -> int:
    """Draw up to 30 s of a recording (extra `plot`).

    Panels: log-mel spectrogram with the words, speech probability, languages, attention, word probability.
    """
    from sottovoce.audio.io import load_audio
    from sottovoce.pictures import LONGEST_S, check_picture, collect, draw, panels_of

    shown = panels_of(panels)
    path = Path(output)
    check_picture(path)
    duration_s = LONGEST_S if duration is None else duration
    if not 0.1 <= duration_s <= LONGEST_S:
        raise OptionError(f"--duration: expected 0.1 to {LONGEST_S:g} s, got {duration_s:g}")
    script = None if text is None else read_text(text)
    start_s = offset or 0.0
    model = open_model(given_as(ModelOptions, given))

    def work(name: str) -> None:
        samples = load_audio(source_of(name), start_s, duration_s)
        transcript = transcript_with_words(model, samples, script, language)
        label = label_of("standard input" if name == "-" else Path(name).name)
        draw(collect(model, samples, transcript, name=label, start_s=start_s), path, shown)

    return for_each_file([recording], work, invocation=invocation_of(context))
