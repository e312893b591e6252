"""`sottovoce stream`: its options; the work is in `live`.

Imports nothing heavy: `--help` answers at once.
"""

from __future__ import annotations

from typing import Any

import click

from sottovoce.cli.call import this_call
from sottovoce.cli.options import FUSION, MODEL, TASK, beam_size
from sottovoce.cli.parameters import Finite
from sottovoce.cli.sections import SectionedCommand
from sottovoce.cli.speakers import VOICES
from sottovoce.cli.translation import TRANSLATION

SOURCES = (
    click.option("--mic", is_flag=True, help="Listen to the microphone (needs the extra `mic`)."),
    click.option(
        "--realtime",
        is_flag=True,
        help="Sound comes at its own speed: of updates that are late, the newest is done.",
    ),
    click.option("--unaware", is_flag=True, help="Give a file as fast as it is taken (default)."),
    click.option("--save-audio", type=click.Path(dir_okay=False), help="Write what was heard to a WAV file."),
)
LANGUAGES = (
    click.option(
        "-l",
        "--languages",
        "--language",
        default="auto",
        show_default=True,
        metavar="auto|CODE[,CODE…]",
        help="Languages that may be spoken.",
    ),
    click.option(
        "--switching",
        type=click.Choice(["off", "restart", "parallel"]),
        default="restart",
        show_default=True,
        help="Follow a change of language: not, between sentences, or inside them.",
    ),
    *TASK,
)
POLICY = (
    click.option(
        "--chunk-ms", type=click.IntRange(10), default=500, show_default=True, help="Audio an update."
    ),
    click.option(
        "--frame-threshold",
        type=Finite(0),
        default=25,
        show_default=True,
        help="A word waits while it is attended this near to the end of the audio (20 ms frames).",
    ),
    click.option(
        "--rewind-threshold",
        type=click.IntRange(0),
        default=200,
        show_default=True,
        help="A jump back by more frames than this discards an update.",
    ),
    click.option("--audio-min-len", type=Finite(0), default=0.0, help="Least seconds before an update."),
    click.option(
        "--audio-max-len",
        type=Finite(1, 30),
        default=30.0,
        show_default=True,
        help="Most seconds held.",
    ),
    click.option("--init-prompt", default="", help="What was said before; moves out as text is added."),
    click.option("--static-prompt", default="", help="Terms and names; stays."),
    click.option("--max-context-tokens", type=click.IntRange(0, 223), default=223, show_default=True),
    click.option(
        "--encoder",
        type=click.Choice(["auto", "whole", "exact"]),
        default="auto",
        show_default=True,
        help="An update encodes the newest audio beside what is kept; all audio held; or 30 s, as trained.",
    ),
    click.option(
        "--tail",
        type=Finite(0, 30),
        help="Seconds of padding behind the audio. [what the model needs]",
    ),
    click.option(
        "--cif", type=click.Path(exists=True, dir_okay=False), help="Weights that find the ends of words."
    ),
)
VAD = (
    click.option("--no-vad", is_flag=True, help="Decode silence too."),
    click.option("--onset-ms", type=Finite(0), default=64.0, show_default=True),
    click.option("--hangover-ms", type=Finite(0), default=500.0, show_default=True),
    click.option("--pre-roll-ms", type=Finite(0), default=300.0, show_default=True),
)
SPEAKERS = (
    click.option(
        "--speakers",
        metavar="auto|N",
        help="Say who says each word: auto, or how many there are at most. A final may correct it.",
    ),
    VOICES,
)
SINKS = (
    click.option("--jsonl", is_flag=True, help="One JSON event a line."),
    click.option(
        "--unstable",
        type=click.Choice(["words", "ctc"]),
        help="Also show text that may still change: words that were read but not committed, or letters as "
        "they are heard, of a model with a CTC head.",
    ),
    click.option(
        "--log", "log_path", type=click.Path(dir_okay=False), help="Add a SimulEval-style line a recording."
    ),
)
SECTIONS = {
    "Model": MODEL,
    "Source": SOURCES,
    "Language": LANGUAGES,
    "Search": (*beam_size(1), *FUSION),
    "When words are said": POLICY,
    "Speech": VAD,
    "Speakers": SPEAKERS,
    "Translation": TRANSLATION,
    "Output": SINKS,
}


@click.command(cls=SectionedCommand, sections=SECTIONS)
@click.argument("source", required=False, metavar="FILE|-")
@click.pass_context
def stream(context: click.Context, /, source: str | None, **given: Any) -> int:
    """Transcribe live: a FILE as if it were spoken now, `-` for s16le PCM at 16 kHz, or --mic.

    Ctrl-C ends the recording, and what was heard by then is still said; so do SIGTERM and SIGHUP, with the
    exit codes 143 and 129.
    """
    from sottovoce.cli.live import transcribe_live

    return transcribe_live(source, given, this_call(context).interrupts)
