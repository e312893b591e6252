"""Read a model by name or path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.open import open_checkpoint
from sottovoce.models.ctc_files import ctc_head_of
from sottovoce.models.heads import known_heads
from sottovoce.models.sources.base import Sources
from sottovoce.models.sources.find import resolve


def load_checkpoint(name_or_path: str | Path, sources: Sources | None = None) -> Checkpoint:
    """Find a model and read it; a local path wins over a name.

    Raises: ModelNotFoundError, CheckpointError, OptionError.
    """
    is_local = Path(name_or_path).expanduser().exists()
    path = resolve(name_or_path, sources)
    checkpoint = open_checkpoint(path)
    name = checkpoint.name if is_local else str(name_or_path)
    heads = checkpoint.alignment_heads or known_heads(name, checkpoint.dims)
    return replace(checkpoint, name=name, alignment_heads=heads, ctc_head=ctc_head_of(checkpoint, path))
