"""`sottovoce batch`: an archive into a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from sottovoce.cli.invocation import Invocation, invocation_of, one_line
from sottovoce.cli.options import (
    MODEL,
    SPEAKERS,
    FusionOptions,
    ModelOptions,
    SectionedCommand,
    grouped,
    open_model,
)
from sottovoce.cli.progress import exit_code, progress_bar
from sottovoce.cli.transcribe import (
    DECODING,
    EXCLUSIVE,
    LANGUAGE,
    SETTLE,
    WORDS,
    FileOptions,
    transcribe_options,
)
from sottovoce.formats.pages import clock
from sottovoce.options.schema import Option, from_values, options_of
from sottovoce.types import Task

if TYPE_CHECKING:
    from sottovoce.archive.ray_cluster import Replicas
    from sottovoce.archive.results import BatchOptions, Item, ResultTable, Row
    from sottovoce.recogniser import Recogniser


@dataclass(frozen=True, slots=True)
class TableOptions:
    files_together: int = Option(
        "Recordings whose windows are decoded in shared batches.", group="Table", least=1
    ).as_field(8)
    retry_failed: bool = Option("Try recordings with an error again.", group="Table").as_field(False)
    watch: bool = Option(
        "Also wait for new recordings of the folder, until Ctrl-C (extra `watch`).", group="Table"
    ).as_field(False)
    ray: bool = Option("Use the processes of a Ray cluster (extra `ray`).", group="Ray").as_field(False)
    ray_address: str | None = Option(
        "Address of a running cluster.", group="Ray", metavar="ADDRESS", unset="a new one on this machine"
    ).as_field(None)
    actors: str = Option(
        "Processes with the model; Ray chooses from MIN-MAX by load.", group="Ray", metavar="N|MIN-MAX"
    ).as_field("1")
    cpus_per_actor: float = Option("Processor cores for each process.", group="Ray", above=0.0).as_field(1.0)
    gpus_per_actor: float = Option(
        "GPUs for each process; with 0.25, four share one.", group="Ray", least=0.0
    ).as_field(0.0)


TABLE = options_of(TableOptions)
SECTIONS = {
    "Model": MODEL,
    **LANGUAGE,
    "Table": (*WORDS, *grouped("Table", of=TABLE), SETTLE),
    "Speakers": SPEAKERS,
    "More than one process": grouped("Ray", of=TABLE),
    **DECODING,
}


NEEDED = {"ray": [option.param for option in grouped("Ray", of=TABLE) if option.key != "ray"]}


@click.command(cls=SectionedCommand, sections=SECTIONS, exclusive=EXCLUSIVE, needed=NEEDED)
@click.argument("recordings", metavar="INPUT")
@click.argument("output", metavar="OUTPUT")
@click.pass_context
def batch(
    context: click.Context,
    /,
    recordings: str,
    output: str,
    language: str,
    task: Task,
    beam_size: int | None,
    **given: object,
) -> int:
    """Transcribe an archive into one table. After a crash the same command continues.

    INPUT: a folder, a .jsonl list with a `file` and an optional `id` a line, or a .txt list of names. OUTPUT:
    a .jsonl file, or a .parquet folder (extra `parquet`), with a row for each recording: id, file, error,
    text, language, duration, model, segments, and turns with --speakers. Recordings that have a row are
    skipped.
    """
    from sottovoce.archive.results import (
        BatchOptions,
        left_to_do,
        list_recordings,
        open_results,
        watched_recordings,
    )
    from sottovoce.models.devices import choose_device
    from sottovoce.models.sources import default_model

    fusion = from_values(FusionOptions, given)
    fusion.check(beam_size)
    model = from_values(ModelOptions, given)
    if model.model is None:
        model = replace(model, model=default_model(choose_device(model.device).type))
    table = from_values(TableOptions, given)
    settle_s = from_values(FileOptions, given).settle_s
    groups = (
        watched_recordings(recordings, settle_s=settle_s) if table.watch else [list_recordings(recordings)]
    )
    actors = actors_of(table) if table.ray else None
    options = transcribe_options({**given, "language": language, "task": task, "beam_size": beam_size})
    options = replace(options, decoding=replace(options.decoding, task=task))
    chosen = BatchOptions(options, language, table.files_together, beam_size)
    load: Callable[[], Recogniser] = partial(open_model, model, fusion)
    if table.watch and actors is None:
        load = cache(load)
    code = 0
    with open_results(output) as results:
        for n_groups, items in enumerate(groups):
            left = left_to_do(items, results, again=table.retry_failed and not n_groups)
            failed_before = {str(row["id"]) for row in results.rows() if row["error"] is not None}
            n_failed_before = sum(item.id in failed_before for item in items)
            rows = rows_of(left, load, chosen, actors, table.ray_address) if left else iter(())
            code = _write(rows, results, items, left, n_failed_before, invocation_of(context))
    return code


def actors_of(table: TableOptions) -> Replicas:
    from sottovoce.archive.ray_cluster import Replicas, parse_range

    least, most = parse_range("--actors", table.actors)
    return Replicas(least, most, table.cpus_per_actor, table.gpus_per_actor)


def rows_of(
    items: Sequence[Item],
    open_one: Callable[[], Recogniser],
    batch: BatchOptions,
    actors: Replicas | None,
    ray_address: str | None,
) -> Iterator[Row]:
    from sottovoce.archive.results import transcribe_items

    if actors is None:
        return transcribe_items(open_one(), items, batch)
    from sottovoce.archive.ray_cluster import connect, transcribe_on_ray

    connect(ray_address)
    return transcribe_on_ray(items, open_one, batch, actors)


def _write(
    rows: Iterator[Row],
    results: ResultTable,
    items: Sequence[Item],
    left: Sequence[Item],
    n_failed_before: int,
    invocation: Invocation,
) -> int:
    from sottovoce.archive.results import write_rows

    n_failed = 0
    seconds = 0.0
    label, audio = TextColumn("[bold]transcribing"), TextColumn("{task.fields[audio]}")
    bar = progress_bar(label, BarColumn(), MofNCompleteColumn(), audio, TimeRemainingColumn())
    console = bar.console
    with bar:
        task = bar.add_task("", total=len(items), completed=len(items) - len(left), audio="")
        for row in write_rows(rows, results):
            invocation.interrupts.check()
            duration = row["duration"]
            seconds += duration if isinstance(duration, float | int) else 0.0
            if row["error"] is not None:
                n_failed += 1
                error = escape(one_line(invocation.line_of(row["error"])))
                console.print(f"[red]error:[/red] {error}", soft_wrap=True)
            bar.update(task, advance=1, audio=clock(seconds))
    n_done, n_before = len(left) - n_failed, len(items) - len(left)
    summary = f"{n_done} transcribed ({clock(seconds)}), {n_failed} failed, {n_before} there before"
    if n_failed_before:
        summary += f", {n_failed_before} of them failed (--retry-failed transcribes them again)"
    console.print(summary, soft_wrap=True)
    return exit_code(n_failed, len(left)) or int(n_failed_before > 0)
