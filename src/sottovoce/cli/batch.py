"""`sottovoce batch`: its options; the work is in `batch_run`.

Imports nothing heavy: `--help` answers at once.
"""

from __future__ import annotations

from typing import Any

import click

from sottovoce.cli.call import this_call
from sottovoce.cli.idle import check_idle, typed_options
from sottovoce.cli.options import MODEL
from sottovoce.cli.parameters import Finite
from sottovoce.cli.sections import SectionedCommand
from sottovoce.cli.speakers import SPEAKERS
from sottovoce.cli.transcribe import CONTEXT, FALLBACK, LANGUAGE, SEARCH, SPEECH, WORDS

TABLE = (
    *WORDS,
    click.option(
        "--files-together",
        type=click.IntRange(1),
        default=8,
        show_default=True,
        help="Recordings whose windows share the batches of the model.",
    ),
    click.option("--retry-failed", is_flag=True, help="Do recordings again whose rows have an error."),
)
RAY = (
    click.option("--ray", is_flag=True, help="Read on the processes of a Ray cluster (extra `ray`)."),
    click.option(
        "--ray-address", metavar="ADDRESS", help="Of a running cluster. [a new one, of this machine]"
    ),
    click.option(
        "--actors",
        metavar="N|MIN-MAX",
        default="1",
        show_default=True,
        help="Processes that hold the model; of MIN-MAX, Ray takes as many as there is work for.",
    ),
    click.option("--cpus-per-actor", type=Finite(above=0), default=1.0, show_default=True),
    click.option(
        "--gpus-per-actor", type=Finite(0), default=0.0, show_default=True, help="0.25: four share one."
    ),
)
SECTIONS = {
    "Model": MODEL,
    "Language": LANGUAGE,
    "Table": TABLE,
    "Speakers": SPEAKERS,
    "More than one process": RAY,
    "Speech": SPEECH,
    "Search": SEARCH,
    "When a result looks wrong": FALLBACK,
    "Context": CONTEXT,
}
ABSENT = {
    "offset": None,
    "duration": None,
    "clip_timestamps": "",
    "without_timestamps": False,
    "hallucination_silence_threshold": None,
}
"""What `transcribe` has, and a whole archive has no use for."""


@click.command(cls=SectionedCommand, sections=SECTIONS)
@click.argument("source", metavar="INPUT")
@click.argument("output", metavar="OUTPUT")
@click.pass_context
def batch(context: click.Context, /, source: str, output: str, **given: Any) -> int:
    """Transcribe an archive into one table, and go on after a crash where it stopped.

    INPUT: a folder, a .jsonl list with a `file` and maybe an `id` a line, or a .txt list of names. OUTPUT: a
    .jsonl file, or a .parquet folder (extra `parquet`); a row for each recording: id, file, error, text,
    language, duration, model, segments, and turns with --speakers. A recording that cannot be read is a row
    with its error. Rows that are there are not made again.
    """
    check_idle(given, typed_options(context))
    from sottovoce.cli.batch_run import run_batch

    return run_batch(source, output, {**ABSENT, **given}, this_call(context))
