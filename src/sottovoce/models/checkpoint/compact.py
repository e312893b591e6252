"""Compact files, the format of the bundled toy model `nano` (docs/nano.md).

They are float16 safetensors without computable tensors and untrained vocabulary rows; these rows share one
embedding that never wins. Dimensions and labels are JSON in the metadata.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import msgspec
import numpy as np

from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import (
    DTYPES,
    Array,
    Checkpoint,
    Codec,
    CtcWeights,
    check_dims,
    sinusoids,
    validated,
    with_dtype,
)
from sottovoce.models.checkpoint.formats import NANO_ASSET
from sottovoce.models.checkpoint.safetensors_file import read_safetensors, write_safetensors
from sottovoce.models.dims import EncoderMode, ModelDims
from sottovoce.text.files import from_json

KEY = "sottovoce"
ENCODER_MODE = EncoderMode(tail_s=0.0, bucket_s=0.5)
"""nano was trained on windows that end with the speech; its small encoder recomputes all of them."""
EMBEDDING = "decoder.token_embedding"
POSITIONS = "encoder.positional_embedding"
CTC = "ctc_head"


class Metadata(msgspec.Struct):
    """The JSON in a file's header; see `Checkpoint`."""

    dims: ModelDims
    token_ids: tuple[int, ...]
    name: str | None = None
    alignment_heads: tuple[tuple[int, int], ...] | None = None
    languages: tuple[str, ...] | None = None
    ctc_vocab: tuple[str, ...] | None = None
    ctc_blank: int | None = None


def read_compact(path: Path = NANO_ASSET) -> Checkpoint:
    """Read a compact file; embeddings are expanded to the whole vocabulary. Raises: CheckpointError."""
    source = str(path)
    metadata, tensors = _load(path)
    dims, tokens = metadata.dims, metadata.token_ids
    check_dims(dims, source)
    tensors[f"{EMBEDDING}.weight"] = _spread(tensors, tokens, dims, source)
    tensors[POSITIONS] = sinusoids(dims.n_audio_ctx, dims.n_audio_state)
    checkpoint = Checkpoint(
        name=metadata.name or path.stem,
        dims=dims,
        ctc_head=_ctc_weights(metadata, tensors, source),
        tensors=tensors,
        alignment_heads=metadata.alignment_heads,
        trained_tokens=tokens,
        languages=metadata.languages,
        tail_s=0.0,
        encoder_mode=ENCODER_MODE,
    )
    return validated(checkpoint, source)


def compact_languages() -> tuple[str, ...] | None:
    """Read the trained languages from the bundled file's header; None: all of the vocabulary."""
    return _load(NANO_ASSET)[0].languages


CODEC = Codec(read_compact)


def save_compact(checkpoint: Checkpoint, path: Path) -> None:
    """Write the compact form; rows outside `trained_tokens` are stored as one.

    Raises: CheckpointError without `trained_tokens`.
    """
    tokens = checkpoint.trained_tokens
    if tokens is None:
        raise CheckpointError(f"{checkpoint.name}: trained_tokens is unknown, the compact form needs it")
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name != POSITIONS}
    table = tensors.pop(f"{EMBEDDING}.weight")
    unused = sorted(set(range(table.shape[0])) - set(tokens))
    tensors[f"{EMBEDDING}.rows"] = table[list(tokens)]
    tensors[f"{EMBEDDING}.unused"] = table[unused[0]] if unused else np.zeros_like(table[0])
    metadata: dict[str, object] = {
        "name": checkpoint.name,
        "dims": asdict(checkpoint.dims),
        "alignment_heads": checkpoint.alignment_heads,
        "languages": checkpoint.languages,
        "token_ids": tokens,
    }
    if checkpoint.ctc_head is not None:
        if checkpoint.ctc_head.convolutions:
            raise CheckpointError(f"{checkpoint.name}: the compact form keeps linear CTC heads alone")
        metadata |= {"ctc_vocab": checkpoint.ctc_head.labels, "ctc_blank": checkpoint.ctc_head.blank}
        tensors |= {f"{CTC}.weight": checkpoint.ctc_head.weight, f"{CTC}.bias": checkpoint.ctc_head.bias}
    halves = {name: with_dtype(tensor, DTYPES["float16"]) for name, tensor in tensors.items()}
    write_safetensors(path, halves, {KEY: json.dumps(metadata)})


def _load(path: Path) -> tuple[Metadata, dict[str, Array]]:
    in_header, tensors = read_safetensors(path)
    metadata = in_header.get(KEY)
    if metadata is None:
        raise CheckpointError(f"{path}: safetensors without dimensions, give the folder with its config.json")
    return from_json(Metadata, metadata, str(path), CheckpointError), tensors


def _spread(tensors: dict[str, Array], tokens: tuple[int, ...], dims: ModelDims, source: str) -> Array:
    rows = tensors.pop(f"{EMBEDDING}.rows", None)
    unused = tensors.pop(f"{EMBEDDING}.unused", None)
    expected = (len(tokens), dims.n_text_state)
    if rows is None or tuple(rows.shape) != expected:
        shape = None if rows is None else tuple(rows.shape)
        raise CheckpointError(f"{source}: tensor {EMBEDDING}.rows has shape {shape}, expected {expected}")
    if unused is None or tuple(unused.shape) != expected[1:]:
        shape = None if unused is None else tuple(unused.shape)
        raise CheckpointError(
            f"{source}: tensor {EMBEDDING}.unused has shape {shape}, expected {expected[1:]}"
        )
    if len(set(tokens)) != len(tokens) or not all(0 <= token < dims.n_vocab for token in tokens):
        raise CheckpointError(f"{source}: token_ids repeat or leave the vocabulary of {dims.n_vocab}")
    table = np.repeat(unused[None], dims.n_vocab, axis=0)
    table[list(tokens)] = with_dtype(rows, table.dtype)
    return table


def _ctc_weights(metadata: Metadata, tensors: dict[str, Array], source: str) -> CtcWeights | None:
    weight = tensors.pop(f"{CTC}.weight", None)
    bias = tensors.pop(f"{CTC}.bias", None)
    if weight is None or bias is None or metadata.ctc_vocab is None:
        return None
    if metadata.ctc_blank is None:
        raise CheckpointError(f"{source}: expected a field ctc_blank beside ctc_vocab, got none")
    return CtcWeights(weight=weight, bias=bias, labels=metadata.ctc_vocab, blank=metadata.ctc_blank)
