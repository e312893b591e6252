"""Write whisper.cpp's ggml files: the layout that `ggml` reads.

Whisper.cpp expects float32 for vectors, positions and the convolutions' biases, and quantises
matrices only; weights of convolutions are f16 in every format but f32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.ggml import COLUMN_BIASES, HEADER, MAGIC, VERSION_FACTOR
from sottovoce.models.checkpoint.ggml_blocks import BY_NAME, BlockType, quantize
from sottovoce.models.checkpoint.writing import whole_file

QUANT_VERSION = 2
POSITIONS = ("encoder.positional_embedding", "decoder.positional_embedding")


def save_ggml(
    checkpoint: Checkpoint,
    path: Path,
    ftype: str = "f16",
    *,
    filters: npt.NDArray[np.float32],
    vocabulary: Sequence[bytes],
) -> None:
    """Write a ggml file.

    ftype: "f32", "f16", or a quantised format of `ggml_blocks`.
    filters: (n_mels, n_fft) float32, the mel filters. vocabulary: bytes of the text tokens, by id.

    Raises: OptionError for an unknown ftype, or one whose blocks the model's rows do not fill.
    """
    kind = BY_NAME.get(ftype)
    if kind is None:
        raise OptionError(f"ggml type {ftype!r} given, expected one of {', '.join(BY_NAME)}")
    if checkpoint.dims.n_text_state % kind.n_elements:
        raise OptionError(
            f"ggml type {ftype} packs {kind.n_elements} weights a block, "
            f"rows of {checkpoint.dims.n_text_state} do not divide"
        )
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        _write_header(file, checkpoint, kind)
        file.write(struct.pack("<2i", *filters.shape) + filters.astype("<f4").tobytes())
        _write_vocabulary(file, vocabulary)
        for name, tensor in checkpoint.tensors.items():
            _write_tensor(file, name, tensor, kind)


def _write_header(file: BinaryIO, checkpoint: Checkpoint, kind: BlockType) -> None:
    sizes: list[int] = [getattr(checkpoint.dims, name) for name in HEADER]
    ftype = kind.ftype + (QUANT_VERSION * VERSION_FACTOR if kind.n_elements > 1 else 0)
    file.write(MAGIC + struct.pack(f"<{len(sizes) + 1}i", *sizes, ftype))


def _write_vocabulary(file: BinaryIO, vocabulary: Iterable[bytes]) -> None:
    entries = list(vocabulary)
    file.write(struct.pack("<i", len(entries)))
    for entry in entries:
        file.write(struct.pack("<I", len(entry)) + entry)


def _write_tensor(file: BinaryIO, name: str, tensor: Tensor, kind: BlockType) -> None:
    kind = _kind_of(name, tensor, kind)
    shape = (*tensor.shape, 1) if name in COLUMN_BIASES else tuple(tensor.shape)
    encoded = name.encode()
    file.write(struct.pack("<3i", len(shape), len(encoded), kind.ttype))
    file.write(struct.pack(f"<{len(shape)}i", *reversed(shape)) + encoded)
    file.write(quantize(tensor.float().numpy(), kind).tobytes())


def _kind_of(name: str, tensor: Tensor, kind: BlockType) -> BlockType:
    if tensor.ndim < 2 or name in POSITIONS:
        return BY_NAME["f32"]
    return BY_NAME["f16"] if tensor.ndim == 3 and kind.n_elements > 1 else kind
