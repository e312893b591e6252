"""N-gram language models of any order, batched: ARPA files, KenLM tries, and tries of packed bits. Scores
equal KenLM's.

An ARPA file or KenLM trie becomes a trie (`lm.trie`) that is cached in `ngrams`, next to the fetched models,
and mapped into memory. An entry is valid while the file's path, size and modification time match; any error
falls back to parsing. Entries of deleted files are removed when another one is written.

Small tries are unpacked into tensors (`lm.automata.BackoffTable`): 20 bytes per n-gram of the highest order,
32 per lower one, and 4 per (node, token) pair of a dense table.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.arpa import NgramTable, read_arpa
from sottovoce.lm.automata import BackoffTable
from sottovoce.lm.base import Automaton, WordIds
from sottovoce.lm.kenlm import is_kenlm_binary, read_kenlm_trie
from sottovoce.lm.trie import Trie, build_trie, is_trie, open_trie, trie_of, write_trie
from sottovoce.models.sources.package_index import cache_root

logger = logging.getLogger(__name__)

LEAST_BYTES = 2**18
"""Smaller files are parsed in some hundredths of a second."""
UNPACKED_NGRAMS = 2**22
"""Tries of up to this many n-grams are unpacked into tensors; all are without the native kernels, and on a
device.
"""


def ngram_folder() -> Path:
    return cache_root() / "ngrams"


def _entry(path: Path) -> Path:
    name = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return ngram_folder() / f"{name[:32]}.trie"


def _source(path: Path) -> dict[str, str]:
    status = path.stat()
    return {
        "path": str(path.resolve()),
        "bytes": str(status.st_size),
        "changed_ns": str(status.st_mtime_ns),
    }


def _cached(path: Path) -> Trie | None:
    try:
        trie, about = open_trie(_entry(path))
        return trie if _source(path).items() <= about.items() else None
    except (OSError, LanguageModelError) as error:
        logger.debug("%s: not from the cache (%s)", path, error)
        return None


def _remove_orphans() -> None:
    for entry in ngram_folder().glob("*"):
        with suppress(OSError, SafetensorError):
            with safe_open(entry, framework="pt") as opened:
                source = (opened.metadata() or {}).get("path", "")
            if entry.suffix != ".trie" or not Path(source).exists():
                entry.unlink()


class NgramModel(WordIds):
    """A back-off n-gram model; its tokens are the words of its vocabulary.

    States are (N,) int64: the node of the longest known context. Words are looked up in any Unicode form;
    callers fold case. Unknown words get the id of <unk>.
    """

    def __init__(self, trie: Trie) -> None:
        self.trie = trie
        self.order = trie.order
        self.unknown = trie.unknown
        self._begin = trie.begin + 1 if trie.records else 0
        self._device = torch.device("cpu")

    @classmethod
    def load(cls, path: str | Path) -> NgramModel:
        """Load a trie, an ARPA file (.gz too) or a KenLM trie.

        Raises:
            LanguageModelError: the file cannot be read.
        """
        path = Path(path)
        if is_trie(path):
            return cls(open_trie(path)[0])
        return cls._converted(path, read_kenlm_trie) if is_kenlm_binary(path) else cls.from_arpa(path)

    @classmethod
    def from_arpa(cls, path: str | Path) -> NgramModel:
        """Read an ARPA file, plain or .gz.

        Raises:
            LanguageModelError: as `read_arpa`.
        """
        return cls._converted(Path(path), read_arpa)

    @classmethod
    def _converted(cls, path: Path, read: Callable[[Path], NgramTable]) -> NgramModel:
        cached = _cached(path)
        if cached is not None:
            return cls(cached)
        table = read(path)
        try:
            arrays, about = build_trie(table)
        except LanguageModelError as error:
            raise LanguageModelError(f"{path}: {error}") from error
        if path.stat().st_size >= LEAST_BYTES:
            try:
                ngram_folder().mkdir(parents=True, exist_ok=True)
                _remove_orphans()
                write_trie(_entry(path), arrays, about | _source(path))
            except OSError as error:
                logger.debug("%s: not put into the cache (%s)", path, error)
        return cls(trie_of({name: torch.from_numpy(array) for name, array in arrays.items()}, about))

    @cached_property
    def vocabulary(self) -> Mapping[str, int]:
        words = self.trie.words()
        return dict(zip(words, range(len(words)), strict=True)) | {"<unk>": self.unknown}

    @property
    def n_tokens(self) -> int:
        return self.trie.n_tokens

    def to(self, device: torch.device) -> NgramModel:
        if device.type == "cpu":
            return self
        moved = copy(self)
        moved._device, moved.__dict__["_lookups"] = device, self.trie.table().to(device)
        return moved

    @cached_property
    def _lookups(self) -> BackoffTable | Trie:
        is_large = self.trie.n_ngrams > UNPACKED_NGRAMS
        return self.trie if is_large and self.trie.native is not None else self.trie.table()

    def start(self, n: int) -> Tensor:
        return torch.full((n,), self._begin, device=self._device)

    def null_context(self, n: int) -> Tensor:
        return torch.zeros(n, dtype=torch.int64, device=self._device)

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if tokens is None:
            return self._lookups.row_weights(states), states
        return self._lookups.follow(states, tokens)

    def finish(self, states: Tensor) -> Tensor:
        """Return the log-probability (N,) of </s>; 0 for a model without it."""
        if self.trie.end < 0:
            return torch.zeros(states.shape, device=states.device)
        return self._lookups.follow(states, torch.full_like(states, self.trie.end))[0]

    def automaton(self) -> Automaton:
        """Raises: OptionError: the kernels package is not installed."""
        if self.trie.native is None:
            raise OptionError("the CTC search needs the native kernels (pip install ./kernels)")
        ids = np.arange(self.n_tokens, dtype=np.int64)
        return Automaton(ids, root_weights=self.trie.bounds.numpy(), trie=self.trie.native, owner=self.trie)
