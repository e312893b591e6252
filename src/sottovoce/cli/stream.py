"""`sottovoce stream`: the options; `live` does the work.

Imports nothing heavy, so that `--help` is fast.
"""

from __future__ import annotations

from typing import Any

import click

from sottovoce.cli.flags import SectionedCommand, check_exclusive, grouped
from sottovoce.cli.invocation import invocation_of
from sottovoce.cli.options import FUSION, MODEL, TASK, TRANSLATION, VOICES, beam_size
from sottovoce.options.live import LiveDecodingOptions, LiveOptions
from sottovoce.options.schema import Option, options_of
from sottovoce.options.vad import VadStreamOptions

SOURCES = (
    Option("Listen to the microphone (needs the extra `mic`).", key="mic", kind="flag"),
    Option(
        "Sound comes at its own speed: of updates that are late, the newest is done (as of pipes that are "
        "filled at that speed).",
        key="realtime",
        kind="flag",
    ),
    Option("Do every update, however late (default of files).", key="unaware", kind="flag"),
    Option(
        "Of samples without a header: FFmpeg's name, rate and channels, as mulaw, g722 or s16le:44100:2.",
        key="input_format",
        unset="a container, or s16le at 16 kHz",
        metavar="NAME[:RATE[:CHANNELS]]",
    ),
    click.option("--save-audio", type=click.Path(dir_okay=False), help="Write what was heard to a WAV file."),
)
LIVE = (*options_of(LiveOptions), *options_of(LiveDecodingOptions), *options_of(VadStreamOptions))
POLICY = (
    Option("Audio an update.", key="chunk_ms", kind="integer", default=500, least=10),
    *grouped("When words are said", of=LIVE),
    Option(
        "An update encodes the newest audio beside what is kept; all audio held; or 30 s, as trained.",
        key="encoder",
        kind="choice",
        default="auto",
        choices=("auto", "whole", "exact"),
    ),
    *grouped("Padding", of=LIVE),
)
VAD = (
    Option("Decode silence too.", key="no_vad", kind="flag"),
    *grouped("Edges", of=LIVE),
)
SINKS = (
    Option("One JSON event a line.", key="jsonl", kind="flag"),
    Option(
        "Also show text that may still change: words that were read but not committed.",
        key="unstable",
        kind="flag",
    ),
    click.option(
        "--log", "log_path", type=click.Path(dir_okay=False), help="Add a SimulEval-style line a recording."
    ),
)
SECTIONS = {
    "Model": MODEL,
    "Source": SOURCES,
    "Language": (*grouped("Language", of=LIVE), *TASK),
    "Search": (*beam_size(1), *FUSION),
    "When words are said": POLICY,
    "Speech": VAD,
    "Speakers": (*grouped("Speakers", of=LIVE), *VOICES),
    "Translation": TRANSLATION,
    "Output": SINKS,
}


@click.command(cls=SectionedCommand, sections=SECTIONS)
@click.argument("source", required=False, metavar="FILE|-")
@click.pass_context
def stream(context: click.Context, /, source: str | None, **given: Any) -> int:
    """Transcribe live: a FILE as if it were spoken now, `-` for a pipe of a sound file or of s16le PCM at
    16 kHz, or --mic.

    Ctrl-C ends the recording, and what was heard by then is still said; so do SIGTERM and SIGHUP, with the
    exit codes 143 and 129.
    """
    check_exclusive(context, {"realtime": ("unaware",)})
    from sottovoce.cli.live import transcribe_live

    return transcribe_live(source, given, invocation_of(context).interrupts)
