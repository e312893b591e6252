"""An archive into a table, in this process or on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sottovoce.archive.listing import Item, list_recordings
from sottovoce.archive.results import ResultTable, left_to_do, open_results, write_rows
from sottovoce.archive.table_rows import BatchOptions, Row, transcribe_items
from sottovoce.backends.registry import choose_device
from sottovoce.cli.call import Call, one_line
from sottovoce.cli.options import check_fusion, open_model
from sottovoce.cli.transcribe_request import transcribe_options
from sottovoce.errors import OptionError
from sottovoce.models.sources.names import default_model
from sottovoce.serving.ray.cluster import Actors, connect, counts, transcribe_on_ray


def run_batch(source: str, output: str, given: dict[str, Any], call: Call) -> int:
    """Transcribe what has no row yet; return the exit code: 1 when some could not be read, 2 when none could.

    Raises: SottovoceError for what no recording could be read with.
    """
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
    """Yield the rows of recordings, as they come."""
    if actors is None:
        return transcribe_items(open_model(given), items, batch)
    connect(given["ray_address"])
    return transcribe_on_ray(items, partial(open_model, given), batch, actors)


def actors_of(given: Mapping[str, Any]) -> Actors:
    """Make the processes that the options ask for.

    Raises: OptionError.
    """
    least, most = counts("--actors", given["actors"])
    return Actors(least, most, given["cpus_per_actor"], given["gpus_per_actor"])


def _write(
    rows: Iterator[Row], results: ResultTable, items: Sequence[Item], left: Sequence[Item], call: Call
) -> int:
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
