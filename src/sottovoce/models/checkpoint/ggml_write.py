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
from sottovoce.models.checkpoint.ggml_blocks import BY_NAME, WRITTEN, BlockType, dequantize, quantize
from sottovoce.models.checkpoint.loss import QuantizationLoss, TensorLoss, tensor_loss
from sottovoce.models.checkpoint.writing import whole_file

QUANT_VERSION = 2
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
    """Write a ggml file; return what quantising cost, None where a weight keeps a number of its own.

    ftype: one of `ggml_blocks.WRITTEN`.
    filters: (n_mels, n_fft) float32, the mel filters. vocabulary: bytes of the text tokens, by id.

    Raises: OptionError for an ftype that cannot be written, or whose blocks the model's rows do not fill.
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


def check_ftype(ftype: str, types: Sequence[str] = WRITTEN) -> None:
    """Check the name of a number format.

    Raises: OptionError for one that is not among `types`.
    """
    if ftype in types:
        return
    elsewhere = f"; {EIGHT_BITS}" if ftype.startswith("int8") else ""
    raise OptionError(f"ggml type '{ftype}': expected one of {', '.join(types)}{elsewhere}")


def check_quantized(ftype: str) -> None:
    """Check that a number format can be written and quantises.

    Raises: OptionError for any other.
    """
    check_ftype(ftype, [name for name in WRITTEN if BY_NAME[name].n_elements > 1])


def _write_header(file: BinaryIO, checkpoint: Checkpoint, kind: BlockType) -> None:
    sizes: list[int] = [getattr(checkpoint.dims, name) for name in HEADER]
    ftype = kind.ftype + (QUANT_VERSION * VERSION_FACTOR if kind.n_elements > 1 else 0)
    file.write(MAGIC + struct.pack(f"<{len(sizes) + 1}i", *sizes, ftype))


def _write_vocabulary(file: BinaryIO, vocabulary: Iterable[bytes]) -> None:
    entries = list(vocabulary)
    file.write(struct.pack("<i", len(entries)))
    for entry in entries:
        file.write(struct.pack("<I", len(entry)) + entry)


def _write_tensor(file: BinaryIO, name: str, tensor: Tensor, kind: BlockType) -> TensorLoss:
    kind = _kind_of(name, tensor, kind)
    shape = (*tensor.shape, 1) if name in COLUMN_BIASES else tuple(tensor.shape)
    encoded = name.encode()
    file.write(struct.pack("<3i", len(shape), len(encoded), kind.ttype))
    file.write(struct.pack(f"<{len(shape)}i", *reversed(shape)) + encoded)
    weights = tensor.float().numpy()
    blocks = quantize(weights, kind)
    file.write(blocks.tobytes())
    if kind.n_elements == 1:
        return TensorLoss(name, tensor.nbytes, blocks.nbytes)
    packed = dequantize(blocks.reshape(-1), kind)
    return tensor_loss(name, weights, packed, bytes_before=tensor.nbytes, bytes_after=blocks.nbytes)


def _kind_of(name: str, tensor: Tensor, kind: BlockType) -> BlockType:
    if tensor.ndim < 2 or name in POSITIONS:
        return BY_NAME["f32"]
    return BY_NAME["f16"] if tensor.ndim == 3 and kind.n_elements > 1 else kind
