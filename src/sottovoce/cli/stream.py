"""`sottovoce stream`: options; `live` does the work. Imports nothing heavy, so that `--help` is fast."""

from __future__ import annotations

import click

from sottovoce.cli.flags import SectionedCommand, check_exclusive, grouped
from sottovoce.cli.invocation import invocation_of
from sottovoce.cli.options import FUSION, MODEL, TASK, TRANSLATION, VOICES, StreamFlags, beam_size
from sottovoce.options.live import LiveDecodingOptions, LiveOptions
from sottovoce.options.schema import options_of
from sottovoce.options.vad import VadStreamOptions

MIC, REALTIME, UNAWARE, INPUT_FORMAT, CHUNK_MS, ENCODER, NO_VAD, JSONL, UNSTABLE = options_of(StreamFlags)
SOURCES = (
    *(MIC, REALTIME, UNAWARE, INPUT_FORMAT),
    click.option("--save-audio", type=click.Path(dir_okay=False), help="Save the audio as a WAV file."),
)
LIVE = (*options_of(LiveOptions), *options_of(LiveDecodingOptions), *options_of(VadStreamOptions))
POLICY = (*grouped("When words are said", of=LIVE), CHUNK_MS, ENCODER, *grouped("Padding", of=LIVE))
VAD = (NO_VAD, *grouped("Edges", of=LIVE))
SINKS = (
    *(JSONL, *grouped("Captions", of=LIVE), UNSTABLE),
    click.option(
        "--log",
        "log_path",
        type=click.Path(dir_okay=False),
        help="Append a SimulEval-style line for each recording.",
    ),
)
SECTIONS = {
    "Model": MODEL,
    "Source": SOURCES,
    "Language": (*grouped("Language", of=LIVE), *TASK),
    "Search": (*beam_size(5), *FUSION),
    "When words are said": POLICY,
    "Speech": VAD,
    "Speakers": (*grouped("Speakers", of=LIVE), *VOICES),
    "Translation": TRANSLATION,
    "Output": SINKS,
}


@click.command(cls=SectionedCommand, sections=SECTIONS)
@click.argument("source", required=False, metavar="FILE|-")
@click.pass_context
def stream(context: click.Context, /, source: str | None, **given: object) -> int:
    """Transcribe live: a FILE as if it were spoken now, `-` for a sound file or s16le PCM at 16 kHz from a
    pipe, or --mic.

    Ctrl-C ends the recording; the audio received by then is still transcribed. SIGTERM and SIGHUP do the
    same, with the exit codes 143 and 129.
    """
    check_exclusive(context, {"realtime": ("unaware",)})
    from sottovoce.cli.live import transcribe_live

    return transcribe_live(source, given, invocation_of(context).interrupts)
