"""The recipe's command line: `python -m recipes.nano COMMAND`."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from recipes.nano.clips import read_manifest, write_store
from recipes.nano.speech import write_corpus
from recipes.nano.texts import LANGUAGES, corpus
from recipes.nano.train import average
from recipes.nano.train import train as train_model
from sottovoce.errors import InputError, SottovoceError
from sottovoce.models.load import load_checkpoint

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
OUTPUT = click.Path(path_type=Path, dir_okay=False)
SEED = 11
SEQUENCES, N_WORDS = 2000, 225
"""Random word sequences of each language, and the most frequent words that they draw from."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Make the nano model from nothing."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)


@cli.command()
@click.option("--texts", type=FOLDER, help="Folder of <language>.txt files; built-in sentences without it.")
@click.option("--manifest", "manifests", type=FILE, multiple=True, help="Human speech; may be repeated.")
@click.argument("folder", type=FOLDER)
def data(texts: Path | None, manifests: tuple[Path, ...], folder: Path) -> None:
    """Speak the texts with espeak-ng and flite, and compute the features of all clips, into FOLDER."""
    rng = random.Random(SEED)
    sentences = [one for code in LANGUAGES for one in corpus(texts, code, SEQUENCES, rng, n_words=N_WORDS)]
    spoken = write_corpus(sentences, folder / "speech", rng)
    clips = [clip for manifest in (spoken, *manifests) for clip in read_manifest(manifest)]
    store = write_store((clip for clip in clips if clip.language in LANGUAGES), folder)
    click.echo(f"{len(store)} clips, {store.hours:.2f} h in {folder}", err=True)


@cli.command()
@click.option("--minutes", default=80.0, show_default=True, help="How long to train; everything follows it.")
@click.option("--learning-rate", default=5e-4, show_default=True)
@click.option("--start", help="A checkpoint whose weights and pieces to begin with, such as nano.")
@click.option("--share", "shares", multiple=True, help="LANGUAGE=TIMES it is heard in a round, such as fr=2.")
@click.argument("folder", type=FOLDER)
@click.argument("output", type=FOLDER)
def train(
    minutes: float,
    learning_rate: float,
    start: str | None,
    shares: tuple[str, ...],
    folder: Path,
    output: Path,
) -> None:
    """Train on the data in FOLDER; write nano.safetensors and log.jsonl into OUTPUT. Ctrl-C ends it early."""
    if minutes <= 0 or learning_rate <= 0:
        raise InputError(f"expected minutes and learning rate above 0, got {minutes} and {learning_rate}")
    train_model(
        folder,
        output,
        minutes=minutes,
        learning_rate=learning_rate,
        shares=_shares(shares),
        start=None if start is None else load_checkpoint(start),
    )


@cli.command("average")
@click.argument("packages", type=FILE, nargs=-1, required=True)
@click.argument("package", type=OUTPUT)
def average_command(packages: tuple[Path, ...], package: Path) -> None:
    """Write the mean of the weights of PACKAGES, such as a fine-tuning's beginning and its end."""
    average(packages, package)


def _shares(texts: Sequence[str]) -> dict[str, float]:
    shares = {}
    for text in texts:
        language, _, times = text.partition("=")
        try:
            shares[language] = float(times)
        except ValueError as error:
            raise InputError(f"--share {text!r}: expected a language and a number such as fr=2") from error
        if not 0 <= shares[language] < 1000:
            raise InputError(f"--share {text!r}: expected a number from 0 to 1000")
    return shares


if __name__ == "__main__":
    try:
        cli()
    except SottovoceError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
