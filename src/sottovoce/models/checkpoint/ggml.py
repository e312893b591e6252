"""whisper.cpp's ggml files: header, mel filters, vocabulary, then tensors to the end of the file.

Layout: whisper.cpp, `models/convert-pt-to-ggml.py` and `examples/common-ggml.cpp`; little-endian
throughout. Tensor names are OpenAI's. The filters and the vocabulary inside are passed over: the first
follow from n_mels, and the second loses bytes. How blocks are laid out is in `ggml_blocks`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import Checkpoint, Shape, check_dims, expected_shapes, validated
from sottovoce.models.checkpoint.cursor import Cursor, cursor_over
from sottovoce.models.checkpoint.ggml_blocks import BY_FTYPE, BY_TTYPE, BlockType, dequantize
from sottovoce.models.dims import ModelDims

MAGIC = struct.pack("<I", 0x67676D6C)
VERSION_FACTOR = 1000
"""A quantised file's ftype is the format's number plus this many times a version."""
MAX_DIMS = 3
COLUMN_BIASES = ("encoder.conv1.bias", "encoder.conv2.bias")
"""Stored as a column (n, 1)."""
HEADER = (
    "n_vocab",
    "n_audio_ctx",
    "n_audio_state",
    "n_audio_head",
    "n_audio_layer",
    "n_text_ctx",
    "n_text_state",
    "n_text_head",
    "n_text_layer",
    "n_mels",
)


def read_ggml(path: Path) -> Checkpoint:
    """Read a ggml file of any number format in `ggml_blocks`; quantised weights come as float32.

    Raises: CheckpointError naming the tensor or part at which the file is wrong.
    """
    source = str(path)
    with cursor_over(path, source) as cursor:
        dims, numbers = _read_header(cursor)
        _skip_filters(cursor, dims)
        _skip_vocabulary(cursor, dims)
        tensors = _read_tensors(cursor, dims)
    checkpoint = Checkpoint(path.stem, dims=dims, tensors=tensors, kind="ggml", numbers=numbers)
    return validated(checkpoint, source)


def _read_header(cursor: Cursor) -> tuple[ModelDims, str]:
    """Dimensions, and the number format of the matrices."""
    if cursor.take(4, "the magic number") != MAGIC:
        raise CheckpointError(f"{cursor.source}: not a ggml file, expected it to begin with {MAGIC!r}")
    numbers = dict(zip(HEADER, cursor.integers(len(HEADER), "the header"), strict=True))
    dims = ModelDims(**numbers)
    check_dims(dims, cursor.source)
    ftype = cursor.integer("the header")
    kind = BY_FTYPE.get(ftype % VERSION_FACTOR)
    if kind is None:
        raise CheckpointError(
            f"{cursor.source}: unknown number format {ftype}, expected {_names(BY_FTYPE.values())}"
        )
    return dims, kind.name


def _skip_filters(cursor: Cursor, dims: ModelDims) -> None:
    n_mels, n_fft = cursor.integers(2, "the mel filters")
    if n_mels != dims.n_mels or n_fft < 1:
        raise CheckpointError(
            f"{cursor.source}: mel filters are {n_mels} x {n_fft}, the header says {dims.n_mels} mel bands"
        )
    cursor.skip(4 * n_mels * n_fft, "the mel filters")


def _skip_vocabulary(cursor: Cursor, dims: ModelDims) -> None:
    for _ in range(cursor.size("the number of vocabulary entries", dims.n_vocab)):
        cursor.skip(cursor.size("the length of a vocabulary entry", cursor.n_left), "the vocabulary")


def _read_tensors(cursor: Cursor, dims: ModelDims) -> dict[str, Tensor]:
    shapes = expected_shapes(dims)
    if not cursor.n_left:
        raise CheckpointError(
            f"{cursor.source}: no tensors after the vocabulary, expected {len(shapes)}; "
            "a file made for whisper.cpp's tests holds no model"
        )
    tensors: dict[str, Tensor] = {}
    while cursor.n_left:
        name, tensor = _read_tensor(cursor, shapes)
        if name in tensors:
            raise CheckpointError(f"{cursor.source}: tensor {name} comes twice")
        tensors[name] = tensor
    return tensors


def _read_tensor(cursor: Cursor, shapes: dict[str, Shape]) -> tuple[str, Tensor]:
    n_dims, n_name, ttype = cursor.integers(3, "a tensor's header")
    if not 1 <= n_dims <= MAX_DIMS:
        raise CheckpointError(f"{cursor.source}: a tensor has {n_dims} dimensions, expected 1 to {MAX_DIMS}")
    stored = cursor.integers(n_dims, "a tensor's header")[::-1]
    if not 0 < n_name <= cursor.n_left:
        raise CheckpointError(
            f"{cursor.source}: a tensor's name has {n_name} bytes, {cursor.n_left} are left"
        )
    name = cursor.text(n_name, "a tensor's name")
    expected = shapes.get(name)
    shape = stored[:1] if name in COLUMN_BIASES and stored[1:] == (1,) else stored
    if shape != expected:
        wanted = "no such tensor" if expected is None else str(expected)
        raise CheckpointError(f"{cursor.source}: tensor {name[:80]} has shape {shape}, expected {wanted}")
    if ttype not in BY_TTYPE:
        raise CheckpointError(
            f"{cursor.source}: tensor {name} has the unknown number format {ttype}, "
            f"expected {_names(BY_TTYPE.values())}"
        )
    return name, _decoded(cursor, name, shape, BY_TTYPE[ttype])


def _decoded(cursor: Cursor, name: str, shape: Shape, kind: BlockType) -> Tensor:
    if shape[-1] % kind.n_elements:
        raise CheckpointError(
            f"{cursor.source}: tensor {name} of shape {shape} cannot be {kind.name}, "
            f"expected rows of a multiple of {kind.n_elements}"
        )
    n_bytes = math.prod(shape) // kind.n_elements * kind.n_bytes
    data = cursor.array(n_bytes, f"tensor {name}")
    if kind.n_elements > 1:
        return torch.from_numpy(dequantize(data, kind)).reshape(shape)
    return torch.from_numpy(data.view("<f2" if kind.name == "f16" else "<f4")).reshape(shape)


def _names(kinds: Iterable[BlockType]) -> str:
    return ", ".join(kind.name for kind in kinds)
