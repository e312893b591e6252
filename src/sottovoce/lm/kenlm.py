"""KenLM binaries through the `kenlm` package (an extra).

KenLM's Python interface scores one word at a time, so every pair of state and word is computed once and
cached in a table that the native search reads without a call. It does not list its words: in a binary they
stand at the end, in the order of their ids, each before a null byte.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import LanguageModelError, MissingExtraError, cause_of
from sottovoce.lm.base import CACHE_ENTRY, END, Automaton, CallbackLm
from sottovoce.text.normalize import composed, decomposed, indexed_by_form

if TYPE_CHECKING:
    import kenlm


_FIRST = b"<unk>\0"
"""How the list begins in every binary."""


def words_of_binary(path: Path) -> tuple[str, ...]:
    """Read the words of a KenLM binary, <unk> first.

    Raises:
        LanguageModelError: the file cannot be read, or was built without its words.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _last_words(content)
    except (OSError, ValueError) as error:
        reason = cause_of(error) if isinstance(error, OSError) else str(error)
        raise LanguageModelError(f"{path}: expected a KenLM binary with its words, got {reason}") from error


def _last_words(content: mmap.mmap) -> tuple[str, ...]:
    """Return the earliest position after which there are only words; raise ValueError without one."""
    found: tuple[str, ...] = ()
    place = content.rfind(_FIRST)
    while place >= 0:
        words = _words(content[place:])
        if words is None:
            break
        found = words
        place = content.rfind(_FIRST, 0, place + len(_FIRST) - 1)
    if not found:
        raise ValueError("one without")
    return found


def _words(tail: bytes) -> tuple[str, ...] | None:
    if not tail.endswith(b"\0") or b"\0\0" in tail:
        return None
    try:
        return tuple(tail[:-1].decode().split("\0"))
    except UnicodeDecodeError:
        return None


_LN10 = math.log(10)
_FREE = 0
_CACHE_SIZE = 2**20
_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_ENTRY, _CELL, _BITS = struct.Struct("=fi"), struct.Struct("=q"), struct.Struct("=i4x")
"""Score and state of a table entry; the same as one number; the bits of the score alone."""
_MAGIC = b"mmap lm http://kheafield.com/code"


def is_kenlm_binary(path: Path) -> bool:
    """Return whether a file begins as KenLM's binaries do.

    Raises:
        LanguageModelError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise LanguageModelError(f"{path}: expected a language model, got {cause_of(error)}") from error


class KenlmModel:
    """A KenLM model over words; a word's id is its index among the words looked up so far.

    States are (N,) int64 indices of KenLM's own states, which live as long as the model.

    Raises:
        MissingExtraError: without `kenlm`.
        LanguageModelError: the file cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            import kenlm
        except ImportError as error:
            raise MissingExtraError("kenlm", "kenlm", f"the KenLM binary {path}") from error
        try:
            self._model = kenlm.Model(str(path))
        except (OSError, RuntimeError) as error:
            reason = str(error).splitlines()[-1] if str(error) else "unknown"
            raise LanguageModelError(f"{path}: expected a KenLM model, got {reason}") from error
        self._path = Path(path)
        self._state = kenlm.State
        first = kenlm.State()
        self._model.BeginSentenceWrite(first)
        self._states: list[kenlm.State] = [first]
        self._after: dict[tuple[int, int], tuple[float, int]] = {}
        self._words: list[str] = []
        self._ids: dict[str, int] = {}
        self._indices: dict[kenlm.State, int] = {first: 0}
        self._cache = np.zeros(_CACHE_SIZE, CACHE_ENTRY)  # pages that are never touched take no memory
        self._cells = self._cache.view(np.int64).data
        """The cache as numbers: of each entry the key, and all else as one."""
        self._base_score = self._model.BaseScore
        self._lock = Lock()
        """Threads call at any time: a state gets one index, a cache position one entry."""
        self.n_cached = 0
        """Pairs of state and word in the cache."""
        self._callback = _CALL(self._answer)  # kept alive here, as native code only has its address

    @property
    def n_tokens(self) -> int:
        return len(self._words)

    @cached_property
    def vocabulary(self) -> tuple[str, ...] | None:
        """The words of a binary, <unk> first; None for an ARPA file, which `NgramModel` reads.

        Raises:
            LanguageModelError: a binary built without its words.
        """
        return words_of_binary(self._path) if is_kenlm_binary(self._path) else None

    def __contains__(self, word: str) -> bool:
        return self._own_form(word) in self._model

    def ids(self, words: Sequence[str]) -> list[int]:
        """Return ids of words, in any Unicode form; words outside KenLM's vocabulary score as its <unk>."""
        for word in words:
            if word not in self._ids:
                self._ids[word] = len(self._words)
                self._words.append(self._own_form(word))
        return [self._ids[word] for word in words]

    @cached_property
    def _by_form(self) -> Mapping[str, str]:
        try:
            return indexed_by_form(self.vocabulary or ())
        except LanguageModelError:  # a binary without its words
            return {}

    def _own_form(self, word: str) -> str:
        if word.isascii() or word in self._model:
            return word
        normal = composed(word)
        forms = (self._by_form.get(normal, normal), normal, decomposed(word))
        return next((form for form in forms if form in self._model), word)

    def to(self, device: torch.device) -> KenlmModel:
        """Return the model itself: KenLM runs on the CPU."""
        return self

    def start(self, n: int) -> Tensor:
        return torch.zeros(n, dtype=torch.int64)

    def null_context(self, n: int) -> Tensor:
        empty = self._state()
        self._model.NullContextWrite(empty)
        with self._lock:
            return torch.full((n,), self._index_of(empty))

    def score(self, states: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if tokens is None:
            every = range(len(self._words))
            rows = [[self._follow(state, word)[0] for word in every] for state in states.tolist()]
            return torch.tensor(rows, device=states.device).view(len(states), len(self._words)), states
        found = [self._follow(*pair) for pair in zip(states.tolist(), tokens.tolist(), strict=True)]
        scores = torch.tensor([score for score, _ in found], device=states.device)
        return scores, torch.tensor([after for _, after in found], dtype=torch.int64, device=states.device)

    def finish(self, states: Tensor) -> Tensor:
        scores = []
        for state in states.tolist():
            score = self._model.BaseScore(self._states[state], "</s>", self._state())
            scores.append(score * _LN10)
        return torch.tensor(scores, device=states.device)

    def automaton(self) -> Automaton:
        """Return the model as a `CallbackLm`; no word scores above 0."""
        n_words = len(self._words)
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        assert address is not None
        return Automaton(
            ids=np.arange(n_words, dtype=np.int64),
            root_weights=np.zeros(n_words, np.float32),
            callback=CallbackLm(self._cache, address),
        )

    def forget(self) -> None:
        """Clear the caches; states stay."""
        self._cache["key"] = _FREE
        self.n_cached = 0
        self._after.clear()

    def _answer(self, state: int, word: int, place: int) -> int:
        """Execute a call of native code; see `lm.base.CallbackLm`."""
        with self._lock:
            score, index = self._compute(state, "</s>" if word == END else self._words[word])
            entry = _ENTRY.pack(score, index)
            if self.n_cached < _CACHE_SIZE // 2:
                self._keep(((state + 1) << 32) | (word + 1), place, _CELL.unpack(entry)[0])
        bits: int = _BITS.unpack(entry)[0]
        return (bits << 32) | index

    def _keep(self, key: int, place: int, entry: int) -> None:
        """Write to the cache. The entry is complete before its key is: others read without a lock."""
        cells = self._cells
        while cells[2 * place] not in (_FREE, key):  # another thread added entries while this one waited
            place = (place + 1) & (_CACHE_SIZE - 1)
        if cells[2 * place] == _FREE:
            self.n_cached += 1
            cells[2 * place + 1] = entry
            cells[2 * place] = key

    def _follow(self, state: int, word: int) -> tuple[float, int]:
        key = (state, word)
        if key not in self._after:
            with self._lock:
                self._after[key] = self._compute(state, self._words[word])
        return self._after[key]

    def _compute(self, state: int, word: str) -> tuple[float, int]:
        after = self._state()
        score = self._base_score(self._states[state], word, after) * _LN10
        return score, self._index_of(after)

    def _index_of(self, state: kenlm.State) -> int:
        n_states = len(self._states)
        index = self._indices.setdefault(state, n_states)
        if index == n_states:
            self._states.append(state)
        return index
