"""`sottovoce batch`: its options; the work is in `batch_run`.

Imports nothing heavy: `--help` answers at once.
"""

from __future__ import annotations

from typing import Any

import click

from sottovoce.cli.call import this_call
from sottovoce.cli.options import MODEL
from sottovoce.cli.sections import SectionedCommand
from sottovoce.cli.transcribe import (
    CONTEXT,
    FALLBACK,
    LANGUAGE,
    SEARCH,
    SPEAKERS,
    SPEECH,
    STYLE,
    WORDS,
)
from sottovoce.cli.transcribe_request import check_idle
from sottovoce.options.schema import Option

TABLE = (
    *WORDS,
    Option(
        "Recordings whose windows share the batches of the model.",
        key="files_together",
        kind="integer",
        default=8,
        least=1,
    ),
    Option("Do recordings again whose rows have an error.", key="retry_failed", kind="flag"),
)
RAY = (
    Option("Read on the processes of a Ray cluster (extra `ray`).", key="ray", kind="flag"),
    Option("Of a running cluster.", key="ray_address", metavar="ADDRESS", unset="a new one, of this machine"),
    Option(
        "Processes that hold the model; of MIN-MAX, Ray takes as many as there is work for.",
        key="actors",
        default="1",
        metavar="N|MIN-MAX",
    ),
    Option("Processor cores of each.", key="cpus_per_actor", kind="number", default=1.0, above=0.0),
    Option("0.25: four share one.", key="gpus_per_actor", kind="number", default=0.0, least=0.0),
)
SECTIONS = {
    "Model": MODEL,
    "Language": LANGUAGE,
    "Style": STYLE,
    "Table": TABLE,
    "Speakers": SPEAKERS,
    "More than one process": RAY,
    "Speech": SPEECH,
    "Search": SEARCH,
    "When a result looks wrong": FALLBACK,
    "Context": CONTEXT,
}


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
    check_idle(context)
    from sottovoce.cli.batch_run import run_batch

    return run_batch(source, output, given, this_call(context))
