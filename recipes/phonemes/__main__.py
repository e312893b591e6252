"""The recipe's command line: `python -m recipes.phonemes COMMAND`."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from recipes.phonemes.network import PhonemeNetwork
from recipes.phonemes.picture import draw
from recipes.phonemes.words import frequent_words, write_bigram, write_lexicon
from sottovoce.audio.io import load_audio
from sottovoce.ctc import CtcDecoder
from sottovoce.ctc.options import write_config

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Read speech through phonemes, a lexicon and language models."""


@cli.command()
@click.argument("folder", type=FOLDER)
@click.option("--words", "n_words", default=20_000, show_default=True, help="The most frequent ones.")
@click.option("--also", default="", help="A file with further words of the lexicon.", type=str)
def words(folder: Path, n_words: int, also: str) -> None:
    """Make FOLDER/labels.txt, lexicon.txt, bigram.arpa, and the decoder.toml of these."""
    folder.mkdir(parents=True, exist_ok=True)
    network = PhonemeNetwork()
    (folder / "labels.txt").write_text("\n".join(network.labels) + "\n", encoding="utf-8")
    counts = frequent_words(n_words, Path(also).read_text(encoding="utf-8").lower().split() if also else ())
    write_lexicon(counts, folder / "lexicon.txt")
    write_bigram(counts, folder / "bigram.arpa")
    files = {"labels": "labels.txt", "lexicon": "lexicon.txt", "lm": "bigram.arpa"}
    write_config(
        folder / "decoder.toml",
        {key: folder / name for key, name in files.items()} | {"blank": network.blank},
    )


@cli.command()
@click.argument("recordings", type=FILE, nargs=-1, required=True)
@click.argument("folder", type=FOLDER)
def emissions(recordings: tuple[Path, ...], folder: Path) -> None:
    """Save the log-probabilities of RECORDINGS as FOLDER/NAME.npy (float16; 50 frames a second)."""
    folder.mkdir(parents=True, exist_ok=True)
    network = PhonemeNetwork()
    for path in recordings:
        np.save(folder / f"{path.stem}.npy", network.log_probs(load_audio(path)).astype(np.float16))
        click.echo(folder / f"{path.stem}.npy")


@cli.command()
@click.argument("emissions", type=FILE)
@click.argument("config", type=FILE)
@click.argument("image", type=FILE)
def picture(emissions: Path, config: Path, image: Path) -> None:
    """Draw EMISSIONS.npy, what is likely when, and the words that CONFIG (decoder.toml) reads in them."""
    draw(np.load(emissions).astype(np.float32), CtcDecoder.from_config(config), image)


if __name__ == "__main__":
    cli()
