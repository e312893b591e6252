"""Any Hugging Face causal language model as a model over words (extra `neural-lm`).

The words that were said make a tree. Each of its nodes keeps the keys and values of its own pieces and the
log-probabilities of the next piece, so that every piece is run once, in batches over all beams and
utterances; a word of one piece is then a look-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from sottovoce.errors import LanguageModelError, MissingExtraError
from sottovoce.lm.neural import History

if TYPE_CHECKING:
    from transformers.cache_utils import DynamicLayer

_BLOCK_WORDS = 64
"""Histories of twice this many words lose their first block, so that a model's context suffices."""
_BATCH = 64


class Pieces(Protocol):
    """What is asked of a tokenizer; those of transformers have it."""

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_id(self) -> int | None: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class _Node:
    """A history: kv (n_layers, 2, n_heads, n_pieces, d) of its last word's pieces, log_probs (V,) of the
    next piece, and how many pieces it has in all."""

    parent: _Node | None
    kv: Tensor
    log_probs: Tensor
    n_pieces: int

    def path_kv(self) -> Tensor:
        """Keys and values of all pieces (n_layers, 2, n_heads, n_pieces, d)."""
        parts = [self.kv]
        node = self.parent
        while node is not None:
            parts.append(node.kv)
            node = node.parent
        return torch.cat(parts[::-1], dim=3)


class CausalWordModel:
    """Scores words as " word" with a causal model of transformers; a `WordLanguageModel`.

    Raises LanguageModelError: a tokenizer without a token to begin or end a text with.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Pieces,
        *,
        device: torch.device | None = None,
    ) -> None:
        self._device = device or torch.device("cpu")
        self._model = model.eval().to(self._device)
        self._tokenizer = tokenizer
        ends = (tokenizer.bos_token_id, tokenizer.eos_token_id)
        given = [int(token) for token in ends if token is not None]
        if not given:
            raise LanguageModelError(
                "neural language model: expected a bos or eos token, got a tokenizer without"
            )
        self._bos, self._eos = given[0], given[-1]
        self._nodes: dict[History, _Node] = {}
        self._scores: dict[tuple[History, str], float] = {}
        self._pieces: dict[str, tuple[int, ...]] = {}
        self.n_forward_pieces = 0
        """Pieces run through the network so far, padding aside."""

    @classmethod
    def load(cls, name: str, *, device: torch.device | None = None) -> CausalWordModel:
        """Load a folder or a hub name. Raises MissingExtraError, LanguageModelError."""
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            raise MissingExtraError("transformers", "neural-lm", f"the language model {name}") from error
        try:
            model = AutoModelForCausalLM.from_pretrained(name)
            return cls(model, AutoTokenizer.from_pretrained(name), device=device)
        except (OSError, ValueError) as error:
            raise LanguageModelError(
                f"{name}: expected a causal language model, got {str(error).splitlines()[0]}"
            ) from error

    def begin(self) -> None:
        self._nodes.clear()
        self._scores.clear()

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        cut = {pair: (_context(pair[0]), pair[1]) for pair in pairs}
        wanted = [pair for pair in dict.fromkeys(cut.values()) if pair not in self._scores]
        self._require([history for history, _ in wanted])
        single = [pair for pair in wanted if len(self._split(pair[1])) == 1]
        for history, word in single:
            piece = self._split(word)[0]
            self._scores[history, word] = float(self._nodes[history].log_probs[piece])
        self._extend([pair for pair in wanted if pair not in self._scores])
        return {pair: self._scores[key] for pair, key in cut.items()}

    def score_ends(self, histories: Sequence[History]) -> Mapping[History, float]:
        cut = {history: _context(history) for history in histories}
        self._require(list(cut.values()))
        return {history: float(self._nodes[key].log_probs[self._eos]) for history, key in cut.items()}

    def _split(self, word: str) -> tuple[int, ...]:
        if word not in self._pieces:
            pieces = self._tokenizer.encode(" " + word, add_special_tokens=False)
            self._pieces[word] = tuple(int(piece) for piece in pieces)
        return self._pieces[word]

    def _require(self, histories: Sequence[History]) -> None:
        """Make the nodes of histories and of all their beginnings, shorter ones first."""
        if () not in self._nodes and histories:
            self._run([(None, (), (self._bos,))])
        missing = {h[:n] for h in set(histories) for n in range(1, len(h) + 1)} - self._nodes.keys()
        for length in sorted({len(history) for history in missing}):
            self._extend([(h[:-1], h[-1]) for h in missing if len(h) == length])

    def _extend(self, pairs: Sequence[tuple[History, str]]) -> None:
        """Make the nodes of histories and one more word; their beginnings have nodes."""
        rows = [(self._nodes[history], (*history, word), self._split(word)) for history, word in pairs]
        rows.sort(key=lambda row: row[0].n_pieces + len(row[2]))  # little padding
        for begin in range(0, len(rows), _BATCH):
            self._run([*rows[begin : begin + _BATCH]])

    @torch.no_grad()
    def _run(self, rows: Sequence[tuple[_Node | None, History, tuple[int, ...]]]) -> None:
        """Run new pieces after their parents: padding stands left of the past and right of the new."""
        n_past = torch.tensor([0 if parent is None else parent.n_pieces for parent, _, _ in rows])
        n_new = torch.tensor([len(pieces) for _, _, pieces in rows])
        widest_past, widest = int(n_past.max()), int(n_new.max())
        ids = torch.full((len(rows), widest), self._eos)
        for row, (_, _, pieces) in enumerate(rows):
            ids[row, : len(pieces)] = torch.tensor(pieces)
        columns = torch.arange(widest_past + widest)
        mask = (columns >= widest_past - n_past[:, None]) & (columns < widest_past + n_new[:, None])
        positions = (n_past[:, None] + torch.arange(widest)).clamp_max(int((n_past + n_new).max()) - 1)
        logits, kv = self._forward(ids, mask, positions, self._past(rows, widest_past))
        self.n_forward_pieces += int(n_new.sum())
        for row, (parent, history, pieces) in enumerate(rows):
            log_probs = logits[row, : len(pieces)].float().log_softmax(dim=1)
            own = kv[:, :, row, :, widest_past : widest_past + len(pieces)].clone()
            self._nodes[history] = _Node(parent, own, log_probs[-1].clone(), int(n_past[row]) + len(pieces))
            if parent is not None:
                inner = sum(float(log_probs[i, piece]) for i, piece in enumerate(pieces[1:]))
                self._scores[history[:-1], history[-1]] = float(parent.log_probs[pieces[0]]) + inner

    def _past(
        self, rows: Sequence[tuple[_Node | None, History, tuple[int, ...]]], width: int
    ) -> Tensor | None:
        """Keys and values (n_layers, 2, R, n_heads, width, d), padded at the left."""
        if not width:
            return None
        paths = [parent.path_kv() for parent, _, _ in rows if parent is not None]
        padded = [torch.nn.functional.pad(kv, (0, 0, width - kv.shape[3], 0)) for kv in paths]
        return torch.stack(padded, dim=2)

    def _forward(
        self, ids: Tensor, mask: Tensor, positions: Tensor, past: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Logits (R, n_new, V), and keys and values (n_layers, 2, R, n_heads, n_past + n_new, d)."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        cache = DynamicCache()
        for layer in range(0 if past is None else len(past)):
            assert past is not None
            cache.update(past[layer, 0], past[layer, 1], layer)
        output = self._model(
            input_ids=ids.to(self._device),
            attention_mask=mask.to(self._device, torch.int64),
            position_ids=positions.to(self._device),
            past_key_values=cache,
            use_cache=True,
        )
        return output.logits, torch.stack(
            [_stacked(layer) for layer in cache.layers if isinstance(layer, DynamicLayer)]
        )


def _stacked(layer: DynamicLayer) -> Tensor:
    assert layer.keys is not None
    assert layer.values is not None
    return torch.stack((layer.keys, layer.values))


def _context(history: History) -> History:
    """The part of a history that is looked at: whole blocks are dropped, so that nodes can be used again."""
    n_blocks = len(history) // _BLOCK_WORDS
    return history if n_blocks < 2 else history[(n_blocks - 1) * _BLOCK_WORDS :]
