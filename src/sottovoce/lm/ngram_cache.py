"""Parsed ARPA files in the cache of this machine: read once, mapped into memory from then on.

An entry lies in `ngrams`, beside the fetched models, under a name made from the file's path. It counts while
the file's size and time of change are those that it was made of; it appears whole or not at all, and whatever
is wrong with it, the file is parsed. Entries of files that are gone are removed when another one is written.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sottovoce.lm.table import BackoffTable, KeyTable
from sottovoce.models.checkpoint.writing import as_os_error, whole_file
from sottovoce.models.sources.package_index import cache_root

logger = logging.getLogger(__name__)

LEAST_BYTES = 2**18
"""Smaller files are parsed in a few hundredths of a second."""
_FORMAT = "1"
_TENSORS = ("weights", "targets", "first", "root_weights", "root_targets", "backoff", "parent")


@dataclass(frozen=True, slots=True)
class CachedNgrams:
    """The words of an n-gram model in the order of their ids, its table, and its order."""

    words: list[str]
    table: BackoffTable
    order: int


def ngram_folder() -> Path:
    """Return the folder of parsed n-gram models."""
    return cache_root() / "ngrams"


def read_ngrams(path: Path) -> CachedNgrams | None:
    """Map the entry of an ARPA file; None where there is none that is of this very file."""
    try:
        with safe_open(_entry(path), framework="pt") as entry:
            about = entry.metadata() or {}
            if any(about.get(name) != value for name, value in _source(path).items()):
                return None
            tensors = {name: entry.get_tensor(name) for name in entry.keys()}  # noqa: SIM118  # no mapping
        return _ngrams(tensors, about)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        logger.debug("%s: not from the cache (%s)", path, error)
        return None


def write_ngrams(path: Path, ngrams: CachedNgrams) -> None:
    """Write the entry of an ARPA file; a folder that cannot be written leaves it without one."""
    table = ngrams.table
    words = np.frombuffer("\n".join(ngrams.words).encode(), dtype=np.uint8)
    tensors = {name: getattr(table, name).contiguous() for name in _TENSORS}
    tensors |= {"keys": table.arcs.keys.contiguous(), "words": torch.from_numpy(words.copy())}
    try:
        about = _source(path) | {"levels": str(table.n_levels), "order": str(ngrams.order)}
        ngram_folder().mkdir(parents=True, exist_ok=True)
        _remove_orphans()
        with whole_file(_entry(path)) as unfinished, as_os_error():
            save_file(tensors, unfinished, metadata=about)
    except OSError as error:
        logger.debug("%s: not put into the cache (%s)", path, error)


def _entry(path: Path) -> Path:
    name = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return ngram_folder() / f"{name[:32]}.safetensors"


def _source(path: Path) -> dict[str, str]:
    """What tells a file, and that it is as it was. Raises: OSError."""
    status = path.stat()
    return {
        "format": _FORMAT,
        "path": str(path.resolve()),
        "bytes": str(status.st_size),
        "changed_ns": str(status.st_mtime_ns),
    }


def _ngrams(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> CachedNgrams:
    words = tensors["words"].numpy().tobytes().decode().split("\n")
    n_tokens, n_nodes = len(tensors["root_weights"]), len(tensors["parent"])
    table = BackoffTable(
        arcs=KeyTable.of(tensors["keys"], n_nodes, n_tokens),
        n_levels=int(about["levels"]),
        **{name: tensors[name] for name in _TENSORS},
    )
    return CachedNgrams(words, table, int(about["order"]))


def _remove_orphans() -> None:
    for entry in ngram_folder().glob("*.safetensors"):
        with suppress(OSError, SafetensorError):
            with safe_open(entry, framework="pt") as opened:
                source = (opened.metadata() or {}).get("path", "")
            if not Path(source).exists():
                entry.unlink()
