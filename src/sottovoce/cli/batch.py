"""`sottovoce batch`: an archive into a table, in this process or on a Ray cluster.

Imports nothing heavy, so that `--help` is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sottovoce.cli.call import Call, one_line, this_call
from sottovoce.cli.flags import SectionedCommand, check_exclusive
from sottovoce.cli.options import MODEL, check_fusion, open_model
from sottovoce.cli.transcribe import (
    CONTEXT,
    EXCLUSIVE,
    FALLBACK,
    LANGUAGE,
    SEARCH,
    SPEAKERS,
    SPEECH,
    STYLE,
    WORDS,
    transcribe_options,
)
from sottovoce.errors import OptionError
from sottovoce.options.schema import Option

if TYPE_CHECKING:
    from sottovoce.archive.results import BatchOptions, Item, ResultTable, Row
    from sottovoce.server.ray_cluster import Actors

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
    check_exclusive(context, EXCLUSIVE)
    return run_batch(source, output, given, this_call(context))


def run_batch(source: str, output: str, given: dict[str, Any], call: Call) -> int:
    """Transcribe recordings without a row; return the exit code: 1 if some were unreadable, 2 if all."""
    from sottovoce.archive.results import BatchOptions, left_to_do, list_recordings, open_results
    from sottovoce.models.devices import choose_device
    from sottovoce.models.sources.names import default_model

    if given["hotwords"] or given["vocabulary_from"] or given["lm"] or given["grammar"]:
        raise OptionError(
            "--hotwords, --vocabulary-from, --lm and --grammar: not for a batch yet; "
            "use `sottovoce transcribe`"
        )
    check_fusion(given)
    if given["model"] is None:
        given = {**given, "model": default_model(choose_device(given["device"]).type)}
    items = list_recordings(source)
    actors = actors_of(given) if given["ray"] else None
    options = transcribe_options(given)
    options = replace(options, decoding=replace(options.decoding, task=given["task"]))
    batch = BatchOptions(options, given["language"], given["files_together"])
    with open_results(output) as results:
        left = left_to_do(items, results, again=given["retry_failed"])
        rows = rows_of(left, given, batch, actors) if left else iter(())
        return _write(rows, results, items, left, call)


def rows_of(
    items: Sequence[Item], given: dict[str, Any], batch: BatchOptions, actors: Actors | None
) -> Iterator[Row]:
    from sottovoce.archive.results import transcribe_items
    from sottovoce.server.ray_cluster import connect, transcribe_on_ray

    if actors is None:
        return transcribe_items(open_model(given), items, batch)
    connect(given["ray_address"])
    return transcribe_on_ray(items, partial(open_model, given), batch, actors)


def actors_of(given: Mapping[str, Any]) -> Actors:
    from sottovoce.server.ray_cluster import Actors, parse_range

    least, most = parse_range("--actors", given["actors"])
    return Actors(least, most, given["cpus_per_actor"], given["gpus_per_actor"])


def _write(
    rows: Iterator[Row], results: ResultTable, items: Sequence[Item], left: Sequence[Item], call: Call
) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from sottovoce.archive.results import write_rows

    console = Console(stderr=True, highlight=False)
    n_failed = 0
    seconds = 0.0
    bar = Progress(
        TextColumn("[bold]transcribing"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[hours]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=len(items), completed=len(items) - len(left), hours="")
        for row in write_rows(rows, results):
            call.interrupts.check()
            duration = row["duration"]
            seconds += duration if isinstance(duration, float | int) else 0.0
            if row["error"] is not None:
                n_failed += 1
                console.print(f"[red]error:[/red] {one_line(str(row['error']))}", soft_wrap=True)
            bar.update(task, advance=1, hours=f"{seconds / 3600:.1f} h")
    n_done = len(left) - n_failed
    before = len(items) - len(left)
    summary = f"{n_done} transcribed ({seconds / 3600:.2f} h), {n_failed} failed, {before} there before"
    console.print(summary, soft_wrap=True)
    if not n_failed:
        return 0
    return 1 if n_done else 2
