"""The names of models, and what each means on the Hugging Face hub."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from types import MappingProxyType

NANO = "nano"
NANO_ASSET = Path(__file__).parents[1] / "assets" / "nano.safetensors"
_OPENAI = (
    *("tiny", "tiny.en", "base", "base.en", "small", "small.en", "medium", "medium.en"),
    *("large-v2", "large-v3", "large-v3-turbo"),
)
_DISTIL = ("small.en", "medium.en", "large-v2", "large-v3", "large-v3.5")
REPOSITORIES = MappingProxyType(
    {
        **{name: f"openai/whisper-{name}" for name in _OPENAI},
        "large-v1": "openai/whisper-large",
        "large": "openai/whisper-large-v3",
        "turbo": "openai/whisper-large-v3-turbo",
        **{f"distil-{name}": f"distil-whisper/distil-{name}" for name in _DISTIL},
    }
)
"""Names to hub repositories; `large` and `turbo` mean what they mean in openai-whisper."""
LICENCE = "MIT"
"""Of every named model: nano's is this project's, OpenAI's and distil-whisper's are their authors'."""


def default_model(device_type: str) -> str:
    """Choose the model for real work on a device ("cpu", "cuda", "mps") when none is named."""
    return "large-v3-turbo" if device_type == "cuda" else "base"


def list_models() -> tuple[str, ...]:
    """List every named model, the bundled one first."""
    return (NANO, *REPOSITORIES)


def repository_of(name: str) -> str | None:
    """Look up the hub repository of a name or hub id (org/name); None for another text."""
    return REPOSITORIES.get(name) or (name if name.count("/") == 1 else None)


def looks_like_path(name: str) -> bool:
    """Tell whether a name can only be that of a file or folder."""
    beginnings = (".", "~", os.sep)
    return (
        name.startswith(beginnings) or name.count("/") > 1 or name.endswith((".pt", ".bin", ".safetensors"))
    )


def unknown(name: str) -> str:
    """Write the message about a name that no model has."""
    close = difflib.get_close_matches(name, list_models(), n=3)
    hint = f"did you mean {' or '.join(close)}" if close else f"expected one of {', '.join(list_models())}"
    return f"{name}: no model of that name; {hint}; a path or a hub id (org/name) works too"
