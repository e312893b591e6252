"""The recipe's command line: `python -m recipes.phonemes COMMAND`."""

from __future__ import annotations

from pathlib import Path

import click

from recipes.phonemes.picture import draw
from recipes.phonemes.words import copy_network, frequent_words, write_bigram, write_lexicon
from sottovoce.audio.io import open_audio
from sottovoce.ctc.options import write_config
from sottovoce.network_model import ctc_model

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Read speech through phonemes, a lexicon and language models."""


@cli.command()
@click.argument("folder", type=FOLDER)
@click.option("--words", "n_words", default=20_000, show_default=True, help="The most frequent ones.")
@click.option("--also", default="", help="A file with further words of the lexicon.", type=str)
def model(folder: Path, n_words: int, also: str) -> None:
    """Make FOLDER/network.toml, a model for every command, with a lexicon and a bigram."""
    folder.mkdir(parents=True, exist_ok=True)
    copy_network(folder)
    counts = frequent_words(n_words, Path(also).read_text(encoding="utf-8").lower().split() if also else ())
    write_lexicon(counts, folder / "lexicon.txt")
    write_bigram(counts, folder / "bigram.arpa")
    write_config(folder / "decoder.toml", {"lexicon": folder / "lexicon.txt", "lm": folder / "bigram.arpa"})


@cli.command()
@click.argument("recording", type=FILE)
@click.argument("network", type=FILE)
@click.argument("image", type=FILE)
def picture(recording: Path, network: Path, image: Path) -> None:
    """Draw the phonemes that NETWORK (network.toml) finds in RECORDING, and the words of its decoder."""
    model = ctc_model(network)
    with open_audio(recording) as reader:
        draw(model.network.whole_emissions(reader), model.fusion(), image)


if __name__ == "__main__":
    cli()
