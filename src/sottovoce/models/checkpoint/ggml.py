"""Read and write whisper.cpp's ggml files: header, mel filters, vocabulary, tensors.

Tensors have OpenAI's names. Reading skips the filters, which follow from n_mels, and the vocabulary. Vectors,
positions and convolution biases are float32; convolution weights are f16 except in f32 files; only matrices
are quantised, by ggml's Python package `gguf`.

Source: whisper.cpp, `models/convert-pt-to-ggml.py` and `examples/common-ggml.cpp`; ggml, `ggml.h`
(`ggml_type`, `ggml_ftype`). Little-endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from sottovoce.audio.mel import mel_filters
from sottovoce.errors import CheckpointError, OptionError
from sottovoce.models.checkpoint.base import (
    LONG,
    MAX_RANK,
    Array,
    Checkpoint,
    Codec,
    Cursor,
    QuantizationLoss,
    Shape,
    StoredTensor,
    StoredTensors,
    TensorLoss,
    check_dims,
    cursor_over,
    expected_shapes,
    floats,
    tensor_loss,
    validated,
)
from sottovoce.models.checkpoint.formats import GGML_MAGIC
from sottovoce.models.dims import ModelDims
from sottovoce.text.files import whole_file
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Floats

Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class BlockType:
    """One number format. ttype: its number at a tensor and in `gguf`. ftype: in the header. n_elements,
    n_bytes: of a block.
    """

    name: str
    ttype: int
    ftype: int
    n_elements: int
    n_bytes: int


_ALL = (
    BlockType("f32", 0, 0, 1, 4),
    BlockType("f16", 1, 1, 1, 2),
    BlockType("q4_0", 2, 2, 32, 18),
    BlockType("q4_1", 3, 3, 32, 20),
    BlockType("q5_0", 6, 8, 32, 22),
    BlockType("q5_1", 7, 9, 32, 24),
    BlockType("q8_0", 8, 7, 32, 34),
    BlockType("q2_k", 10, 10, 256, 84),
    BlockType("q3_k", 11, 11, 256, 110),
    BlockType("q4_k", 12, 12, 256, 144),
    BlockType("q5_k", 13, 13, 256, 176),
    BlockType("q6_k", 14, 14, 256, 210),
)
BY_NAME = MappingProxyType({kind.name: kind for kind in _ALL})
BY_TTYPE = MappingProxyType({kind.ttype: kind for kind in _ALL})
BY_FTYPE = MappingProxyType({kind.ftype: kind for kind in _ALL})

WRITTEN = ("f32", "f16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0")


def dequantize(data: Bytes, kind: BlockType) -> Floats:
    """Return weights (n,) float32 of blocks (n_bytes,) uint8."""
    from gguf import GGMLQuantizationType, quants  # takes 0.2 s, for ggml files only

    weights: Floats = quants.dequantize(data, GGMLQuantizationType(kind.ttype))
    return weights


def quantize(weights: Floats, kind: BlockType) -> Bytes:
    """Quantise weights (..., n), n a multiple of the block size, to (n_bytes,) uint8. kind: one of
    `WRITTEN`.
    """
    from gguf import GGMLQuantizationType, quants

    blocks: Bytes = quants.quantize(weights, GGMLQuantizationType(kind.ttype)).view(np.uint8)
    return blocks


VERSION_FACTOR = 1000
"""A quantised file's ftype is the format's number plus this times a version."""
COLUMN_BIASES = ("encoder.conv1.bias", "encoder.conv2.bias")
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
    """Read a ggml file; quantised weights become float32. Raises: CheckpointError naming the tensor
    or part.
    """
    source = str(path)
    cursor = cursor_over(path)
    dims, numbers = _read_header(cursor)
    _skip_filters(cursor, dims)
    _skip_vocabulary(cursor, dims)
    tensors = StoredTensors(_read_tensors(cursor, dims))
    checkpoint = Checkpoint(path.stem, dims=dims, tensors=tensors, numbers=numbers)
    return validated(checkpoint, source)


def _read_header(cursor: Cursor) -> tuple[ModelDims, str]:
    if cursor.take(4, "the magic number") != GGML_MAGIC:
        raise CheckpointError(f"{cursor.source}: not a ggml file, expected it to begin with {GGML_MAGIC!r}")
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


def _read_tensors(cursor: Cursor, dims: ModelDims) -> dict[str, StoredTensor]:
    shapes = expected_shapes(dims)
    if not cursor.n_left:
        raise CheckpointError(
            f"{cursor.source}: no tensors after the vocabulary, expected {len(shapes)}; "
            "a file made for whisper.cpp's tests holds no model"
        )
    tensors: dict[str, StoredTensor] = {}
    while cursor.n_left:
        name, tensor = _read_tensor(cursor, shapes)
        if name in tensors:
            raise CheckpointError(f"{cursor.source}: tensor {name} comes twice")
        tensors[name] = tensor
    return tensors


def _read_tensor(cursor: Cursor, shapes: dict[str, Shape]) -> tuple[str, StoredTensor]:
    n_dims, n_name, ttype = cursor.integers(3, "a tensor's header")
    if not 1 <= n_dims <= MAX_RANK:
        raise CheckpointError(f"{cursor.source}: a tensor has {n_dims} dimensions, expected 1 to {MAX_RANK}")
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


def _decoded(cursor: Cursor, name: str, shape: Shape, kind: BlockType) -> StoredTensor:
    if shape[-1] % kind.n_elements:
        raise CheckpointError(
            f"{cursor.source}: tensor {name} of shape {shape} cannot be {kind.name}, "
            f"expected rows of a multiple of {kind.n_elements}"
        )
    n_bytes = math.prod(shape) // kind.n_elements * kind.n_bytes
    data = cursor.array(n_bytes, f"tensor {name}")
    if kind.n_elements > 1:
        return StoredTensor(shape, np.dtype("<f4"), lambda: dequantize(data, kind).reshape(shape), data)
    dtype = np.dtype("<f2" if kind.name == "f16" else "<f4")
    return StoredTensor(shape, dtype, lambda: data.view(dtype).reshape(shape), data)


def _names(kinds: Iterable[BlockType]) -> str:
    return ", ".join(kind.name for kind in kinds)


POSITIONS = ("encoder.positional_embedding", "decoder.positional_embedding")
EIGHT_BITS = (
    "eight bits on a processor: --dtype int8 when a model is loaded, "
    "or `sottovoce models convert --to ct2 --type int8`"
)


def save_ggml(
    checkpoint: Checkpoint,
    path: Path,
    ftype: str = "f16",
    *,
    filters: npt.NDArray[np.float32],
    vocabulary: Sequence[bytes],
) -> QuantizationLoss | None:
    """Write a ggml file; return the quantisation loss or None.

    ftype: one of `WRITTEN`. filters: (n_mels, n_fft) float32. vocabulary: bytes of the text tokens, by id.

    Raises: OptionError: the ftype cannot be written, or rows do not fill its blocks.
    """
    check_ftype(ftype)
    kind = BY_NAME[ftype]
    if checkpoint.dims.n_text_state % kind.n_elements:
        raise OptionError(
            f"ggml type {ftype} packs {kind.n_elements} weights a block, "
            f"rows of {checkpoint.dims.n_text_state} do not divide"
        )
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        _write_header(file, checkpoint, kind)
        file.write(struct.pack("<2i", *filters.shape) + filters.astype("<f4").tobytes())
        _write_vocabulary(file, vocabulary)
        losses = [_write_tensor(file, name, tensor, kind) for name, tensor in checkpoint.tensors.items()]
    return QuantizationLoss.of(losses)


def _write(checkpoint: Checkpoint, path: Path, number: str) -> QuantizationLoss | None:
    tokenizer = Tokenizer.for_model(checkpoint.dims.n_vocab)
    vocabulary = [tokenizer.token_bytes(token) for token in range(tokenizer.eot)]
    short = {long: short for short, long in LONG.items()}.get(number, number)
    filters = mel_filters(checkpoint.dims.n_mels)
    return save_ggml(checkpoint, path, short, filters=filters, vocabulary=vocabulary)


CODEC = Codec(read_ggml, _write)


def check_ftype(ftype: str, types: Sequence[str] = WRITTEN) -> None:
    if ftype in types:
        return
    elsewhere = f"; {EIGHT_BITS}" if ftype.startswith("int8") else ""
    raise OptionError(f"ggml type '{ftype}': expected one of {', '.join(types)}{elsewhere}")


def check_quantized(ftype: str) -> None:
    """Raises: OptionError if a number format cannot be written or does not quantise."""
    check_ftype(ftype, [name for name in WRITTEN if BY_NAME[name].n_elements > 1])


def _write_header(file: BinaryIO, checkpoint: Checkpoint, kind: BlockType) -> None:
    sizes: list[int] = [getattr(checkpoint.dims, name) for name in HEADER]
    ftype = kind.ftype + (2 * VERSION_FACTOR if kind.n_elements > 1 else 0)  # GGML_QNT_VERSION is 2
    file.write(GGML_MAGIC + struct.pack(f"<{len(sizes) + 1}i", *sizes, ftype))


def _write_vocabulary(file: BinaryIO, vocabulary: Iterable[bytes]) -> None:
    entries = list(vocabulary)
    file.write(struct.pack("<i", len(entries)))
    for entry in entries:
        file.write(struct.pack("<I", len(entry)) + entry)


def _write_tensor(file: BinaryIO, name: str, tensor: Array, kind: BlockType) -> TensorLoss:
    kind = _kind_of(name, tensor, kind)
    shape = (*tensor.shape, 1) if name in COLUMN_BIASES else tuple(tensor.shape)
    encoded = name.encode()
    file.write(struct.pack("<3i", len(shape), len(encoded), kind.ttype))
    file.write(struct.pack(f"<{len(shape)}i", *reversed(shape)) + encoded)
    weights = floats(tensor)
    blocks = quantize(weights, kind)
    file.write(blocks.tobytes())
    if kind.n_elements == 1:
        return TensorLoss(name, tensor.nbytes, blocks.nbytes)
    packed = dequantize(blocks.reshape(-1), kind)
    return tensor_loss(name, weights, packed, bytes_before=tensor.nbytes, bytes_after=blocks.nbytes)


def _kind_of(name: str, tensor: Array, kind: BlockType) -> BlockType:
    if tensor.ndim < 2 or name in POSITIONS:
        return BY_NAME["f32"]
    return BY_NAME["f16"] if tensor.ndim == 3 and kind.n_elements > 1 else kind
