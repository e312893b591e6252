"""Read a model by name or path, in any format; the format is recognised by content, never by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sottovoce.errors import CheckpointError, cause_of
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.ctranslate2 import MODEL, read_ctranslate2
from sottovoce.models.checkpoint.ctranslate2_file import N_HEAD, is_model_head
from sottovoce.models.checkpoint.ggml import MAGIC, read_ggml
from sottovoce.models.checkpoint.huggingface import has_weights, read_huggingface
from sottovoce.models.checkpoint.openai import read_openai
from sottovoce.models.ctc_files import ctc_head_of
from sottovoce.models.heads import published_heads
from sottovoce.models.nano import is_compact, read_compact
from sottovoce.models.sources.base import Sources
from sottovoce.models.sources.find import local_path, resolve

ZIP = b"PK\x03\x04"
PICKLE = b"\x80\x02"
"""How a `.pt` file of PyTorch before 1.6 begins."""


def load_checkpoint(name_or_path: str | Path, sources: Sources | None = None) -> Checkpoint:
    """Find a model and read it; a local path wins over a name.

    Raises: ModelNotFoundError for a name that no source has, CheckpointError for a file that cannot be read,
    OptionError for contradicting sources.
    """
    is_local = local_path(name_or_path) is not None
    path = resolve(name_or_path, sources)
    checkpoint = open_checkpoint(path)
    name = checkpoint.name if is_local else str(name_or_path)
    heads = checkpoint.alignment_heads or published_heads(name, checkpoint.dims)
    return replace(checkpoint, name=name, alignment_heads=heads, ctc_head=ctc_head_of(checkpoint, path))


def open_checkpoint(path: Path) -> Checkpoint:
    """Read an OpenAI `.pt`, a Hugging Face or CTranslate2 folder, a ggml `.bin` or the compact form of nano.

    Raises: CheckpointError when the file is damaged, of no known kind, or may not be read.
    """
    if path.is_dir():
        is_ctranslate2 = (path / MODEL).exists() and not has_weights(path)
        return read_ctranslate2(path) if is_ctranslate2 else read_huggingface(path)
    head = _first_bytes(path, N_HEAD)
    if is_model_head(head):
        return read_ctranslate2(path)
    if head.startswith(MAGIC):
        return read_ggml(path)
    if head.startswith((ZIP, PICKLE)):
        return read_openai(path)
    if head[8:9] == b"{":
        if is_compact(path):
            return read_compact(path)
        raise CheckpointError(f"{path}: safetensors without dimensions, give the folder with its config.json")
    raise CheckpointError(
        f"{path}: begins with {head[:4]!r}, "
        "expected a PyTorch, safetensors, ggml or CTranslate2 file, or a folder"
    )


def _first_bytes(path: Path, n_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(n_bytes)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({cause_of(error)})") from error
