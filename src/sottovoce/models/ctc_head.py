"""CTC heads on Whisper's encoder states: label log-probabilities, 50 frames a second.

Heads are bundled for published models, or stored next to a model's weights. A head only works with its
encoder, so its file holds a fingerprint of small vectors that every format stores exactly. Training:
recipes/ctc_head.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from sottovoce.errors import CheckpointError
from sottovoce.models.backend import EncoderOutput
from sottovoce.models.checkpoint.base import (
    DTYPES,
    Array,
    Checkpoint,
    Convolution,
    CtcWeights,
    check_ctc,
    floats,
    with_dtype,
)
from sottovoce.models.checkpoint.safetensors_file import read_safetensors, write_safetensors
from sottovoce.models.dims import ModelDims
from sottovoce.types import Emissions, Features, Floats


class CtcHead:
    """Optional convolutions, a linear layer and a softmax on encoder states.

    encode: log-mel windows to encoder states, such as `Backend.encode`.
    """

    def __init__(self, weights: CtcWeights, encode: Callable[[Features], EncoderOutput]) -> None:
        self._weight, self._bias = floats(weights.weight), floats(weights.bias)
        self._convolutions = [
            Convolution(floats(layer.weight), floats(layer.bias)) for layer in weights.convolutions
        ]
        self.labels, self.blank = weights.labels, weights.blank
        self._encode = encode

    def emissions(self, features: Features) -> Emissions:
        return self.emissions_of(self._encode(features))

    def emissions_of(self, encoded: EncoderOutput) -> Emissions:
        """Return label log-probabilities (B, n_frames, V) float32 of encoder states, independent of the
        padding.
        """
        states = encoded.states_on_host()
        logits = convolved(states, encoded.n_content_frames, self._convolutions) @ self._weight.T + self._bias
        logits -= logits.max(axis=-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return Emissions(logits, np.array(encoded.n_content_frames, np.int64))


def convolved(states: Floats, lengths: Sequence[int], layers: Sequence[Convolution]) -> Floats:
    """Run states (B, n_frames, d) through convolutions and GELUs; frames from `lengths` (B) on are 0.0."""
    n_frames = states.shape[1]
    is_content = np.arange(n_frames) < np.array(lengths)[:, None]
    for layer in layers:
        width = layer.weight.shape[2]
        padded = np.pad(states * is_content[..., None], ((0, 0), (width // 2, width // 2), (0, 0)))
        states = gelu(
            sum(padded[:, at : at + n_frames] @ floats(layer.weight[:, :, at]).T for at in range(width))
            + floats(layer.bias)
        )
    return states


def gelu(x: Floats) -> Floats:
    """Return x times the standard normal distribution of x, within 2e-7 of it.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26, of the error function.
    """
    z = np.abs(x) * np.float32(math.sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * z)
    sum_of_powers = np.zeros_like(t)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        sum_of_powers = (sum_of_powers + np.float32(coefficient)) * t
    half_tail = 0.5 * sum_of_powers * np.exp(-z * z)
    result: Floats = x * np.where(x > 0, 1 - half_tail, half_tail)
    return result


ASSETS = Path(__file__).parent / "assets"
BUNDLED = MappingProxyType({(6, 512, 51865): "base.ctc.safetensors"})
"""By `ModelDims.size`."""
SUFFIX = ".ctc.safetensors"
METADATA_KEY = "sottovoce-ctc"
FINGERPRINTED = ("encoder.conv1.bias", "encoder.ln_post.weight", "encoder.ln_post.bias")
"""Tensors of the fingerprint, in half precision."""


@dataclass(frozen=True, slots=True)
class CtcFile:
    head: CtcWeights
    encoder: str


def fingerprint(tensors: Mapping[str, Array]) -> str:
    """Hash an encoder's vectors `FINGERPRINTED`, each (d,), to 16 hexadecimal digits."""
    halves = (with_dtype(tensors[name], DTYPES["float16"]) for name in FINGERPRINTED)
    return hashlib.sha256(b"".join(half.tobytes() for half in halves)).hexdigest()[:16]


def ctc_head_of(checkpoint: Checkpoint, path: Path) -> CtcWeights | None:
    """Find the CTC head in the checkpoint, next to `path`, or bundled; None without one.

    Raises: CheckpointError: a damaged file, or one of another encoder.
    """
    if checkpoint.ctc_head is not None:
        return checkpoint.ctc_head
    neighbour = path_beside(path)
    if neighbour.is_file():
        return _read_for(checkpoint, neighbour)
    name = BUNDLED.get(checkpoint.dims.size)
    if name is None:
        return None
    file = read_ctc_file(ASSETS / name, checkpoint.dims)
    return file.head if file.encoder == fingerprint(checkpoint.tensors) else None


def path_beside(path: Path) -> Path:
    return path / f"model{SUFFIX}" if path.is_dir() else path.with_name(f"{path.stem}{SUFFIX}")


def save_ctc_file(file: CtcFile, path: Path) -> None:
    head = file.head
    tensors = {"weight": head.weight, "bias": head.bias}
    for index, layer in enumerate(head.convolutions):
        tensors |= {f"convolutions.{index}.weight": layer.weight, f"convolutions.{index}.bias": layer.bias}
    metadata = {"labels": head.labels, "blank": head.blank, "encoder": file.encoder}
    halves = {name: with_dtype(tensor, DTYPES["float16"]) for name, tensor in tensors.items()}
    write_safetensors(path, halves, {METADATA_KEY: json.dumps(metadata, ensure_ascii=False)})


def read_ctc_file(path: Path, dims: ModelDims) -> CtcFile:
    """Read a head for encoders of these dimensions. Raises: CheckpointError."""
    try:
        in_header, tensors = read_safetensors(path)
        metadata = json.loads(in_header.get(METADATA_KEY, "null"))
        head = _head(metadata, tensors)
        encoder = str(metadata["encoder"])
    except (CheckpointError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: expected a CTC head of sottovoce, got {error!r}") from error
    check_ctc(head, dims, str(path))
    return CtcFile(head, encoder)


def _read_for(checkpoint: Checkpoint, path: Path) -> CtcWeights:
    file = read_ctc_file(path, checkpoint.dims)
    encoder = fingerprint(checkpoint.tensors)
    if file.encoder != encoder:
        raise CheckpointError(f"{path}: this CTC head is of the encoder {file.encoder}, not of {encoder}")
    return file.head


def _head(metadata: Mapping[str, object], tensors: Mapping[str, Array]) -> CtcWeights:
    labels, blank = metadata["labels"], metadata["blank"]
    if not isinstance(labels, list) or type(blank) is not int:
        raise ValueError(f"labels {labels!r} and blank {blank!r}")
    n_layers = sum(name.startswith("convolutions.") for name in tensors) // 2
    names = [f"convolutions.{index}" for index in range(n_layers)]
    layers = [Convolution(tensors[f"{name}.weight"], tensors[f"{name}.bias"]) for name in names]
    return CtcWeights(tensors["weight"], tensors["bias"], tuple(map(str, labels)), blank, tuple(layers))
