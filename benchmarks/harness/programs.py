"""The same weights in the other programs: openai-whisper and faster-whisper, for benchmarks and parity.

Needs `make test`'s environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.ctranslate2 import save_ctranslate2
from sottovoce.models.checkpoint.openai import save_openai

if TYPE_CHECKING:
    import faster_whisper
    import whisper


def openai_model(checkpoint: Checkpoint, folder: Path) -> whisper.model.Whisper:
    """openai-whisper's network with these weights, float32 on the CPU."""
    import whisper

    path = folder / f"{checkpoint.name}.pt"
    save_openai(checkpoint, path, torch.float32)
    model = whisper.load_model(str(path), device="cpu").float().eval()
    if checkpoint.alignment_heads:
        mask = torch.zeros(checkpoint.dims.n_text_layer, checkpoint.dims.n_text_head, dtype=torch.bool)
        for layer, head in checkpoint.alignment_heads:
            mask[layer, head] = True
        model.register_buffer("alignment_heads", mask.to_sparse(), persistent=False)
    return model


def faster_model(
    checkpoint: Checkpoint, folder: Path, compute_type: str, threads: int
) -> faster_whisper.WhisperModel:
    """faster-whisper with these weights."""
    from faster_whisper import WhisperModel

    target = folder / "ct2"
    if not target.exists():
        save_ctranslate2(checkpoint, target, "float32")
    return WhisperModel(str(target), device="cpu", compute_type=compute_type, cpu_threads=threads)
