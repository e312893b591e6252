"""The recipe's command line: `python -m recipes.ctc_head COMMAND`."""

from __future__ import annotations

import json
import logging
import random
import sys
from itertools import chain
from pathlib import Path

import click
import torch

from recipes.ctc_head.material import (
    MAX_CLIP_S,
    human_clips_of,
    save_manifest,
    sentences_to_speak,
    written,
)
from recipes.ctc_head.states import StateStore, WindowMaker, encode_all
from recipes.ctc_head.train import SEED, Batches, HeadNetwork, Trainer, held_out_errors
from recipes.nano.clips import FeatureStore, read_manifest, write_store
from recipes.nano.speech import write_corpus
from sottovoce.api import as_whisper, load_model
from sottovoce.evaluation.scores import ErrorCounts
from sottovoce.models.ctc_head import CtcFile, fingerprint, save_ctc_file
from sottovoce.models.load import load_checkpoint

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
SPOKEN = {"en": 100, "de": 100, "es": 250, "fr": 300, "zh": 250}
"""Synthetic sentences of each language: most where the fewest people speak."""
model_option = click.option("--model", default="base", show_default=True, help="Whose head is made.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Make a CTC head for a Whisper checkpoint."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)


@cli.command()
@model_option
@click.argument("data", type=FOLDER)
@click.argument("manifest", type=FILE)
def human(model: str, data: Path, manifest: Path) -> None:
    """Choose the recordings in DATA that may teach, and write down what nobody did, into MANIFEST."""
    manifest.parent.mkdir(parents=True, exist_ok=True)
    save_manifest(written(human_clips_of(data), as_whisper(load_model(model), "clips")), manifest)


@cli.command()
@click.option("--data", type=FOLDER, help="The folder of text/sentences; else a few built-in sentences.")
@click.option("--spoken", default=1.0, show_default=True, help="Times the usual number of sentences.")
@click.argument("manifests", nargs=-1, type=FILE)
@click.argument("folder", type=FOLDER)
def speech(data: Path | None, spoken: float, manifests: tuple[Path, ...], folder: Path) -> None:
    """Speak texts, and compute the features of these and of the clips in MANIFESTS into FOLDER."""
    rng = random.Random(SEED)
    counts = {language: round(spoken * n) for language, n in SPOKEN.items()}
    said = write_corpus(sentences_to_speak(data, counts, rng), folder / "speech", rng)
    clips = chain.from_iterable(map(read_manifest, [*manifests, said]))
    store = write_store(clips, folder, max_clip_s=MAX_CLIP_S)
    click.echo(f"{len(store)} clips, {store.hours:.2f} h in {folder}", err=True)


@cli.command()
@model_option
@click.argument("folder", type=FOLDER)
def states(model: str, folder: Path) -> None:
    """Encode the clips in FOLDER, those held out as they are, the others changed."""
    maker = WindowMaker(FeatureStore(folder), random.Random(SEED))
    windows = chain(maker.plain("dev"), maker.changed())
    store = encode_all(windows, as_whisper(load_model(model), "states").backend, folder / "states")
    click.echo(f"{len(store)} windows, {store.hours:.2f} h in {folder}", err=True)


@cli.command()
@model_option
@click.option("--minutes", default=15.0, show_default=True, help="Of the processor.")
@click.argument("folder", type=FOLDER)
@click.argument("output", type=FILE)
def train(model: str, minutes: float, folder: Path, output: Path) -> None:
    """Train a head on the states in FOLDER, and write it as OUTPUT with the errors on held-out clips.

    It has the labels of nano's head.
    """
    torch.manual_seed(SEED)
    store = StateStore(folder / "states")
    labels = load_checkpoint("nano").ctc_head
    assert labels is not None
    checkpoint = load_checkpoint(model)
    network = HeadNetwork(checkpoint.dims.n_audio_state, labels.labels)
    batches = Batches(store, labels.labels)
    network.fit(batches.sample())
    Trainer(network, batches, minutes).run()
    save_ctc_file(CtcFile(network.weights(), fingerprint(checkpoint.tensors)), output)
    found = held_out_errors(network, store, batches)
    for name, errors in sorted(found.items()):
        click.echo(f"{name}: {errors.n_errors} of {errors.n_reference} letters wrong", err=True)
    total = sum(found.values(), ErrorCounts()).rate or 0.0
    rows = {name: [errors.n_errors, errors.n_reference] for name, errors in found.items()}
    click.echo(json.dumps({"held_out_letter_errors": round(total, 4), "sets": rows}))


if __name__ == "__main__":
    cli()
