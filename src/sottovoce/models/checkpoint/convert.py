"""Write checkpoints in the formats of other programs."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import MappingProxyType

import torch

from sottovoce.audio.mel import mel_filters
from sottovoce.errors import OptionError, cause_of
from sottovoce.models.checkpoint.base import Checkpoint, QuantizationLoss
from sottovoce.models.checkpoint.ctranslate2 import save_ctranslate2
from sottovoce.models.checkpoint.ggml import save_ggml
from sottovoce.models.checkpoint.huggingface import save_huggingface
from sottovoce.models.checkpoint.openai import save_openai
from sottovoce.text.tokenizer import Tokenizer

LONG = MappingProxyType({"f32": "float32", "f16": "float16", "bf16": "bfloat16"})
"""ggml's names of number types to the usual ones; both are accepted."""
DTYPES = MappingProxyType({"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16})


def write_checkpoint(checkpoint: Checkpoint, output: Path, kind: str, number: str) -> QuantizationLoss | None:
    """Write a checkpoint to a new path; return the quantisation loss, or None without quantisation.

    kind: a key of `kinds.KINDS`. number: "f32", "f16" or "bf16", or a type of the kind, such as "q5_0" for
    ggml or "int8_float16" for ct2.

    Raises:
        OptionError: the kind does not have the number type, or the output exists.
    """
    try:
        return _write(checkpoint, output, kind, number)
    except OSError as error:
        raise OptionError(f"output '{output}': cannot be written ({cause_of(error)})") from error


def _write(checkpoint: Checkpoint, output: Path, kind: str, number: str) -> QuantizationLoss | None:
    if output.exists():
        raise OptionError(f"output '{output}': is there already, choose another name")
    if not output.parent.is_dir():
        raise OptionError(f"output '{output}': expected an existing folder {output.parent}")
    partial = output.with_name(f".{output.name}.part")
    try:
        loss = _save(checkpoint, partial, kind, number)
        partial.replace(output)
        return loss
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)


def _save(checkpoint: Checkpoint, path: Path, kind: str, number: str) -> QuantizationLoss | None:
    if kind == "ggml":
        tokenizer = Tokenizer.for_model(checkpoint.dims.n_vocab)
        vocabulary = [tokenizer.token_bytes(token) for token in range(tokenizer.eot)]
        short = {long: short for short, long in LONG.items()}.get(number, number)
        filters = mel_filters(checkpoint.dims.n_mels)
        return save_ggml(checkpoint, path, short, filters=filters, vocabulary=vocabulary)
    number = LONG.get(number, number)
    if kind == "ct2":
        return save_ctranslate2(checkpoint, path, number)
    if number not in DTYPES:
        raise OptionError(
            f"number format '{number}': {kind} takes f32, f16 or bf16, quantised ones are for ggml and ct2"
        )
    (save_openai if kind == "pt" else save_huggingface)(checkpoint, path, DTYPES[number])
    return None
