"""`sottovoce models` and `sottovoce voices`: what is kept on this machine."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from sottovoce.cli.options import MODEL, ModelOptions, SectionedCommand, voice_of
from sottovoce.models.checkpoint.formats import BY_NAME, WRITTEN, format_by_name, require_suffix
from sottovoce.models.sources import (
    LICENCE,
    MILLIONS,
    NANO,
    REPOSITORIES,
    Sources,
    cached,
    is_ctc_network,
    list_models,
    resolve,
)
from sottovoce.options.schema import Option, from_values

if TYPE_CHECKING:
    from sottovoce.models.checkpoint.base import Checkpoint, QuantizationLoss


@click.group()
def models() -> None:
    """List, inspect, fetch and convert models."""


MODEL_DIR, REVISION, SOURCE = (
    option for option in MODEL if option.key in ("model_dir", "revision", "source")
)
JSON = Option("One JSON document instead of a table.", key="as_json", flag="--json", kind="flag")
FORMAT = (
    Option(
        "pt: OpenAI's .pt; hf: Hugging Face folder; ggml: ggml file; ct2: CTranslate2 folder.",
        key="kind",
        flag="--to",
        unset="default: by the name of OUTPUT",
        kind="choice",
        choices=WRITTEN,
    ),
    Option(
        "f32, f16 or bf16 (ggml: f32, f16, q4_0 … q8_0; ct2 also int8, int8_float16, int8_bfloat16, int16).",
        key="number",
        flag="--type",
        default="f16",
    ),
)


@models.command("list", cls=SectionedCommand, sections={"Options": (JSON, MODEL_DIR)})
def list_names(as_json: bool, model_dir: str | None) -> None:
    """List the names of models.

    --model also takes a path or a hub id (org/name). M: millions of parameters, of two bytes each in float16
    and four in float32. Here: on this machine. MB: on disk, if known. Index: available from the package index
    without the hub. The licence of all is MIT.
    """
    sources = ModelOptions(model_dir=model_dir).sources()
    rows = [listed(name, sources) for name in list_models()]
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = columns("name", "M", "here", "MB", "index", "hub")
    for row in rows:
        here, there = ("yes" if row[key] else "" for key in ("cached", "in_index"))
        size = "" if row["size_mb"] is None else f"{row['size_mb']:.0f}"
        millions = "" if row["parameters_m"] is None else str(row["parameters_m"])
        table.add_row(str(row["name"]), millions, here, size, there, str(row["source"]))
    show(table)


def columns(*names: str) -> Table:
    return Table(*names, box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)


def show(table: Table) -> None:
    Console(soft_wrap=not sys.stdout.isatty()).print(table)


def listed(name: str, sources: Sources) -> dict[str, object]:
    here, entry = cached(name, sources), sources.in_index(name)
    size = size_of(here) if here else entry.size if entry else None
    return {
        "name": name,
        "source": REPOSITORIES.get(name, "bundled"),
        "parameters_m": MILLIONS.get(name),
        "cached": str(here) if here else None,
        "in_index": entry is not None,
        "size_mb": None if size is None else round(size / 1e6, 1),
        "licence": entry.licence if entry else LICENCE,
    }


def size_of(path: Path) -> int:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


@models.command(cls=SectionedCommand, sections={"Options": (JSON,)})
@click.argument("model", default=NANO)
def info(model: str, as_json: bool) -> None:
    """Show the dimensions, languages and runtime of a model.

    Also its format, number formats and alignment heads. Of a CTC network: labels, frames and windows.
    """
    from sottovoce.models.load import load_checkpoint

    is_network = is_ctc_network(model)
    facts = describe_network(model) if is_network else describe(load_checkpoint(model), resolve(model))
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column()
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), shown(value))
    show(table)


@models.command(cls=SectionedCommand, sections={"Options": (SOURCE, MODEL_DIR, REVISION)})
@click.argument("names", nargs=-1, required=True)
def download(names: tuple[str, ...], **given: str | None) -> None:
    """Download models into the cache, for use without a network. Cached models are skipped."""
    sources = from_values(ModelOptions, given).sources()
    for name in names:
        click.echo(f"{name}: {resolve(name, sources)}")


@models.command(
    cls=SectionedCommand,
    sections={"Options": (Option("Remove them.", key="remove", flag="--remove", kind="flag"), JSON)},
)
@click.argument("names", nargs=-1)
def packed(names: tuple[str, ...], remove: bool, as_json: bool) -> None:
    """List the cached weights of the native kernels.

    NAMES: of models; without them all. Weights are packed at a model's first use, and mapped into memory
    afterwards; removed ones are packed again.
    """
    from sottovoce.runtime.packed import list_packed

    files = [file for file in list_packed() if not names or file.model in names]
    rows = [
        {
            "name": file.model,
            "size_mb": round(file.n_bytes / 1e6, 1),
            "weights": file.source,
            "file": str(file.path),
        }
        for file in files
    ]
    if remove:
        for file in files:
            file.remove()
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = columns("name", "MB", "weights")
    for row in rows:
        table.add_row(str(row["name"]), f"{row['size_mb']:.0f}", str(row["weights"]))
    show(table)


def describe(checkpoint: Checkpoint, path: Path) -> dict[str, object]:
    from sottovoce.models.checkpoint.base import dtype_name, stored_tensors
    from sottovoce.models.devices import choose_device
    from sottovoce.models.load import n_parameters
    from sottovoce.runtime.registry import AUTO, choose_runtime

    runtime = choose_runtime(AUTO, "auto", choose_device("auto"), checkpoint.dims)
    dtypes = sorted({dtype_name(tensor.dtype) for tensor in stored_tensors(checkpoint.tensors).values()})
    dims = checkpoint.dims
    return {
        "name": checkpoint.name,
        "path": str(path),
        "file_mb": round(size_of(path) / 1e6, 1),
        "parameters_m": round(n_parameters(checkpoint.dims) / 1e6, 1),
        "format": BY_NAME[checkpoint.kind].title,
        "stored_as": checkpoint.numbers or ", ".join(dtypes),
        "read_as": dtypes,
        "multilingual": dims.is_multilingual,
        "languages": list(checkpoint.languages) if checkpoint.languages else dims.n_languages or ["en"],
        "alignment_heads": [list(pair) for pair in checkpoint.alignment_heads or ()],
        "ctc_labels": len(checkpoint.ctc_head.labels) if checkpoint.ctc_head else 0,
        "runtime": f"{runtime.name} ({runtime.reason})",
        **asdict(dims),
    }


def describe_network(name: str) -> dict[str, object]:
    from sottovoce.api import load_model

    network = load_model(name).network
    return {
        "name": network.name,
        "file_mb": round(network.n_bytes / 1e6, 1),
        "languages": [network.language] if network.language else [],
        "ctc_labels": len(network.labels.names),
        "blank": network.blank,
        "frame_ms": round(1000 * network.frame_s, 3),
        "reads": "streams" if network.stream else f"windows of {network.longest_s:g} s",
        "context_s": network.margin_s,
        "decoder": str(network.decoder or "none"),
    }


def shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join("/".join(map(str, v)) if isinstance(v, list) else str(v) for v in value) or "unknown"
    return str(value)


@models.command(cls=SectionedCommand, sections={"Options": FORMAT})
@click.argument("model")
@click.argument("output", type=click.Path(path_type=Path))
def convert(model: str, output: Path, kind: str | None, number: str) -> None:
    """Write a model in the format of another program.

    For whisper.cpp, transformers, openai-whisper or faster-whisper.
    """
    from sottovoce.models.load import load_checkpoint, write_checkpoint

    kind = kind or format_by_name(output).name
    checkpoint = load_checkpoint(model)
    loss = write_checkpoint(checkpoint, output, kind, number)
    click.echo(f"{output}: {checkpoint.name} as {kind}, {number}")
    if loss is not None:
        click.echo(loss_line(loss))


@models.command(
    cls=SectionedCommand, sections={"Options": (replace(JSON, help="Report as a JSON document."),)}
)
@click.argument("model")
@click.argument("output", type=click.Path(path_type=Path))
@click.argument("number", metavar="TYPE", default="q5_1")
def quantize(model: str, output: Path, number: str, as_json: bool) -> None:
    """Write a model as a quantised ggml file.

    Reports the quantisation error. TYPE: q4_0, q4_1, q5_0, q5_1 or q8_0. [default: q5_1] RMS: root mean
    square error relative to the weights; the worst tensor has the largest.
    """
    from sottovoce.models.checkpoint.ggml import check_quantized
    from sottovoce.models.load import load_checkpoint, write_checkpoint

    check_quantized(number)
    require_suffix(output, BY_NAME["ggml"])
    loss = write_checkpoint(load_checkpoint(model), output, "ggml", number)
    assert loss is not None
    if as_json:
        click.echo(json.dumps({"path": str(output), "type": number, **asdict(loss)}))
        return
    click.echo(f"{output}: {model} as ggml, {number}")
    click.echo(loss_line(loss))


def loss_line(loss: QuantizationLoss) -> str:
    return (
        f"{loss.bytes_before / 1e6:.1f} MB of weights are {loss.bytes_after / 1e6:.1f} MB; "
        f"relative RMS error {loss.relative_rms:.2%}, largest error {loss.largest_error:.2g}, "
        f"worst tensor {loss.worst} ({loss.worst_relative_rms:.2%})"
    )


@click.group()
def voices() -> None:
    """Keep voices by name; --speakers recognises them in recordings and live.

    They are WAV files in ~/.local/share/sottovoce/voices, or in the folder SOTTOVOCE_VOICES.
    """


@voices.command()
@click.argument("name")
@click.argument("file")
def add(name: str, file: str) -> None:
    """Keep a voice, or replace it.

    FILE: 1 to 120 seconds of one person's speech.
    """
    from sottovoce.speakers.diarize import VoiceBook

    VoiceBook().add(name, voice_of(file, "FILE"))


@voices.command("list")
def list_voices() -> None:
    """List the names."""
    from sottovoce.speakers.diarize import VoiceBook

    for name in VoiceBook().names:
        click.echo(name)


@voices.command()
@click.argument("name")
def remove(name: str) -> None:
    """Delete a voice."""
    from sottovoce.speakers.diarize import VoiceBook

    VoiceBook().remove(name)
