"""Any Hugging Face causal language model in a search, over words.

Needs the extra `neural-lm`. Word histories form a tree (`lm.causal_tree`), so that every piece of text is run
once for all beams and utterances; a word of one piece is then a look-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Protocol

import torch

from sottovoce.errors import LanguageModelError, MissingExtraError
from sottovoce.lm.base import BLOCK_WORDS
from sottovoce.lm.causal_tree import CausalTree, Node, NodeExtension
from sottovoce.lm.neural import History


class PieceTokenizer(Protocol):
    """The part of a tokenizer that is used; those of transformers have it."""

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


class CausalWordModel:
    """Scores words as " word" with a causal model of transformers; a `WordLanguageModel`.

    Threads may share it: calls are done one after the other.

    Raises: LanguageModelError for a tokenizer with neither bos nor eos token.
    """

    def __init__(
        self, model: torch.nn.Module, tokenizer: PieceTokenizer, *, device: torch.device | None = None
    ) -> None:
        self._tree = CausalTree(model, device or torch.device("cpu"))
        self._tokenizer = tokenizer
        given = [token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id) if token is not None]
        if not given:
            raise LanguageModelError("neural model: expected a bos or eos token, got a tokenizer without")
        self._bos, self._eos = given[0], given[-1]
        self._nodes: dict[History, Node] = {}
        self._scores: dict[tuple[History, str], float] = {}
        self._pieces: dict[str, tuple[int, ...]] = {}
        self._lock = Lock()

    @classmethod
    def load(cls, name: str, *, device: torch.device | None = None) -> CausalWordModel:
        """Load a folder, a GGUF file or a hub name. device: None: the CPU.

        Raises: MissingExtraError without transformers, LanguageModelError for a model that cannot be loaded.
        """
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            raise MissingExtraError("transformers", "neural-lm", f"the language model {name}") from error
        try:
            folder, file = _gguf(name)
            model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file)
            return cls(model, AutoTokenizer.from_pretrained(folder, gguf_file=file), device=device)
        except (OSError, ValueError, ImportError) as error:
            raise LanguageModelError(
                f"{name}: expected a causal language model, got {str(error).splitlines()[0]}"
            ) from error

    @property
    def n_forward_pieces(self) -> int:
        """PieceTokenizer run through the network so far, padding aside."""
        return self._tree.n_run

    def begin(self) -> None:
        with self._lock:
            self._nodes.clear()
            self._scores.clear()

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        with self._lock:
            return self._score_words(pairs)

    def score_ends(self, histories: Sequence[History]) -> Mapping[History, float]:
        cut = {history: _context(history) for history in histories}
        with self._lock:
            self._require(list(cut.values()))
            return {history: float(self._nodes[key].log_probs[self._eos]) for history, key in cut.items()}

    def _score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        cut = {pair: (_context(pair[0]), pair[1]) for pair in pairs}
        wanted = [pair for pair in dict.fromkeys(cut.values()) if pair not in self._scores]
        self._require([history for history, _ in wanted])
        for history, word in wanted:
            pieces = self._split(word)
            if len(pieces) == 1:
                self._scores[history, word] = float(self._nodes[history].log_probs[pieces[0]])
        self._extend([pair for pair in wanted if pair not in self._scores])
        return {pair: self._scores[key] for pair, key in cut.items()}

    def _split(self, word: str) -> tuple[int, ...]:
        if word not in self._pieces:
            self._pieces[word] = tuple(self._tokenizer.encode(" " + word, add_special_tokens=False))
        return self._pieces[word]

    def _require(self, histories: Sequence[History]) -> None:
        """Make the nodes of histories and of all their prefixes, shorter ones first."""
        if () not in self._nodes and histories:
            self._nodes[()] = self._tree.extend([NodeExtension(None, (self._bos,))])[0].node
        missing = {h[:n] for h in set(histories) for n in range(1, len(h) + 1)} - self._nodes.keys()
        for length in sorted({len(history) for history in missing}):
            self._extend([(h[:-1], h[-1]) for h in missing if len(h) == length])

    def _extend(self, pairs: Sequence[tuple[History, str]]) -> None:
        """Make the nodes of histories plus one word, from the nodes of the histories."""
        parents = [self._nodes[history] for history, _ in pairs]
        continuations = [
            NodeExtension(parent, self._split(word)) for parent, (_, word) in zip(parents, pairs, strict=True)
        ]
        for (history, word), continuation, extended in zip(
            pairs, continuations, self._tree.extend(continuations), strict=True
        ):
            assert continuation.parent is not None
            first = float(continuation.parent.log_probs[continuation.tokens[0]])
            longer = (*history, word)
            self._nodes[longer] = extended.node
            self._scores[history, word] = first + extended.inner


def _gguf(name: str) -> tuple[str, str | None]:
    """Where a model lies, and its file there if it is one of llama.cpp's. Raises OSError: it is not there."""
    path = Path(name)
    if path.suffix != ".gguf":
        return name, None
    if not path.is_file():
        raise FileNotFoundError("no such file")
    return str(path.parent), path.name


def _context(history: History) -> History:
    """The part of a history that is used: whole blocks are dropped, so that nodes can be reused."""
    n_blocks = len(history) // BLOCK_WORDS
    return history if n_blocks < 2 else history[(n_blocks - 1) * BLOCK_WORDS :]
