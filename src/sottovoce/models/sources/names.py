"""Names of models and their Hugging Face repositories."""

from __future__ import annotations

import difflib
import os
import re
from types import MappingProxyType

NANO = "nano"
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
"""Hub repositories by name; `large` and `turbo` as in openai-whisper."""
PUBLISHERS = frozenset(
    {
        *("openai", "distil-whisper", "systran", "guillaumekln", "ggerganov", "deepdml", "mobiuslabsgmbh"),
        *("dropbox-dash", "xenova", "onnx-community", "mlx-community", "argmaxinc", "ctranslate2-4you"),
        *("openvino", "zoont", "jkawamoto", "csukuangfj", "istupakov", "groq", "@cf/openai"),
    }
)
FORMAT_PREFIX = re.compile(r"(ggml|faster|openai)[-_]")
FORMAT_SUFFIX = re.compile(
    r"\.(bin|pt|gguf)$|[-_](ct2|ggml|mlx|onnx|ov|float16|fp16|fp32|int8|int4|q\d(_[0-9ksml]+)*|\d-?bit|\d+mb)$"
)
LONGEST_ID = 100
LICENCE = "MIT"
"""Of every named model."""


def default_model(device_type: str) -> str:
    """Return the default model for a device ("cpu", "cuda", "mps")."""
    return "large-v3-turbo" if device_type == "cuda" else "base"


def list_models() -> tuple[str, ...]:
    return (NANO, *REPOSITORIES)


def repository_of(name: str) -> str | None:
    """Return the hub repository of a name or hub id (org/name), or None."""
    return REPOSITORIES.get(name) or (name if name.count("/") == 1 else None)


def published_repository(model_id: str) -> str | None:
    """Return the hub repository of the published weights that any program's id means, or None.

    model_id: such as "base", "Systran/faster-whisper-base", "ggml-base-q5_1.bin".
    """
    if len(model_id) > LONGEST_ID:
        return None
    owner, _, name = model_id.lower().rpartition("/")
    if f"{owner}/{name}" in REPOSITORIES.values():
        return f"{owner}/{name}"
    if owner and owner not in PUBLISHERS:
        return None
    while (shorter := FORMAT_SUFFIX.sub("", FORMAT_PREFIX.sub("", name, count=1))) != name:
        name = shorter
    name = name.replace("whisper-", "")
    stem = name.removesuffix("-en")
    spellings = (name,) if stem == name else (f"{stem}.en", stem)
    return next((REPOSITORIES[spelling] for spelling in spellings if spelling in REPOSITORIES), None)


def looks_like_path(name: str) -> bool:
    beginnings = (".", "~", os.sep)
    return (
        name.startswith(beginnings) or name.count("/") > 1 or name.endswith((".pt", ".bin", ".safetensors"))
    )


def unknown(name: str) -> str:
    close = difflib.get_close_matches(name, list_models(), n=3)
    hint = f"did you mean {' or '.join(close)}" if close else f"expected one of {', '.join(list_models())}"
    return f"{name}: no model of that name; {hint}; a path or a hub id (org/name) works too"
