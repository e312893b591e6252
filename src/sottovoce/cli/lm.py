"""`sottovoce lm`: estimation and conversion of n-gram models."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import Progress, TaskID

from sottovoce.errors import OptionError

if TYPE_CHECKING:
    from sottovoce.lm.arpa import NgramTable, Report

SUFFIXES = (".trie", ".arpa", ".arpa.gz")
DEFAULT_ORDER = 3
OUTPUT = click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=".trie, which loads at once, or .arpa or .arpa.gz for other programs.",
)
BITS = click.option(
    "--bits",
    type=click.Choice(["8", "32"]),
    default="8",
    show_default=True,
    help="Bits of log-probabilities and back-offs in a .trie; 32 is exact.",
)


@click.group()
def lm() -> None:
    """Make n-gram models for --lm."""


@lm.command()
@click.argument("model", type=click.Path(path_type=Path))
@OUTPUT
@BITS
def build(model: Path, output: Path, bits: str) -> None:
    """Convert an ARPA file, plain or .gz, or a KenLM trie.

    Large models are sorted in temporary files next to FILE. -v shows the memory needed.
    """
    from sottovoce.lm.ngram import read_ngrams

    check_suffix(output)
    with Steps() as steps:
        table = read_ngrams(model, output.absolute().parent, steps.report)
        write(table, output, int(bits), steps.report)


@lm.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@OUTPUT
@BITS
@click.option(
    "--counts", is_flag=True, help="FILES contain lines `w1 w2 … wn<TAB>count`, of one order or all."
)
@click.option(
    "--order",
    type=click.IntRange(1, 10),
    help="Length of the longest n-grams.  [default: 3, or that of the counts]",
)
@click.option(
    "--prune",
    metavar="N,N,…",
    default="0",
    show_default=True,
    help="Drop n-grams of orders 1, 2, … that occur at most N times; the last number applies "
    "to all higher orders.",
)
@click.option(
    "--discount-fallback", is_flag=True, help="Use discounts of 0.5, 1 and 1.5 if a small text gives none."
)
def estimate(
    files: tuple[Path, ...],
    output: Path,
    bits: str,
    counts: bool,
    order: int | None,
    prune: str,
    discount_fallback: bool,
) -> None:
    """Estimate a model by modified Kneser-Ney smoothing from texts or counts, plain or .gz.

    Texts have one sentence a line; the model equals that of KenLM's lmplz. Words are separated by spaces;
    fold their case first. -v shows the memory needed.
    """
    from sottovoce.lm.estimate import count_text, numbered_lines, read_counts
    from sottovoce.lm.estimate import estimate as estimated

    check_suffix(output)
    if not all(each.strip().isdigit() for each in prune.split(",")):
        raise OptionError(f"--prune: expected numbers separated by commas, got {prune!r}")
    least = [int(each) for each in prune.split(",")]
    with Steps() as steps:
        if counts:
            counted = read_counts(files, order)
        else:
            counted = count_text(numbered_lines(files), order or DEFAULT_ORDER, steps.report)
        folder = output.absolute().parent
        table = estimated(*counted, prune=least, fallback=discount_fallback, folder=folder)
        write(table, output, int(bits), steps.report)


def check_suffix(output: Path) -> None:
    if not output.name.endswith(SUFFIXES):
        raise OptionError(f"-o: expected a name in {', '.join(SUFFIXES)}, got {output.name!r}")


def write(table: NgramTable, output: Path, bits: int, report: Report) -> None:
    from sottovoce.errors import OutputError, cause_of
    from sottovoce.lm.arpa import write_arpa
    from sottovoce.lm.ngram import build_trie, write_trie

    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.suffix == ".trie":
            write_trie(output, *build_trie(table, bits=bits, folder=output.absolute().parent, report=report))
        else:
            write_arpa(output, table)
    except OSError as error:
        raise OutputError(f"{output}: cannot be written ({cause_of(error)})") from error
    counts = ", ".join(f"{len(each.log10):,} {n}-grams" for n, each in enumerate(table.orders, start=1))
    click.echo(f"{output}: {counts}; {output.stat().st_size / 1e6:,.1f} MB")


class Steps(Progress):
    def __init__(self) -> None:
        console = Console(stderr=True)
        if console.is_terminal:
            logging.getLogger("sottovoce.lm").setLevel(logging.INFO)
        super().__init__(console=console, transient=True, disable=not console.is_terminal)
        self._bars: dict[str, TaskID] = {}

    def report(self, step: str, n_done: int, n_all: int) -> None:
        if step not in self._bars:
            self._bars[step] = self.add_task(step, total=n_all)
        self.update(self._bars[step], completed=n_done)
