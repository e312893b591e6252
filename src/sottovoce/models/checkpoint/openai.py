"""OpenAI's `.pt` checkpoints, loaded with `weights_only`, so that a pickle cannot run code."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import (
    Checkpoint,
    Codec,
    as_os_error,
    check_dims,
    plain_dtype,
    validated,
)
from sottovoce.models.dims import ModelDims
from sottovoce.text.files import from_plain, whole_file

OPTIONAL_TENSORS = ("decoder.mask", "alignment_heads")
"""Computed buffers of some exports, dropped."""


def read_openai(path: Path) -> Checkpoint:
    """Read a `.pt` file; tensors stay on disk until used. Raises: CheckpointError."""
    content = load_pickle(path)
    if not isinstance(content, Mapping) or not {"dims", "model_state_dict"} <= set(content):
        raise CheckpointError(f"{path}: no Whisper checkpoint, expected the keys dims and model_state_dict")
    dims = dims_from_mapping(content["dims"], str(path))
    state = content["model_state_dict"]
    if not isinstance(state, Mapping) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise CheckpointError(f"{path}: model_state_dict holds something else than tensors")
    tensors = {name: tensor for name, tensor in state.items() if name not in OPTIONAL_TENSORS}
    return validated(Checkpoint(path.stem, dims=dims, tensors=tensors), str(path))


def save_openai(checkpoint: Checkpoint, path: Path, dtype: torch.dtype = torch.float16) -> None:
    state = {name: tensor.to(dtype) for name, tensor in checkpoint.tensors.items()}
    with whole_file(path) as unfinished, as_os_error():
        torch.save({"dims": asdict(checkpoint.dims), "model_state_dict": state}, unfinished)


def _write(checkpoint: Checkpoint, path: Path, number: str) -> None:
    save_openai(checkpoint, path, plain_dtype(number, "pt"))


CODEC = Codec(read_openai, _write)


def dims_from_mapping(stored: object, source: str) -> ModelDims:
    dims = from_plain(ModelDims, stored, f"{source}: dims", CheckpointError)
    check_dims(dims, source)
    return dims


def load_pickle(path: Path) -> object:
    """Load tensors and plain values that `torch.save` wrote, without running code.

    Tensors stay on disk until used, if possible. Raises: CheckpointError.
    """
    try:
        is_zip = zipfile.is_zipfile(path)
        if is_zip:  # `torch.load` does not compare checksums
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.endswith("/data.pkl"):
                        archive.read(name)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # a damaged pickle can raise any error
        raise CheckpointError(f"{path}: not a readable PyTorch file ({first_line(error)})") from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type; PyTorch's later lines advise to run
    the file.
    """
    text = str(error)
    if isinstance(error, pickle.UnpicklingError):
        text = text.partition("WeightsUnpickler error:")[2].strip() or "it holds more than tensors"
    lines = text.splitlines()
    return lines[0] if lines else type(error).__name__
