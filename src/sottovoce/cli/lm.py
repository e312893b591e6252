"""`sottovoce lm`: estimation and conversion of n-gram models."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import TaskID

from sottovoce.cli.options import SectionedCommand, grouped, output_file
from sottovoce.cli.progress import progress_bar
from sottovoce.errors import OptionError, OutputError
from sottovoce.options.schema import Option, from_values, options_of
from sottovoce.text.files import writing

if TYPE_CHECKING:
    from sottovoce.lm.arpa import NgramTable, Report

SUFFIXES = (".trie", ".arpa", ".arpa.gz")


@dataclass(frozen=True, slots=True)
class EstimateOptions:
    counts: bool = Option(
        "FILES contain lines `w1 w2 … wn<TAB>count`, of one order or all.", group="Texts"
    ).as_field(False)
    order: int | None = Option(
        "Length of the longest n-grams.",
        unset="default: 3, or that of the counts",
        group="Model",
        least=1,
        most=10,
    ).as_field(None)
    prune: tuple[int, ...] = Option(
        "Drop n-grams of orders 1, 2, … that occur at most N times; the last number applies to all higher "
        "orders.",
        group="Model",
        kind="integers",
        metavar="N,N,…",
    ).as_field((0,))
    discount_fallback: bool = Option(
        "Use discounts of 0.5, 1 and 1.5 if a small text gives none.", group="Model"
    ).as_field(False)
    bits: str = Option(
        "Bits of log-probabilities and back-offs in a .trie; 32 is exact.",
        group="Output",
        choices=("8", "32"),
    ).as_field("8")


ESTIMATE = options_of(EstimateOptions)
OUTPUT = {
    "Output": (
        output_file(".trie, which loads at once, or .arpa or .arpa.gz for other programs."),
        *grouped("Output", of=ESTIMATE),
    )
}


@click.group()
def lm() -> None:
    """Make n-gram models for --lm."""


@lm.command(cls=SectionedCommand, sections=OUTPUT)
@click.argument("model", type=click.Path(path_type=Path))
def build(model: Path, output: Path, bits: str) -> None:
    """Convert an ARPA file, plain or .gz, or a KenLM trie.

    Large models are sorted in temporary files next to FILE. -v shows the memory needed.
    """
    from sottovoce.lm.ngram import read_ngrams

    check_suffix(output)
    with reporting() as report:
        table = read_ngrams(model, output.absolute().parent, report)
        write(table, output, int(bits), report)


@lm.command(
    cls=SectionedCommand, sections={name: grouped(name, of=ESTIMATE) for name in ("Texts", "Model")} | OUTPUT
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def estimate(files: tuple[Path, ...], output: Path, **given: object) -> None:
    """Estimate a model from texts or counts, plain or .gz.

    By modified Kneser-Ney smoothing. Texts have one sentence a line; the model equals that of KenLM's lmplz.
    Words are separated by spaces; fold their case first. -v shows the memory needed.
    """
    from sottovoce.lm.arpa import count_text, numbered_lines, read_counts
    from sottovoce.lm.arpa import estimate as estimated

    check_suffix(output)
    options = from_values(EstimateOptions, given)
    with reporting() as report:
        if options.counts:
            counted = read_counts(files, options.order)
        else:
            counted = count_text(numbered_lines(files), options.order or 3, report)
        folder = output.absolute().parent
        table = estimated(*counted, prune=options.prune, fallback=options.discount_fallback, folder=folder)
        write(table, output, int(options.bits), report)


def check_suffix(output: Path) -> None:
    if not output.name.endswith(SUFFIXES):
        raise OptionError(f"-o: expected a name in {', '.join(SUFFIXES)}, got {output.name!r}")


def write(table: NgramTable, output: Path, bits: int, report: Report) -> None:
    from rich.filesize import decimal

    from sottovoce.lm.arpa import write_arpa
    from sottovoce.lm.ngram import build_trie, write_trie

    with writing(str(output), OutputError):
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.suffix == ".trie":
            write_trie(output, *build_trie(table, bits=bits, folder=output.absolute().parent, report=report))
        else:
            write_arpa(output, table)
    counts = ", ".join(f"{len(each.log10):,} {n}-grams" for n, each in enumerate(table.orders, start=1))
    click.echo(f"{output}: {counts}; {decimal(output.stat().st_size)}")


@contextmanager
def reporting() -> Iterator[Report]:
    """Show the steps of the work on a terminal."""
    if sys.stderr.isatty():
        logging.getLogger("sottovoce.lm").setLevel(logging.INFO)
    tasks: dict[str, TaskID] = {}
    with progress_bar() as bar:

        def report(step: str, n_done: int, n_all: int) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(step, total=n_all)
            bar.update(tasks[step], completed=n_done)

        yield report
