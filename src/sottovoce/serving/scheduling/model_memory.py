"""How much memory the weights of models take: of one that is loaded, and by its name of one that is not."""

from __future__ import annotations

import re
from typing import Protocol, runtime_checkable

import torch

from sottovoce.api import Model
from sottovoce.models.dims import ModelDims

FLOAT32_BYTES = 4
USUAL_PARAMETERS = (
    (r"nano", 20.4e6),
    (r"distil-small", 166e6),
    (r"distil-medium", 394e6),
    (r"distil-large", 756e6),
    (r"tiny", 39e6),
    (r"base", 74e6),
    (r"small", 244e6),
    (r"medium", 769e6),
    (r"turbo", 809e6),
    (r"large", 1550e6),
)
"""By what a name holds. Source: the model cards of Whisper and distil-whisper."""


@runtime_checkable
class HasNumberFormat(Protocol):
    """A runtime that says in which number format its encoder computes."""

    @property
    def dtype(self) -> torch.dtype: ...


def weight_bytes(model: Model) -> int:
    """Return the bytes of a model's weights, in its encoder's number format (float32 without one)."""
    backend = model.backend
    itemsize = backend.dtype.itemsize if isinstance(backend, HasNumberFormat) else FLOAT32_BYTES
    return n_parameters(backend.dims) * itemsize


def usual_bytes(name: str) -> int:
    """Return the bytes of weights in float32 that a name promises; 0 for one that promises nothing."""
    found = (n for pattern, n in USUAL_PARAMETERS if re.search(pattern, name))
    return round(next(found, 0.0) * FLOAT32_BYTES)


def n_parameters(dims: ModelDims) -> int:
    """Return how many numbers Whisper's network of these dimensions has."""
    audio, text = dims.n_audio_state, dims.n_text_state
    encoder = 3 * dims.n_mels * audio + audio + 3 * audio * audio + audio + dims.n_audio_ctx * audio
    encoder += dims.n_audio_layer * (attention(audio) + feed_forward(audio)) + 2 * audio
    decoder = dims.n_vocab * text + dims.n_text_ctx * text + 2 * text
    decoder += dims.n_text_layer * (2 * attention(text) + feed_forward(text))
    return encoder + decoder


def attention(width: int) -> int:
    """Return how many numbers an attention has: four maps, of keys without a bias, and their norm."""
    return 4 * width * width + 3 * width + 2 * width


def feed_forward(width: int) -> int:
    """Return how many numbers the two maps of a layer have, four times as wide inside, and their norm."""
    return 8 * width * width + 5 * width + 2 * width
