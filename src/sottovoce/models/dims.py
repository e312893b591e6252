"""A model's dimensions and alignment heads, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

AlignmentHeads: TypeAlias = tuple[tuple[int, int], ...]
"""(decoder layer, head) pairs."""


@dataclass(frozen=True, slots=True)
class ModelDims:
    """Whisper's dimensions, under the names of OpenAI's checkpoints."""

    n_mels: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_vocab: int
    n_text_ctx: int
    n_text_state: int
    n_text_head: int
    n_text_layer: int

    @property
    def is_multilingual(self) -> bool:
        return self.n_vocab >= 51865

    @property
    def n_languages(self) -> int:
        """99, or 100 with the vocabulary of large-v3; 0 for English-only models."""
        return self.n_vocab - 51766 if self.is_multilingual else 0


def upper_half_heads(dims: ModelDims) -> AlignmentHeads:
    """Return every head of the upper half of the decoder, used when a checkpoint names no alignment heads."""
    layers = range(dims.n_text_layer // 2, dims.n_text_layer)
    return tuple((layer, head) for layer in layers for head in range(dims.n_text_head))
