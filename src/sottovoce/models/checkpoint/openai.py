"""OpenAI's `.pt` checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import Checkpoint, Codec, check_dims, plain_dtype, validated, with_dtype
from sottovoce.models.checkpoint.torch_file import read_torch_file, write_torch_file
from sottovoce.models.dims import ModelDims
from sottovoce.text.files import from_plain

OPTIONAL_TENSORS = ("decoder.mask", "alignment_heads")
"""Computed buffers of some exports, dropped."""


def read_openai(path: Path) -> Checkpoint:
    """Read a `.pt` file; tensors stay on disk until used. Raises: CheckpointError."""
    content = read_torch_file(path)
    if not isinstance(content, Mapping) or not {"dims", "model_state_dict"} <= set(content):
        raise CheckpointError(f"{path}: no Whisper checkpoint, expected the keys dims and model_state_dict")
    dims = dims_from_mapping(content["dims"], str(path))
    state = content["model_state_dict"]
    if not isinstance(state, Mapping) or not all(isinstance(tensor, np.ndarray) for tensor in state.values()):
        raise CheckpointError(f"{path}: model_state_dict holds something else than tensors")
    tensors = {name: tensor for name, tensor in state.items() if name not in OPTIONAL_TENSORS}
    return validated(Checkpoint(path.stem, dims=dims, tensors=tensors), str(path))


def save_openai(checkpoint: Checkpoint, path: Path, dtype: str = "float16") -> None:
    """dtype: float32, float16 or bfloat16."""
    number = plain_dtype(dtype, "pt")
    state = {name: with_dtype(tensor, number) for name, tensor in checkpoint.tensors.items()}
    write_torch_file(path, {"dims": asdict(checkpoint.dims)}, "model_state_dict", state)


CODEC = Codec(read_openai, save_openai)


def dims_from_mapping(stored: object, source: str) -> ModelDims:
    dims = from_plain(ModelDims, stored, f"{source}: dims", CheckpointError)
    check_dims(dims, source)
    return dims
