"""`sottovoce stream`: its options; the work is in `live`.

Imports nothing heavy: `--help` answers at once.
"""

from __future__ import annotations

from typing import Any

import click

from sottovoce.cli.call import this_call
from sottovoce.cli.flags import grouped
from sottovoce.cli.options import FUSION, MODEL, TASK, beam_size
from sottovoce.cli.sections import SectionedCommand
from sottovoce.cli.speakers import VOICES
from sottovoce.cli.translation import TRANSLATION
from sottovoce.options.schema import Option, options_of
from sottovoce.options.vad import VadStreamOptions

SOURCES = (
    Option("Listen to the microphone (needs the extra `mic`).", key="mic", kind="flag"),
    Option(
        "Sound comes at its own speed: of updates that are late, the newest is done.",
        key="realtime",
        kind="flag",
    ),
    Option("Give a file as fast as it is taken (default).", key="unaware", kind="flag"),
    click.option("--save-audio", type=click.Path(dir_okay=False), help="Write what was heard to a WAV file."),
)
LANGUAGES = (
    Option(
        "Languages that may be spoken.",
        key="languages",
        short="-l --language",
        default="auto",
        metavar="auto|CODE[,CODE…]",
    ),
    Option(
        "Follow a change of language: not, between sentences, or inside them.",
        key="switching",
        kind="choice",
        default="restart",
        choices=("off", "restart", "parallel"),
    ),
    *TASK,
)
POLICY = (
    Option("Audio an update.", key="chunk_ms", kind="integer", default=500, least=10),
    Option(
        "A word waits while it is attended this near to the end of the audio (20 ms frames).",
        key="frame_threshold",
        kind="number",
        default=25,
        least=0.0,
    ),
    Option(
        "A jump back by more frames than this discards an update.",
        key="rewind_threshold",
        kind="integer",
        default=200,
        least=0,
    ),
    Option("Least seconds before an update.", key="audio_min_len", kind="number", default=0.0, least=0.0),
    Option("Most seconds held.", key="audio_max_len", kind="number", default=30.0, least=1.0, most=30.0),
    Option("What was said before; moves out as text is added.", key="init_prompt", default=""),
    Option("Terms and names; stays.", key="static_prompt", default=""),
    Option(
        "Tokens of both, and of what was said, that an update is given at most.",
        key="max_context_tokens",
        kind="integer",
        default=223,
        least=0,
        most=223,
    ),
    Option(
        "An update encodes the newest audio beside what is kept; all audio held; or 30 s, as trained.",
        key="encoder",
        kind="choice",
        default="auto",
        choices=("auto", "whole", "exact"),
    ),
    Option(
        "Seconds of padding behind the audio.",
        key="tail",
        kind="number",
        least=0.0,
        most=30.0,
        unset="what the model needs",
    ),
    click.option(
        "--cif", type=click.Path(exists=True, dir_okay=False), help="Weights that find the ends of words."
    ),
)
VAD = (
    Option("Decode silence too.", key="no_vad", kind="flag"),
    *grouped("Edges", of=options_of(VadStreamOptions)),
)
SPEAKERS = (
    Option(
        "Say who says each word: auto, or how many there are at most. A final may correct it.",
        key="speakers",
        metavar="auto|N",
    ),
    *VOICES,
)
SINKS = (
    Option("One JSON event a line.", key="jsonl", kind="flag"),
    Option(
        "Also show text that may still change: words that were read but not committed, or letters as they "
        "are heard, of a model with a CTC head.",
        key="unstable",
        kind="choice",
        choices=("words", "ctc"),
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
