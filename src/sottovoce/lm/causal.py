"""Hugging Face causal language models over words in a search (extra `neural-lm`).

Word histories form a tree: every piece of text is run once for all beams and utterances, in padded
batches. Each node stores the keys and values of its own tokens; those of its prefix are collected from its
ancestors.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from sottovoce.errors import LanguageModelError, MissingExtraError
from sottovoce.lm.base import BLOCK_WORDS
from sottovoce.lm.neural import History
from sottovoce.threads import all_torch_threads

if TYPE_CHECKING:
    from transformers.cache_utils import DynamicLayer


_BATCH = 64


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A sequence: kv (n_layers, 2, n_heads, n_own, d) of its own last tokens, log_probs (V,) float32 of
    the next token, and its number of tokens.
    """

    parent: Node | None
    kv: Tensor
    log_probs: Tensor
    n_tokens: int

    def path_kv(self) -> Tensor:
        """Collect keys and values of all tokens (n_layers, 2, n_heads, n_tokens, d)."""
        parts = [self.kv]
        node = self.parent
        while node is not None:
            parts.append(node.kv)
            node = node.parent
        return torch.cat(parts[::-1], dim=3)


class NodeExtension(NamedTuple):
    """A node to continue (None: the empty sequence) and the next tokens."""

    parent: Node | None
    tokens: tuple[int, ...]


class ContinuedNode(NamedTuple):
    """The new node, and the log-probability of its tokens after the first, given those before."""

    node: Node
    inner: float


class CausalTree:
    def __init__(self, network: torch.nn.Module, device: torch.device) -> None:
        self._network = network.eval().to(device)
        self._device = device
        taken = inspect.signature(network.forward).parameters
        self._cache_argument = "cache" if "cache" in taken else "past_key_values"  # renamed in transformers 5
        self.n_run = 0
        """Tokens run through the network so far, without padding."""

    def extend(self, continuations: Sequence[NodeExtension]) -> list[ContinuedNode]:
        """Continue nodes in batches; return the new ones in input order."""
        order = sorted(range(len(continuations)), key=lambda i: _length(continuations[i]))  # little padding
        extended: dict[int, ContinuedNode] = {}
        for begin in range(0, len(order), _BATCH):
            places = order[begin : begin + _BATCH]
            extended.update(zip(places, self._run([continuations[i] for i in places]), strict=True))
        return [extended[i] for i in range(len(continuations))]

    @torch.no_grad()
    @all_torch_threads()
    def _run(self, rows: Sequence[NodeExtension]) -> list[ContinuedNode]:
        """Run one batch: padding stands left of the past and right of the new tokens."""
        n_past = torch.tensor([0 if row.parent is None else row.parent.n_tokens for row in rows])
        n_new = torch.tensor([len(row.tokens) for row in rows])
        past, new = int(n_past.max()), int(n_new.max())
        ids = torch.zeros((len(rows), new), dtype=torch.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row.tokens)] = torch.tensor(row.tokens)
        columns = torch.arange(past + new)
        mask = (columns >= past - n_past[:, None]) & (columns < past + n_new[:, None])
        positions = (n_past[:, None] + torch.arange(new)).clamp_max(int((n_past + n_new).max()) - 1)
        logits, kv = self._forward(ids, mask, positions, _padded_past(rows, past))
        self.n_run += int(n_new.sum())
        return [
            _continued(row, logits[place], kv[:, :, place, :, past : past + len(row.tokens)])
            for place, row in enumerate(rows)
        ]

    def _forward(
        self, ids: Tensor, mask: Tensor, positions: Tensor, past: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return logits (R, n_new, V), and keys and values (n_layers, 2, R, n_heads, n_past + n_new, d)."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        cache = DynamicCache()
        for layer, (keys, values) in enumerate(() if past is None else past):
            cache.update(keys, values, layer)
        output = self._network(
            input_ids=ids.to(self._device),
            attention_mask=mask.to(self._device, torch.int64),
            position_ids=positions.to(self._device),
            use_cache=True,
            **{self._cache_argument: cache},
        )
        layers = [_stacked(layer) for layer in cache.layers if isinstance(layer, DynamicLayer)]
        return output.logits, torch.stack(layers)


def _length(continuation: NodeExtension) -> int:
    return len(continuation.tokens) + (0 if continuation.parent is None else continuation.parent.n_tokens)


def _padded_past(rows: Sequence[NodeExtension], width: int) -> Tensor | None:
    """Return keys and values (n_layers, 2, R, n_heads, width, d), padded at the left."""
    if not width:
        return None
    paths = [row.parent.path_kv() for row in rows if row.parent is not None]
    padded = [torch.nn.functional.pad(kv, (0, 0, width - kv.shape[3], 0)) for kv in paths]
    return torch.stack(padded, dim=2)


def _continued(row: NodeExtension, logits: Tensor, kv: Tensor) -> ContinuedNode:
    log_probs = logits[: len(row.tokens)].float().log_softmax(dim=1)
    inner = sum(float(log_probs[i, token]) for i, token in enumerate(row.tokens[1:]))
    n_tokens = _length(row)
    return ContinuedNode(Node(row.parent, kv.clone(), log_probs[-1].clone(), n_tokens), inner)


def _stacked(layer: DynamicLayer) -> Tensor:
    assert layer.keys is not None
    assert layer.values is not None
    return torch.stack((layer.keys, layer.values))


class PieceTokenizer(Protocol):
    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


class CausalWordModel:
    """Scores words as " word" with a causal model of transformers; a `WordLanguageModel`, thread-safe.

    Raises:
        LanguageModelError: a tokenizer with neither bos nor eos token.
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

        Raises:
            MissingExtraError: without transformers.
            LanguageModelError: the model cannot be loaded.
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
        """Pieces run through the network so far, without padding."""
        return self._tree.n_run

    def begin(self) -> None:
        with self._lock:
            self._nodes.clear()
            self._scores.clear()

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        cut = {pair: (_context(pair[0]), pair[1]) for pair in pairs}
        with self._lock:
            wanted = [pair for pair in dict.fromkeys(cut.values()) if pair not in self._scores]
            self._require([history for history, _ in wanted])
            for history, word in wanted:
                pieces = self._split(word)
                if len(pieces) == 1:
                    self._scores[history, word] = float(self._nodes[history].log_probs[pieces[0]])
            self._extend([pair for pair in wanted if pair not in self._scores])
            return {pair: self._scores[key] for pair, key in cut.items()}

    def score_ends(self, histories: Sequence[History]) -> Mapping[History, float]:
        cut = {history: _context(history) for history in histories}
        with self._lock:
            self._require(list(cut.values()))
            return {history: float(self._nodes[key].log_probs[self._eos]) for history, key in cut.items()}

    def _split(self, word: str) -> tuple[int, ...]:
        if word not in self._pieces:
            self._pieces[word] = tuple(self._tokenizer.encode(" " + word, add_special_tokens=False))
        return self._pieces[word]

    def _require(self, histories: Sequence[History]) -> None:
        if () not in self._nodes and histories:
            self._nodes[()] = self._tree.extend([NodeExtension(None, (self._bos,))])[0].node
        missing = {h[:n] for h in set(histories) for n in range(1, len(h) + 1)} - self._nodes.keys()
        for length in sorted({len(history) for history in missing}):
            self._extend([(h[:-1], h[-1]) for h in missing if len(h) == length])

    def _extend(self, pairs: Sequence[tuple[History, str]]) -> None:
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
    """Return a model's folder, and its file if it is llama.cpp's; raise OSError for a missing file."""
    path = Path(name)
    if path.suffix != ".gguf":
        return name, None
    if not path.is_file():
        raise FileNotFoundError("no such file")
    return str(path.parent), path.name


def _context(history: History) -> History:
    """Drop whole blocks of long histories, so that nodes can be reused."""
    n_blocks = len(history) // BLOCK_WORDS
    return history if n_blocks < 2 else history[(n_blocks - 1) * BLOCK_WORDS :]
