"""Encoder modes that the self-test found: one small file for each set of weights in the cache folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.dims import EncoderMode
from sottovoce.models.sources.package_index import cache_root
from sottovoce.text.files import whole_file

VERSION = 1
"""Of the self-test and of the file; other versions are ignored."""
HASHED = 64
"""Numbers of each tensor that identify the weights."""


def weights_key(checkpoint: Checkpoint) -> str:
    """Return a name for the weights, from their dimensions and the first numbers of every tensor."""
    digest = hashlib.sha256(repr(checkpoint.dims).encode())
    for name, tensor in sorted(checkpoint.tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.reshape(-1)[:HASHED].float().numpy().tobytes())
    return digest.hexdigest()[:32]


def stored_mode(key: str) -> EncoderMode | None:
    """Return the mode stored for weights, or None: without an entry, or with a damaged or older one."""
    try:
        entry = json.loads(_file(key).read_text(encoding="utf-8"))
        if entry["version"] != VERSION:
            return None
        mode = entry["mode"]
        return EncoderMode(**{**mode, "anchors": tuple(mode["anchors"])})
    except (OSError, ValueError, TypeError, LookupError, OptionError):
        return None


def store_mode(key: str, mode: EncoderMode) -> Path:
    """Store the mode of weights; return the file. Raises: OSError."""
    path = _file(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as unfinished:
        unfinished.write_text(json.dumps({"version": VERSION, "mode": asdict(mode)}) + "\n", encoding="utf-8")
    return path


def _file(key: str) -> Path:
    return cache_root() / "encoder-modes" / f"{key}.json"
