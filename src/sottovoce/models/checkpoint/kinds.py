"""The formats of checkpoints by the short names that people give; quick to import."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

KINDS = MappingProxyType(
    {"pt": "OpenAI .pt", "hf": "Hugging Face folder", "ggml": "ggml", "ct2": "CTranslate2 folder"}
)
"""What can be written, and in words."""


def kind_by_name(output: Path) -> str:
    """The kind that a file's ending says; a Hugging Face folder if it has none of the known ones."""
    return {".pt": "pt", ".bin": "ggml", ".ggml": "ggml"}.get(output.suffix, "hf")
