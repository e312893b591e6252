"""The recipe's command line: `python -m recipes.nano COMMAND`."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from recipes.nano.agree import compare
from recipes.nano.batches import Curriculum
from recipes.nano.build import DataPlan, make_data
from recipes.nano.devices import default_workers, training_dtype
from recipes.nano.evaluate import evaluate, load_sets, table, write_figures
from recipes.nano.finetune import TuneOptions, fine_tune_file
from recipes.nano.pack import average, pack, unpack
from recipes.nano.plot import plot_curve
from recipes.nano.run import TrainPlan, train_model
from recipes.nano.texts import LANGUAGES
from recipes.nano.train import Schedule
from sottovoce.api import load_model
from sottovoce.backends.registry import choose_device
from sottovoce.errors import InputError, SottovoceError
from sottovoce.models.load import load_checkpoint

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
OUTPUT = click.Path(path_type=Path, dir_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Make the nano model from nothing, or fine-tune a Whisper checkpoint."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)


@cli.command()
@click.option("--texts", type=FOLDER, help="Folder of <language>.txt files; built-in sentences without it.")
@click.option("--manifest", "manifests", type=FILE, multiple=True, help="Human speech; may be repeated.")
@click.option("--languages", default=",".join(LANGUAGES), show_default=True)
@click.option("--sequences", default=2000, show_default=True, help="Random word sequences a language.")
@click.option("--words", default=225, show_default=True, help="Most frequent words that they draw from.")
@click.option("--seed", default=11, show_default=True)
@click.argument("folder", type=FOLDER)
def data(
    texts: Path | None,
    manifests: tuple[Path, ...],
    languages: str,
    sequences: int,
    words: int,
    seed: int,
    folder: Path,
) -> None:
    """Speak the texts with espeak-ng and flite, and compute the features of all clips, into FOLDER."""
    plan = DataPlan(tuple(languages.split(",")), sequences, words, texts, seed)
    store = make_data(plan, manifests, folder)
    click.echo(f"{len(store)} clips, {store.hours:.2f} h in {folder}", err=True)


@cli.command()
@click.option("--minutes", default=80.0, show_default=True, help="How long to train; everything follows it.")
@click.option("--learning-rate", default=5e-4, show_default=True)
@click.option("--resume", type=FILE, help="A state.pt to go on from.")
@click.option("--start", help="A checkpoint whose weights and pieces to begin with, such as nano.")
@click.option(
    "--dtype", type=click.Choice(["auto", "float32", "bfloat16"]), default="auto", show_default=True
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--frames", default=2000, show_default=True, help="Encoder frames a batch; 20000 for a GPU.")
@click.option("--workers", type=int, help="Processes that make batches; by default as the device needs.")
@click.option(
    "--processes", type=click.IntRange(1), default=1, show_default=True, help="Copies, averaged now and then."
)
@click.option("--share", "shares", multiple=True, help="LANGUAGE=TIMES it is heard in a round, such as fr=2.")
@click.option("--min-word-count", default=60, show_default=True, help="Rarer words are written by letters.")
@click.option("--seed", default=5, show_default=True)
@click.argument("folder", type=FOLDER)
@click.argument("output", type=FOLDER)
def train(
    minutes: float,
    learning_rate: float,
    resume: Path | None,
    start: str | None,
    dtype: str,
    device: str,
    frames: int,
    workers: int | None,
    processes: int,
    shares: tuple[str, ...],
    min_word_count: int,
    seed: int,
    folder: Path,
    output: Path,
) -> None:
    """Train on the data in FOLDER; write nano.pt, nano.safetensors and the log into OUTPUT."""
    where = choose_device(device)
    plan = TrainPlan(
        Schedule(
            minutes=minutes,
            learning_rate=learning_rate,
            dtype=training_dtype(dtype, where),
            workers=default_workers(where) if workers is None else workers,
        ),
        Curriculum(frames=frames, shares=_shares(shares)),
        where,
        min_word_count=min_word_count,
        seed=seed,
        start=None if start is None else load_checkpoint(start),
        resume=resume,
        processes=processes,
    )
    train_model(plan, folder, output)


@cli.command("evaluate")
@click.option("--limit", default=40, show_default=True, help="Clips of a set at most.")
@click.option("--only", default="", help="Only sets whose name holds this.")
@click.argument("model")
@click.argument("manifest", type=FILE)
@click.argument("output", type=OUTPUT)
def evaluate_command(limit: int, only: str, model: str, manifest: Path, output: Path) -> None:
    """Measure MODEL (name or path) on the clips of MANIFEST; figures as JSON into OUTPUT, a table out."""
    sets = [group for group in load_sets(manifest, limit) if only in group.name]
    figures = evaluate(load_model(model, device="cpu", dtype="float32"), sets)
    write_figures(figures, output)
    click.echo(table(figures))


@cli.command("agree")
@click.option("--clips", default=20, show_default=True)
@click.argument("model")
@click.argument("manifest", type=FILE)
@click.argument("folder", type=FOLDER)
def agree_command(clips: int, model: str, manifest: Path, folder: Path) -> None:
    """Convert MODEL for other programs into FOLDER, and compare what they write on clips of MANIFEST."""
    folder.mkdir(parents=True, exist_ok=True)
    loaded = load_model(model, device="cpu", dtype="float32")
    sets = [group for group in load_sets(manifest, clips) if group.recordings[0].text]
    spread = [item for row in zip(*(group.recordings for group in sets), strict=False) for item in row]
    for found in compare(load_checkpoint(model), loaded, spread[:clips], folder):
        click.echo(f"{found.program} ({found.padding} padding): {found.same} of {found.clips} alike")
        for ours, theirs in found.different:
            click.echo(f"  ours   {ours}\n  theirs {theirs}")


@cli.command()
@click.argument("log", type=FILE)
@click.argument("picture", type=OUTPUT)
def curve(log: Path, picture: Path) -> None:
    """Draw the learning curve of a LOG (log.jsonl) into PICTURE (needs matplotlib)."""
    plot_curve([json.loads(line) for line in log.read_text().splitlines()], picture)


@cli.command("all")
@click.option("--texts", type=FOLDER, help="As of `data`.")
@click.option("--manifest", "manifests", type=FILE, multiple=True, help="As of `data`.")
@click.option("--languages", default=",".join(LANGUAGES), show_default=True)
@click.option("--sequences", default=2000, show_default=True, help="As of `data`.")
@click.option("--minutes", default=150.0, show_default=True, help="As of `train`.")
@click.option("--start", help="As of `train`.")
@click.option("--limit", default=40, show_default=True, help="As of `evaluate`.")
@click.argument("folder", type=FOLDER)
@click.argument("output", type=FOLDER)
@click.pass_context
def everything(
    context: click.Context,
    texts: Path | None,
    manifests: tuple[Path, ...],
    languages: str,
    sequences: int,
    minutes: float,
    start: str | None,
    limit: int,
    folder: Path,
    output: Path,
) -> None:
    """From nothing to a measured model: data into FOLDER, then train, curve and evaluate into OUTPUT."""
    spoken = {"texts": texts, "manifests": manifests, "languages": languages, "sequences": sequences}
    context.invoke(data, **spoken, folder=folder)
    context.invoke(train, minutes=minutes, start=start, folder=folder, output=output)
    context.invoke(curve, log=output / "log.jsonl", picture=output / "curve.png")
    context.invoke(
        evaluate_command,
        model=str(output / "nano.safetensors"),
        manifest=folder / "speech" / "manifest.jsonl",
        output=output / "figures.json",
        limit=limit,
    )


@cli.command("pack")
@click.option("--heads", required=True, help="Alignment heads as layer,head pairs, such as 1,0;2,0.")
@click.argument("checkpoint", type=FILE)
@click.argument("ctc_head", type=FILE)
@click.argument("package", type=OUTPUT)
def pack_command(heads: str, checkpoint: Path, ctc_head: Path, package: Path) -> None:
    """Pack an OpenAI CHECKPOINT and its CTC_HEAD into the library's small PACKAGE."""
    size = pack(checkpoint, ctc_head, package, _heads(heads))
    click.echo(f"{package}: {size / 1e6:.1f} MB", err=True)


@cli.command("average")
@click.argument("packages", type=FILE, nargs=-1, required=True)
@click.argument("package", type=OUTPUT)
def average_command(packages: tuple[Path, ...], package: Path) -> None:
    """Write the mean of the weights of PACKAGES, such as a fine-tuning's beginning and its end."""
    size = average(packages, package)
    click.echo(f"{package}: {size / 1e6:.1f} MB", err=True)


@cli.command("unpack")
@click.argument("package", type=FILE)
@click.argument("checkpoint", type=OUTPUT)
def unpack_command(package: Path, checkpoint: Path) -> None:
    """Write a PACKAGE as an OpenAI CHECKPOINT (.pt) for other tools."""
    unpack(package, checkpoint)


@cli.command("fine-tune")
@click.option("--model", default="nano", show_default=True, help="Name or path of a Whisper checkpoint.")
@click.option("--steps", default=500, show_default=True)
@click.option("--batch-size", default=8, show_default=True)
@click.option("--learning-rate", default=1e-5, show_default=True)
@click.option("--lora-rank", default=0, show_default=True, help="0 tunes all weights.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--dtype", default="auto", show_default=True, help="Of products: auto, float32 or bfloat16.")
@click.argument("manifest", type=FILE)
@click.argument("output", type=OUTPUT)
def fine_tune_command(
    model: str,
    steps: int,
    batch_size: int,
    learning_rate: float,
    lora_rank: int,
    device: str,
    dtype: str,
    manifest: Path,
    output: Path,
) -> None:
    """Fine-tune a checkpoint on MANIFEST (JSON lines: file, language, text) into OUTPUT (.pt).

    Clips with "split": "dev" are not learnt: the loss on them is told before and after. Ctrl-C ends early
    and keeps what was learnt.
    """
    where = choose_device(device)
    options = TuneOptions(
        steps,
        batch_size,
        learning_rate,
        lora_rank,
        device=where,
        dtype=training_dtype(dtype, where),
        workers=default_workers(where),
    )
    tuned = fine_tune_file(load_checkpoint(model), manifest, output, options)
    click.echo(f"{output}: {len(tuned.losses)} steps", err=True)
    if tuned.held_out:
        before, after = tuned.held_out
        click.echo(f"loss on the clips held out: {before:.3f} -> {after:.3f}", err=True)


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


def _heads(text: str) -> tuple[tuple[int, int], ...]:
    try:
        pairs = [pair.split(",") for pair in text.split(";")]
        return tuple((int(layer), int(head)) for layer, head in pairs)
    except ValueError as error:
        raise InputError(f"--heads {text!r}: expected pairs such as 1,0;2,0") from error


if __name__ == "__main__":
    try:
        cli()
    except SottovoceError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
