"""Small random models for tests: seeded, and large enough that no head or layer looks like another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import Array, Checkpoint, expected_shapes, sinusoids
from sottovoce.models.dims import ModelDims
from sottovoce.models.load import open_checkpoint

if TYPE_CHECKING:
    import torch

    from sottovoce.runtime.torch import TorchBackend


def dims(**changes: int) -> ModelDims:
    sizes = {
        "n_mels": 80,
        "n_audio_ctx": 40,
        "n_audio_state": 32,
        "n_audio_head": 2,
        "n_audio_layer": 2,
        "n_vocab": 300,
        "n_text_ctx": 24,
        "n_text_state": 32,
        "n_text_head": 4,
        "n_text_layer": 3,
    }
    return ModelDims(**(sizes | changes))


def checkpoint(model_dims: ModelDims | None = None, *, seed: int = 0, name: str = "random") -> Checkpoint:
    """Random weights, scaled so that attention is neither flat nor saturated."""
    model_dims = model_dims or dims()
    generator = np.random.default_rng(seed)
    tensors: dict[str, Array] = {}
    for key, shape in expected_shapes(model_dims).items():
        fan_in = shape[-1] if len(shape) == 2 else shape[1] * shape[2] if len(shape) == 3 else 1
        scale = 1.5 / fan_in**0.5 if len(shape) > 1 else 0.1
        is_norm = key.endswith(("ln.weight", "ln_post.weight"))
        tensors[key] = generator.standard_normal(shape, np.float32) * np.float32(scale) + np.float32(is_norm)
    tensors["encoder.positional_embedding"] = sinusoids(model_dims.n_audio_ctx, model_dims.n_audio_state)
    return Checkpoint(name=name, dims=model_dims, tensors=tensors, alignment_heads=((1, 0), (2, 3)))


def backend(
    model: ModelDims | Checkpoint | None = None,
    *,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    int8: bool = False,
    device: str = "cpu",
) -> TorchBackend:
    """Return PyTorch's backend, or skip the test; dtype: float32 by default."""
    torch = pytest.importorskip("torch")
    from sottovoce.runtime.torch import TorchBackend

    weights = model if isinstance(model, Checkpoint) else checkpoint(model, seed=seed)
    return TorchBackend.from_checkpoint(
        weights, device=torch.device(device), dtype=dtype or torch.float32, int8=int8
    )


def refused(path: Path) -> str:
    """The message of the error of a file or folder: one line that begins with its path."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message
