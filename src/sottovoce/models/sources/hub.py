"""Repositories of the Hugging Face hub, and its cache on disk.

HF_HOME, HF_HUB_CACHE, HF_ENDPOINT and HF_HUB_OFFLINE mean what they mean to huggingface_hub.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from sottovoce.models.sources.base import SourceError

CONNECT_S = 4.0
"""A hub that is there answers in a fraction of it."""
_CONFIGS = ("config.json", "generation_config.json", "preprocessor_config.json")
SAFETENSORS = (*_CONFIGS, "model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
CTRANSLATE2 = (*_CONFIGS, "model.bin", "vocabulary.*", "tokenizer.json")
PICKLES = (*_CONFIGS, "pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")
KINDS = (SAFETENSORS, CTRANSLATE2, PICKLES)
"""Sets of files, the first is taken that a repository has weights of."""
_LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)
"""Errors of this machine's disk, not of the network."""


def cache_folder() -> Path:
    """Return the cache folder of huggingface_hub."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def in_cache(repository: str, *, cache_dir: Path | None = None, revision: str | None = None) -> Path | None:
    """Look up the folder of a repository that is cached in full, without a network; None where it is not."""
    place = (cache_dir or cache_folder()) / f"models--{repository.replace('/', '--')}"
    wanted = revision or "main"
    with suppress(OSError):
        reference = place / "refs" / wanted
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else wanted
        folder = place / "snapshots" / commit
        return folder if is_whole(folder) else None
    return None


def is_whole(folder: Path) -> bool:
    """Tell whether a folder has a configuration and all files of one set of weights."""
    if not (folder / "config.json").is_file():
        return False
    if any((folder / name).is_file() for name in ("model.safetensors", "pytorch_model.bin")):
        return True
    if (folder / "model.bin").is_file():
        return any(folder.glob("vocabulary.*"))
    return any(
        _has_all_shards(folder, folder / f"{name}.index.json")
        for name in ("model.safetensors", "pytorch_model.bin")
    )


def _has_all_shards(folder: Path, index: Path) -> bool:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False
    return bool(names) and all((folder / str(name)).is_file() for name in names)


def fetch(repository: str, *, cache_dir: Path | None = None, revision: str | None = None) -> Path:
    """Fetch a repository's configuration and one set of weights; return its folder. Progress: standard error.

    Raises: SourceError where the hub cannot be reached or has no such weights; OSError when the cache cannot
    be written to.
    """
    if not is_reachable():
        raise SourceError("the hub cannot be reached")
    for patterns in KINDS:
        folder = _snapshot(repository, patterns, cache_dir, revision)
        if is_whole(folder):
            return folder
    raise SourceError(
        f"{repository} has no config.json with safetensors, CTranslate2 or PyTorch weights", has_answered=True
    )


def is_reachable() -> bool:
    """Tell whether the hub answers within a few seconds; tried once a process, never with HF_HUB_OFFLINE."""
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and _answers(constants.ENDPOINT)


@cache
def _answers(endpoint: str) -> bool:
    """Looking up a host's name has no timeout of its own, so a thread does it, and may be left behind."""
    from huggingface_hub import get_session

    answered = threading.Event()

    def request() -> None:
        with suppress(Exception):  # httpx or requests, by version; any answer will do
            get_session().head(endpoint, timeout=CONNECT_S)
            answered.set()

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(CONNECT_S)
    return answered.is_set()


def _snapshot(repository: str, patterns: Sequence[str], cache_dir: Path | None, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(
            snapshot_download(
                repository, allow_patterns=list(patterns), cache_dir=cache_dir, revision=revision
            )
        )
    except GatedRepoError as error:
        reason = f"{repository} is gated, log in with `hf auth login`"
        raise SourceError(reason, has_answered=True) from error
    except RevisionNotFoundError as error:
        raise SourceError(f"{repository} has no revision {revision}", has_answered=True) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise SourceError(f"the hub has no repository {repository}", has_answered=True) from error
    except Exception as error:  # httpx or requests, by version: their errors have no common base
        if isinstance(error, OSError) and error.errno in _LOCAL:
            raise
        raise SourceError(f"the hub cannot be reached ({type(error).__name__})") from error
