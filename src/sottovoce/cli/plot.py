"""`sottovoce plot`: a figure of features, speech, language, attention and words."""

from __future__ import annotations

import click

from sottovoce.cli.flags import Clock, SectionedCommand, given_as
from sottovoce.cli.invocation import invocation_of
from sottovoce.cli.options import LANGUAGE, MODEL, ModelOptions, open_model
from sottovoce.cli.progress import for_each_file, source_of
from sottovoce.formats.output import label_of

PICTURE = (
    click.option(
        "-o", "--output", required=True, metavar="FILE", help="The picture: a name in .png, .svg or .pdf."
    ),
    click.option(
        "--panels",
        default="all",
        show_default=True,
        metavar="PANEL[,PANEL…]",
        help="mel, speech, language, attention, confidence or all.",
    ),
    click.option("--offset", type=Clock(), metavar="TIME", help="Begin there. [the beginning]"),
    click.option("--duration", type=Clock(), metavar="TIME", help="So much of it, at most 30 s. [30]"),
    click.option(
        "--text", metavar="FILE", help="What is said there: it is aligned, rather than transcribed."
    ),
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
    """Draw what is heard in up to 30 s of a recording (extra `plot`).

    Panels: the log-mel spectrogram with the words, where speech is, the language over time, the attention
    that words are timed by, and how sure each word is.
    """
    from pathlib import Path

    from sottovoce.audio.io import load_audio
    from sottovoce.cli.align import read_text, transcript_with_words
    from sottovoce.errors import OptionError
    from sottovoce.pictures.draw import LONGEST_S, check_picture, collect, draw, panels_of

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
