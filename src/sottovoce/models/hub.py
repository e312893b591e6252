"""Find a model by name: bundled, on disk, or on the Hugging Face hub and in its cache."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from sottovoce.errors import ModelNotFoundError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.open import open_checkpoint
from sottovoce.models.heads import known_heads
from sottovoce.models.nano import ASSET

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
"""Names to hub repositories; `large` and `turbo` mean what they mean in openai-whisper."""

_CONFIGS = ("config.json", "generation_config.json", "preprocessor_config.json")
SAFETENSORS = (*_CONFIGS, "model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
PICKLES = (*_CONFIGS, "pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")


def list_models() -> tuple[str, ...]:
    """Every name that `load_checkpoint` knows, the bundled one first."""
    return (NANO, *REPOSITORIES)


def load_checkpoint(name_or_path: str | Path) -> Checkpoint:
    """Find a model and read it; a local path wins over a name.

    Raises: ModelNotFoundError, CheckpointError.
    """
    is_local = Path(name_or_path).expanduser().exists()
    checkpoint = open_checkpoint(resolve(name_or_path))
    name = checkpoint.name if is_local else str(name_or_path)
    heads = checkpoint.alignment_heads or known_heads(name, checkpoint.dims)
    return replace(checkpoint, name=name, alignment_heads=heads)


def resolve(name_or_path: str | Path) -> Path:
    """The file or folder of a model, downloaded if it has to be.

    Raises: ModelNotFoundError.
    """
    name = str(name_or_path)
    path = Path(name).expanduser()
    if path.exists():
        return path
    if isinstance(name_or_path, Path) or _looks_like_path(name):
        raise ModelNotFoundError(f"{name}: no such file or folder")
    if name == NANO:
        if not ASSET.exists():
            raise ModelNotFoundError(f"nano: the bundled file {ASSET} is missing, install sottovoce again")
        return ASSET
    if name in REPOSITORIES:
        return fetch(REPOSITORIES[name], shown=name)
    if name.count("/") == 1:
        return fetch(name, shown=name)
    raise ModelNotFoundError(_unknown(name))


def fetch(repository: str, *, shown: str) -> Path:
    """The folder of a hub repository, from the cache or the network; progress goes to standard error.

    Of each repository only the configuration and one set of weights is fetched: safetensors, or
    pickles where there are none. HF_HUB_OFFLINE and HF_HOME mean what they mean to huggingface_hub.

    Raises: ModelNotFoundError.
    """
    folder = _snapshot(repository, SAFETENSORS, shown)
    if not any(folder.glob("model*.safetensors")):
        folder = _snapshot(repository, PICKLES, shown)
    return folder


def _snapshot(repository: str, patterns: Sequence[str], shown: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(repository, allow_patterns=list(patterns)))
    except GatedRepoError as error:
        raise ModelNotFoundError(f"{shown}: {repository} is gated, log in with `hf auth login`") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(f"{shown}: the hub has no repository {repository}") from error
    except OSError as error:
        raise ModelNotFoundError(
            f"{shown}: {repository} is not in the cache and the hub cannot be reached; "
            "use --model nano to try the tool offline"
        ) from error


def _looks_like_path(name: str) -> bool:
    beginnings = (".", "~", os.sep)
    return (
        name.startswith(beginnings) or name.count("/") > 1 or name.endswith((".pt", ".bin", ".safetensors"))
    )


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, list_models(), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(list_models())}"
    return f"{name}: no model of that name, {hint} A path or a hub id (org/name) works too"
