"""CTC heads in files of their own: bundled ones for published Whispers, and any beside a model's weights.

A head was trained on the states of one encoder and is useless with another, so its file holds a fingerprint
of that encoder. It is taken from small vectors that every format stores exactly, quantised ones too. An
encoder that was trained further without changing these vectors gets the head as well, at some loss of
accuracy. How the head of `base` was made: recipes/ctc_head.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import Checkpoint, Convolution, CtcWeights, check_ctc
from sottovoce.models.checkpoint.writing import whole_file
from sottovoce.models.dims import ModelDims

ASSETS = Path(__file__).parent / "assets"
BUNDLED = MappingProxyType({(6, 512, 51865): "base.ctc.safetensors"})
"""(Encoder layers, width, size of the vocabulary) to the bundled head."""
SUFFIX = ".ctc.safetensors"
METADATA_KEY = "sottovoce-ctc"
FINGERPRINTED = ("encoder.conv1.bias", "encoder.ln_post.weight", "encoder.ln_post.bias")
"""Tensors that the fingerprint is taken of, in half precision."""


@dataclass(frozen=True, slots=True)
class CtcFile:
    """A head, and the fingerprint of the encoder that it was trained on."""

    head: CtcWeights
    encoder: str


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Hash an encoder's vectors `FINGERPRINTED`, each (d,), to 16 hexadecimal digits.

    tensors: OpenAI's names to tensors.
    """
    halves = (tensors[name].detach().to("cpu", torch.float16).contiguous() for name in FINGERPRINTED)
    return hashlib.sha256(b"".join(half.numpy().tobytes() for half in halves)).hexdigest()[:16]


def ctc_head_of(checkpoint: Checkpoint, path: Path) -> CtcWeights | None:
    """Find the head of a checkpoint read from `path`: its own, the one beside it, a bundled one, or None.

    Raises: CheckpointError for a file beside it that is damaged, or of another encoder.
    """
    if checkpoint.ctc_head is not None:
        return checkpoint.ctc_head
    beside = path_beside(path)
    if beside.is_file():
        return _read_for(checkpoint, beside)
    dims = checkpoint.dims
    name = BUNDLED.get((dims.n_audio_layer, dims.n_audio_state, dims.n_vocab))
    if name is None:
        return None
    found = read_ctc_file(ASSETS / name, dims)
    return found.head if found.encoder == fingerprint(checkpoint.tensors) else None


def path_beside(path: Path) -> Path:
    """Return the path at which the head of the weights in this file or folder is looked for."""
    return path / f"model{SUFFIX}" if path.is_dir() else path.with_name(f"{path.stem}{SUFFIX}")


def save_ctc_file(found: CtcFile, path: Path) -> None:
    """Write a head in half precision, whole or not at all."""
    head = found.head
    tensors = {"weight": head.weight, "bias": head.bias}
    for index, layer in enumerate(head.convolutions):
        tensors |= {f"convolutions.{index}.weight": layer.weight, f"convolutions.{index}.bias": layer.bias}
    metadata = {"labels": head.labels, "blank": head.blank, "encoder": found.encoder}
    halves = {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in tensors.items()}
    with whole_file(path) as unfinished:
        save_file(halves, unfinished, metadata={METADATA_KEY: json.dumps(metadata, ensure_ascii=False)})


def read_ctc_file(path: Path, dims: ModelDims) -> CtcFile:
    """Read a head for encoders of these dimensions.

    Raises: CheckpointError for a file that is damaged, or whose shapes do not fit.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get(METADATA_KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        head = _head(metadata, tensors)
        encoder = str(metadata["encoder"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: expected a CTC head of sottovoce, got {error!r}") from error
    check_ctc(head, dims, str(path))
    return CtcFile(head, encoder)


def _read_for(checkpoint: Checkpoint, path: Path) -> CtcWeights:
    found = read_ctc_file(path, checkpoint.dims)
    own = fingerprint(checkpoint.tensors)
    if found.encoder != own:
        raise CheckpointError(f"{path}: this CTC head is of the encoder {found.encoder}, not of {own}")
    return found.head


def _head(metadata: Mapping[str, object], tensors: Mapping[str, Tensor]) -> CtcWeights:
    labels, blank = metadata["labels"], metadata["blank"]
    if not isinstance(labels, list) or type(blank) is not int:
        raise ValueError(f"labels {labels!r} and blank {blank!r}")
    n_layers = sum(name.startswith("convolutions.") for name in tensors) // 2
    names = [f"convolutions.{index}" for index in range(n_layers)]
    layers = [Convolution(tensors[f"{name}.weight"], tensors[f"{name}.bias"]) for name in names]
    return CtcWeights(tensors["weight"], tensors["bias"], tuple(map(str, labels)), blank, tuple(layers))
