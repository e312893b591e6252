"""A small random model over Whisper's real vocabulary, and its twin in openai-whisper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sottovoce.models.backend import EncoderOutput
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Features, Floats
from tests.models import tiny

if TYPE_CHECKING:
    from sottovoce.runtime.torch import TorchBackend

N_CTX = 40
"""Encoder frames of the small model's window."""


def backend(*, seed: int = 0, n_text_ctx: int = 64, n_audio_ctx: int = N_CTX) -> TorchBackend:
    dims = tiny.dims(n_vocab=51865, n_text_ctx=n_text_ctx, n_audio_ctx=n_audio_ctx)
    return tiny.backend(dims, seed=seed)


def tokenizer(language: str | None = None) -> Tokenizer:
    return Tokenizer.for_model(51865, language=language)


def mel(n_windows: int, *, seed: int = 0, n_frames: int = 2 * N_CTX) -> Floats:
    """Noise that differs from window to window: (n_windows, 80, n_frames)."""
    return np.random.default_rng(seed).standard_normal((n_windows, 80, n_frames), np.float32)


def encode(model: TorchBackend, mels: Floats) -> EncoderOutput:
    return model.encode(Features(mels, (mels.shape[2],) * len(mels)))
