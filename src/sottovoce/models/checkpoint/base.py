"""`Checkpoint`, the result of all readers, its validation, and helpers for files and quantisation loss."""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sottovoce.errors import CheckpointError, OptionError, cause_of
from sottovoce.models.dims import AlignmentHeads, EncoderMode, ModelDims
from sottovoce.text.files import whole_file
from sottovoce.types import Floats

Shape: TypeAlias = tuple[int, ...]
Array: TypeAlias = npt.NDArray[np.generic]

BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""NumPy has no bfloat16: its bits, under its name."""
DTYPES: Mapping[str, np.dtype[np.generic]] = MappingProxyType(
    {"float32": np.dtype("<f4"), "bfloat16": BFLOAT16, "float16": np.dtype("<f2")}
)

LARGEST = {"mels": 1024, "vocab": 1_048_576, "ctx": 65_536, "state": 16_384, "head": 256, "layer": 256}
"""Bounds on header numbers by the end of their names, far above any Whisper, so that a damaged header
allocates nothing.
"""
MAX_RANK = 3
"""Dimensions of a convolution's weights."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """weight (n_out, n_in, odd width), bias (n_out,)."""

    weight: Array
    bias: Array


@dataclass(frozen=True, slots=True)
class CtcWeights:
    """A CTC head: optional convolutions, each followed by a GELU, and a linear layer.

    weight: (n_labels, d). bias: (n_labels,). labels: one per output. blank: index.
    """

    weight: Array
    bias: Array
    labels: tuple[str, ...]
    blank: int
    convolutions: tuple[Convolution, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as read from a file.

    tensors: by OpenAI's names, with the shapes of `dims`. alignment_heads: (layer, head) pairs.
    trained_tokens: ids with trained embeddings; None: all. languages: trained codes; None: all. tail_s:
    seconds of padding after speech in a shortened window; with less than 5 s Whisper's decoder loops, with
    5 s its error rate is that of the full window (docs/streaming.md). encoder_mode: None:
    `default_encoder_mode`. mode_key: of a stored mode. kind: name in `formats.FORMATS`, or "". numbers:
    stored number type, if tensors do not show it.
    """

    name: str
    dims: ModelDims
    tensors: Mapping[str, Array]
    alignment_heads: AlignmentHeads | None = None
    ctc_head: CtcWeights | None = None
    trained_tokens: tuple[int, ...] | None = None
    languages: tuple[str, ...] | None = None
    tail_s: float = 5.0
    encoder_mode: EncoderMode | None = None
    mode_key: str | None = None
    kind: str = ""
    numbers: str = ""


def check_dims(dims: ModelDims, source: str) -> None:
    """Check that every number is plausible. Raises: CheckpointError."""
    for field in fields(dims):
        value, most = getattr(dims, field.name), LARGEST[field.name.rpartition("_")[2]]
        if not 1 <= value <= most:
            raise CheckpointError(f"{source}: {field.name} is {value}, expected 1 to {most}")
    for state, heads in (("n_audio_state", "n_audio_head"), ("n_text_state", "n_text_head")):
        n_state: int = getattr(dims, state)
        n_head: int = getattr(dims, heads)
        if n_state % (2 * n_head):
            raise CheckpointError(f"{source}: {state} {n_state} is not an even multiple of {heads} {n_head}")
    if dims.n_audio_state != dims.n_text_state:
        raise CheckpointError(
            f"{source}: n_audio_state {dims.n_audio_state} differs from n_text_state {dims.n_text_state}"
        )


def expected_shapes(dims: ModelDims) -> dict[str, Shape]:
    """Return the names and shapes of OpenAI's state dict."""
    audio, text = dims.n_audio_state, dims.n_text_state
    shapes: dict[str, Shape] = {
        "encoder.positional_embedding": (dims.n_audio_ctx, audio),
        "encoder.conv1.weight": (audio, dims.n_mels, 3),
        "encoder.conv1.bias": (audio,),
        "encoder.conv2.weight": (audio, audio, 3),
        "encoder.conv2.bias": (audio,),
        **_norm("encoder.ln_post", audio),
        "decoder.token_embedding.weight": (dims.n_vocab, text),
        "decoder.positional_embedding": (dims.n_text_ctx, text),
        **_norm("decoder.ln", text),
    }
    for layer in range(dims.n_audio_layer):
        shapes |= _block(f"encoder.blocks.{layer}", audio)
    for layer in range(dims.n_text_layer):
        prefix = f"decoder.blocks.{layer}"
        shapes |= _block(prefix, text)
        shapes |= _attention(f"{prefix}.cross_attn", text) | _norm(f"{prefix}.cross_attn_ln", text)
    return shapes


def validated(checkpoint: Checkpoint, source: str) -> Checkpoint:
    """Return the checkpoint if tensors, heads and labels fit the dimensions. Raises: CheckpointError."""
    check_dims(checkpoint.dims, source)
    _check_tensors(checkpoint, source)
    _check_heads(checkpoint, source)
    check_ctc(checkpoint.ctc_head, checkpoint.dims, source)
    return replace(checkpoint, alignment_heads=checkpoint.alignment_heads or None)


def _check_tensors(checkpoint: Checkpoint, source: str) -> None:
    shapes = expected_shapes(checkpoint.dims)
    stored = stored_tensors(checkpoint.tensors)
    for name, shape in shapes.items():
        if name not in stored:
            raise CheckpointError(f"{source}: tensor {name} is missing, expected shape {shape}")
        tensor = stored[name]
        if tensor.shape != shape:
            raise CheckpointError(f"{source}: tensor {name} has shape {tensor.shape}, expected {shape}")
        if tensor.dtype.kind != "f" and tensor.dtype != BFLOAT16:
            raise CheckpointError(f"{source}: tensor {name} holds {tensor.dtype}, expected floating point")
    unknown = sorted(set(checkpoint.tensors) - set(shapes))
    if unknown:
        raise CheckpointError(f"{source}: tensor {unknown[0]} belongs to no Whisper of these dimensions")


def _check_heads(checkpoint: Checkpoint, source: str) -> None:
    dims = checkpoint.dims
    for layer, head in checkpoint.alignment_heads or ():
        if not (0 <= layer < dims.n_text_layer and 0 <= head < dims.n_text_head):
            raise CheckpointError(
                f"{source}: alignment head ({layer}, {head}) is outside "
                f"{dims.n_text_layer} layers of {dims.n_text_head} heads"
            )


def check_ctc(head: CtcWeights | None, dims: ModelDims, source: str) -> None:
    if head is None:
        return
    n_in = dims.n_audio_state
    for layer in head.convolutions:
        shape = tuple(layer.weight.shape)
        if len(shape) != 3 or shape[1] != n_in or not shape[2] % 2 or tuple(layer.bias.shape) != shape[:1]:
            raise CheckpointError(
                f"{source}: CTC convolution has shapes {shape} and {tuple(layer.bias.shape)}, "
                f"expected (n, {n_in}, an odd width) and (n,)"
            )
        n_in = shape[0]
    expected = (len(head.labels), n_in)
    if tuple(head.weight.shape) != expected or tuple(head.bias.shape) != expected[:1]:
        raise CheckpointError(
            f"{source}: CTC head has shapes {tuple(head.weight.shape)} and {tuple(head.bias.shape)}, "
            f"expected {expected} and {expected[:1]}"
        )
    if not 0 <= head.blank < len(head.labels):
        raise CheckpointError(f"{source}: CTC blank {head.blank} is outside {len(head.labels)} labels")


def _block(prefix: str, n_state: int) -> dict[str, Shape]:
    return {
        **_attention(f"{prefix}.attn", n_state),
        **_norm(f"{prefix}.attn_ln", n_state),
        f"{prefix}.mlp.0.weight": (4 * n_state, n_state),
        f"{prefix}.mlp.0.bias": (4 * n_state,),
        f"{prefix}.mlp.2.weight": (n_state, 4 * n_state),
        f"{prefix}.mlp.2.bias": (n_state,),
        **_norm(f"{prefix}.mlp_ln", n_state),
    }


def _attention(prefix: str, n_state: int) -> dict[str, Shape]:
    weights = {f"{prefix}.{part}.weight": (n_state, n_state) for part in ("query", "key", "value", "out")}
    biases = {f"{prefix}.{part}.bias": (n_state,) for part in ("query", "value", "out")}
    return {**weights, **biases}


def _norm(prefix: str, n_state: int) -> dict[str, Shape]:
    return {f"{prefix}.weight": (n_state,), f"{prefix}.bias": (n_state,)}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that is decoded when it is read, such as one in blocks of eight bits.

    stored: the values as they are in the file.
    """

    shape: Shape
    dtype: np.dtype[np.generic]
    read: Callable[[], Array]
    stored: Array


class StoredTensors(Mapping[str, Array]):
    """Tensors of a file; each is decoded whenever it is looked up."""

    def __init__(self, stored: Mapping[str, StoredTensor]) -> None:
        self.stored = stored

    def __getitem__(self, name: str) -> Array:
        return self.stored[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


class FileTensors(Mapping[str, Array]):
    """All tensors of a file or folder, as they were read. A mapping made of some of them is another one."""

    def __init__(self, tensors: Mapping[str, Array], path: Path) -> None:
        self.tensors = tensors
        self.path = path

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def stored_tensors(tensors: Mapping[str, Array]) -> Mapping[str, Array | StoredTensor]:
    """Return the shapes and dtypes of tensors, without decoding any."""
    if isinstance(tensors, FileTensors):
        return stored_tensors(tensors.tensors)
    return tensors.stored if isinstance(tensors, StoredTensors) else tensors


def release_pages(tensors: Mapping[str, Array]) -> None:
    """Free the memory of mapped files; it is read from them again when needed.

    Arrays that were written into have their values in the file again. Does nothing where the system cannot.
    """
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    contents = {}
    for tensor in stored_tensors(tensors).values():
        owner: object = tensor.stored if isinstance(tensor, StoredTensor) else tensor
        while isinstance(owner, np.ndarray | memoryview):
            owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
        if isinstance(owner, mmap.mmap):
            contents[id(owner)] = owner
    for content in contents.values():
        content.madvise(mmap.MADV_DONTNEED)


def dtype_name(dtype: np.dtype[np.generic]) -> str:
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def floats(array: Array) -> Floats:
    """Return weights as contiguous, aligned float32 numbers; a view if they are."""
    if array.dtype == BFLOAT16:
        return (np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.require(array, np.float32, ["C", "A"])


def with_dtype(array: Array, dtype: np.dtype[np.generic]) -> Array:
    """Round weights to another floating-point dtype, to the nearest, of two the even one."""
    if array.dtype == dtype:
        return array
    if dtype != BFLOAT16:
        return floats(array).astype(dtype)
    bits = floats(array).view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, bits >> 16 | 0x40, rounded).astype(np.uint16).view(BFLOAT16)


def sinusoids(length: int, channels: int) -> Floats:
    """Compute Whisper's fixed position embedding (length, channels) float32: sines, then cosines.

    Wavelengths are geometric from 2*pi to 10000*2*pi (openai-whisper, model.py).
    """
    n_wave = channels // 2
    rates = np.exp(np.float32(-math.log(10_000) / (n_wave - 1)) * np.arange(n_wave, dtype=np.float32))
    angles = np.arange(length, dtype=np.float32)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


@dataclass(slots=True)
class Cursor:
    """A position in a memory-mapped file; source and part appear in errors.

    Reading raises CheckpointError if the file ends too soon.
    """

    content: mmap.mmap
    source: str
    at: int = 0

    @property
    def n_left(self) -> int:
        return len(self.content) - self.at

    def take(self, n_bytes: int, part: str) -> bytes:
        self.skip(n_bytes, part)
        return self.content[self.at - n_bytes : self.at]

    def text(self, n_bytes: int, part: str) -> str:
        stored = self.take(n_bytes, part)
        name = stored.decode("utf-8", errors="replace")
        if not name.isprintable():
            raise CheckpointError(f"{self.source}: {part} is {stored[:40]!r}, expected printable text")
        return name

    def array(self, n_bytes: int, part: str) -> npt.NDArray[np.uint8]:
        """Return the next bytes as a view of the file, (n_bytes,) uint8; writing changes the view alone."""
        self.skip(n_bytes, part)
        return np.frombuffer(self.content, np.uint8, n_bytes, self.at - n_bytes)

    def skip(self, n_bytes: int, part: str) -> None:
        if n_bytes > self.n_left:
            raise CheckpointError(
                f"{self.source}: ends inside {part}, expected {n_bytes} more bytes, found {self.n_left}"
            )
        self.at += n_bytes

    def integers(self, count: int, part: str, kind: str = "i") -> tuple[int, ...]:
        """kind: a `struct` letter such as "i"."""
        layout = f"<{count}{kind}"
        return struct.unpack(layout, self.take(struct.calcsize(layout), part))

    def integer(self, part: str, kind: str = "i") -> int:
        return self.integers(1, part, kind)[0]

    def size(self, part: str, largest: int) -> int:
        """Read a count. Raises: CheckpointError unless it is in 0..largest."""
        value = self.integer(part)
        if not 0 <= value <= largest:
            raise CheckpointError(f"{self.source}: {part} is {value}, expected 0 to {largest}")
        return value


def map_file(path: Path) -> mmap.mmap:
    """Map a file; what is written into the mapping stays there. Raises: CheckpointError."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({cause_of(error)})") from error


def cursor_over(path: Path) -> Cursor:
    """Map a file and return a cursor at its beginning. Raises: CheckpointError."""
    return Cursor(map_file(path), str(path))


def write_json(path: Path, content: object, *, indent: int | None = 2) -> None:
    """indent: None is faster."""
    with whole_file(path) as unfinished:
        unfinished.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class TensorLoss:
    """Squared weights and errors of one tensor, and its largest error.

    is_packed: quantised in blocks; other tensors count only in bytes.
    """

    name: str
    bytes_before: int
    bytes_after: int
    is_packed: bool = False
    squared: float = 0.0
    squared_error: float = 0.0
    largest_error: float = 0.0

    @property
    def relative_rms(self) -> float:
        return math.sqrt(self.squared_error / self.squared) if self.squared else 0.0


@dataclass(frozen=True, slots=True)
class QuantizationLoss:
    """The loss of quantising a model.

    relative_rms: root of squared errors over squared weights of the quantised tensors. worst: the tensor with
    the largest. bytes_before, bytes_after: of all weights.
    """

    n_tensors: int
    relative_rms: float
    largest_error: float
    worst: str
    worst_relative_rms: float
    bytes_before: int
    bytes_after: int

    @classmethod
    def of(cls, tensors: Sequence[TensorLoss]) -> QuantizationLoss | None:
        """Sum up tensors; None if none is quantised."""
        packed = [each for each in tensors if each.is_packed]
        if not packed:
            return None
        worst = max(packed, key=lambda each: each.relative_rms)
        squared = sum(each.squared for each in packed)
        errors = sum(each.squared_error for each in packed)
        return cls(
            n_tensors=len(packed),
            relative_rms=math.sqrt(errors / squared) if squared else 0.0,
            largest_error=max(each.largest_error for each in packed),
            worst=worst.name,
            worst_relative_rms=worst.relative_rms,
            bytes_before=sum(each.bytes_before for each in tensors),
            bytes_after=sum(each.bytes_after for each in tensors),
        )


@dataclass(frozen=True, slots=True)
class Codec:
    """Reads checkpoints of a format, and writes them if it can be written.

    write: takes checkpoint, path and number type ("float32", "float16", "bfloat16", or one of the format);
    returns the quantisation loss or None.
    """

    read: Callable[[Path], Checkpoint]
    write: Callable[[Checkpoint, Path, str], QuantizationLoss | None] | None = None


LONG = MappingProxyType({"f32": "float32", "f16": "float16", "bf16": "bfloat16"})


def plain_dtype(number: str, name: str) -> np.dtype[np.generic]:
    """Return a floating-point dtype. name: of the format. Raises: OptionError for others."""
    dtype = DTYPES.get(number)
    if dtype is None:
        raise OptionError(
            f"number format '{number}': {name} takes f32, f16 or bf16, quantised ones are for ggml and ct2"
        )
    return dtype


def tensor_loss(
    name: str, weights: Floats, packed: Floats, *, bytes_before: int, bytes_after: int
) -> TensorLoss:
    """Measure the loss of a tensor; weights and packed have the same shape."""
    exact = weights.astype(np.float64)
    errors = packed.reshape(weights.shape) - exact
    return TensorLoss(
        name,
        bytes_before,
        bytes_after,
        is_packed=True,
        squared=float(np.square(exact).sum()),
        squared_error=float(np.square(errors).sum()),
        largest_error=float(np.abs(errors).max()),
    )
