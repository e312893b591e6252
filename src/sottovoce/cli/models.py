"""`sottovoce models`: which there are, what is in a file, fetching one ahead of time."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.convert import KINDS, kind_by_name, write_checkpoint
from sottovoce.models.hub import NANO, REPOSITORIES, list_models, load_checkpoint, resolve


@click.group()
def models() -> None:
    """List, inspect, fetch and convert models."""


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def list_(as_json: bool) -> None:
    """Names that --model knows; a path or a hub id (org/name) works too."""
    rows = [(name, REPOSITORIES.get(name, "bundled: a toy for tests and demos")) for name in list_models()]
    if as_json:
        click.echo(json.dumps([{"name": name, "source": source} for name, source in rows]))
        return
    table = Table("name", "source", box=None, header_style="bold")
    for name, source in rows:
        table.add_row(name, source)
    Console().print(table)


@models.command()
@click.argument("model", default=NANO)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def info(model: str, as_json: bool) -> None:
    """What a checkpoint holds: dimensions, languages, alignment heads, number formats."""
    path = resolve(model)
    facts = describe(load_checkpoint(model), path)
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column()
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), shown(value))
    Console(soft_wrap=not sys.stdout.isatty()).print(table)


@models.command()
@click.argument("names", nargs=-1, required=True)
def download(names: tuple[str, ...]) -> None:
    """Fetch models into the hub's cache, for use without a network later."""
    for name in names:
        click.echo(f"{name}: {resolve(name)}")


def describe(checkpoint: Checkpoint, path: Path) -> dict[str, object]:
    """The facts of a checkpoint that people ask for."""
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in checkpoint.tensors.values()})
    dims = checkpoint.dims
    return {
        "name": checkpoint.name,
        "path": str(path),
        "file_mb": round(sum(file.stat().st_size for file in files) / 1e6, 1),
        "parameters_m": round(sum(tensor.numel() for tensor in checkpoint.tensors.values()) / 1e6, 1),
        "format": KINDS.get(checkpoint.kind, "compact safetensors"),
        "stored_as": checkpoint.numbers or ", ".join(dtypes),
        "read_as": dtypes,
        "multilingual": dims.is_multilingual,
        "languages": list(checkpoint.languages) if checkpoint.languages else dims.n_languages or ["en"],
        "alignment_heads": [list(pair) for pair in checkpoint.alignment_heads or ()],
        "ctc_labels": len(checkpoint.ctc_head.labels) if checkpoint.ctc_head else 0,
        **asdict(dims),
    }


def shown(value: object) -> str:
    """A value as a person would write it."""
    if isinstance(value, list):
        return ", ".join("/".join(map(str, v)) if isinstance(v, list) else str(v) for v in value) or "unknown"
    return str(value)


@models.command()
@click.argument("model")
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "kind",
    type=click.Choice(list(KINDS)),
    help="OpenAI .pt, Hugging Face folder, ggml file or CTranslate2 folder. [default: by the name of OUTPUT]",
)
@click.option(
    "--type",
    "number",
    default="f16",
    show_default=True,
    help="f32, f16 or bf16 (ggml: f32, f16, q4_0 … q8_0; ct2 also int8, int8_float16, int8_bfloat16, int16).",
)
def convert(model: str, output: Path, kind: str | None, number: str) -> None:
    """Write a model in another format, for whisper.cpp, transformers, openai-whisper or faster-whisper."""
    checkpoint = load_checkpoint(model)
    kind = kind or kind_by_name(output)
    write_checkpoint(checkpoint, output, kind, number)
    click.echo(f"{output}: {checkpoint.name} as {kind}, {number}")


@models.command()
@click.argument("model")
@click.argument("output", type=click.Path(path_type=Path))
@click.argument("number", metavar="TYPE", default="q5_1")
def quantize(model: str, output: Path, number: str) -> None:
    """Write a model as a quantised ggml file."""
    write_checkpoint(load_checkpoint(model), output, "ggml", number)
    click.echo(f"{output}: {model} as ggml, {number}")
