"""Hugging Face's causal language models, which score words in a search; see `lm.rescoring`.

All texts form one tree of pieces. Every piece runs through the network once while the cache holds it: missing
pieces run together, as one row in which each attends to its ancestors alone. A piece keeps its hidden state,
from which a next piece is scored by one row of the output embeddings.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sottovoce.errors import LanguageModelError, OptionError, expecting, needs
from sottovoce.lm.base import Bools
from sottovoce.lm.rescoring import History
from sottovoce.models.devices import Device, NumberFormat, choose_number_format
from sottovoce.models.whisper import NativeLinear
from sottovoce.threads import all_torch_threads

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.cache_utils import DynamicCache, DynamicLayer

CACHE_MB = 512.0
BATCH_PIECES = 64
"""Pieces that run together; more share few ancestors."""
Asked = TypeVar("Asked")
_HEAD_TOLERANCE = 1e-2
"""Relative, of logits from embeddings times hidden states."""


class ContinuedText(NamedTuple):
    """Pieces of a text, of which the last n are scored."""

    pieces: tuple[int, ...]
    n: int


@dataclass(slots=True, eq=False)
class _Node:
    """A piece of texts, and the row of its values."""

    parent: _Node | None
    piece: int
    depth: int
    row: int
    used: int = 0

    def ancestors(self) -> list[_Node]:
        path, at = [], self.parent
        while at is not None:
            path.append(at)
            at = at.parent
        return path


class PieceTree:
    """Scores the pieces of texts with a causal network.

    cache_bytes: bound of keys, values and hidden states. The least recently used pieces are dropped.

    Raises:
        LanguageModelError: logits that are not output embeddings times the last hidden state.
    """

    def __init__(self, network: PreTrainedModel, *, cache_bytes: int, first: int, is_int8: bool) -> None:
        head = _output_layer(network)
        self._embeddings = head.weight.detach()
        self._bias: Tensor | None = None if head.bias is None else head.bias.detach()
        self._check_head(network, first)
        if is_int8:
            _quantise(network)
        self._body, self._head = network.base_model, _output_layer(network)
        taken = inspect.signature(self._body.forward).parameters
        self._cache_argument = "cache" if "cache" in taken else "past_key_values"  # renamed in transformers 5
        self._device, self._dtype = self._embeddings.device, self._embeddings.dtype
        self.n_run = 0
        self._clear()
        self._kv, self._hidden, self._log_sums = self._forward([first], [0], np.ones((1, 1), np.bool_), [])
        self._n_bytes = sum(part[0].nbytes for part in (self._kv, self._hidden, self._log_sums))
        self._most_nodes = cache_bytes // self._n_bytes

    @property
    def n_bytes(self) -> int:
        return (len(self._children) + len(self._free)) * self._n_bytes

    def log_probs(self, texts: Sequence[ContinuedText]) -> list[float]:
        """Return the log-probability of the last n pieces of each text."""
        scores: list[float] = []
        self._now += 1
        waiting: list[tuple[list[_Node], ContinuedText]] = []
        try:
            for text in texts:
                self._most_nodes = max(self._most_nodes, len(text.pieces) - 1)
                path = self._path(text.pieces[:-1])
                if path is None:  # full of pieces that these texts need
                    scores += self._scores(waiting)
                    waiting = []
                    self._now += 1
                    path = self._path(text.pieces[:-1])
                assert path is not None
                waiting.append((path[-text.n :], text))
            return [*scores, *self._scores(waiting)]
        except BaseException:
            self._clear()  # nodes may lack their values
            raise

    def _clear(self) -> None:
        self._children: dict[tuple[_Node | None, int], _Node] = {}
        self._free: list[int] = []
        self._new: list[_Node] = []
        self._now = 0

    def _path(self, pieces: Sequence[int]) -> list[_Node] | None:
        path: list[_Node] = []
        for depth, piece in enumerate(pieces):
            parent = path[-1] if path else None
            node = self._children.get((parent, piece)) or self._added(parent, piece, depth)
            if node is None:
                return None
            node.used = self._now
            path.append(node)
        return path

    def _added(self, parent: _Node | None, piece: int, depth: int) -> _Node | None:
        if not self._free and len(self._children) < self._most_nodes:
            self._free.append(len(self._children))
        elif not self._free:
            self._drop_oldest()
        if not self._free:
            return None
        node = self._children[parent, piece] = _Node(parent, piece, depth, self._free.pop())
        self._new.append(node)
        return node

    def _drop_oldest(self) -> None:
        """Free an eighth of the unused nodes, longer texts before their beginnings."""
        old = [node for node in self._children.values() if node.used < self._now]
        old.sort(key=lambda node: (node.used, -node.depth, node.row))
        for node in old[: -(-len(old) // 8)]:
            del self._children[node.parent, node.piece]
            self._free.append(node.row)

    def _scores(self, waiting: Sequence[tuple[list[_Node], ContinuedText]]) -> list[float]:
        if not waiting:
            return []
        for begin in range(0, len(self._new), BATCH_PIECES):
            self._run(self._new[begin : begin + BATCH_PIECES])
        self._new = []
        nodes = torch.tensor([node.row for path, _ in waiting for node in path], device=self._device)
        pieces = torch.tensor([p for _, text in waiting for p in text.pieces[-text.n :]], device=self._device)
        logits = (self._hidden[nodes].float() * self._embeddings[pieces].float()).sum(dim=1)
        if self._bias is not None:
            logits += self._bias[pieces]
        scores = torch.split(logits - self._log_sums[nodes], [text.n for _, text in waiting])
        return [float(part) for part in torch.stack([part.sum() for part in scores])]

    def _run(self, nodes: list[_Node]) -> None:
        rows = {node: row for row, node in enumerate(nodes)}
        above = {node: node.ancestors() for node in nodes if node.parent not in rows}
        past = sorted({each for path in above.values() for each in path}, key=lambda node: node.row)
        columns = {node: i for i, node in enumerate([*past, *nodes])}
        mask = np.zeros((len(nodes), len(columns)), dtype=np.bool_)
        for row, node in enumerate(nodes):
            if node.parent in rows:
                mask[row] = mask[rows[node.parent]]
            else:
                mask[row, [columns[each] for each in above[node]]] = True
            mask[row, columns[node]] = True
        pieces, places = [node.piece for node in nodes], [node.depth for node in nodes]
        values = self._forward(pieces, places, mask, [node.row for node in past])
        where = torch.tensor([node.row for node in nodes], device=self._device)
        self._reserve(int(where.max()) + 1)
        for held, new in zip((self._kv, self._hidden, self._log_sums), values, strict=True):
            held[where] = new
        self.n_run += len(nodes)

    def _reserve(self, n_nodes: int) -> None:
        if n_nodes <= len(self._hidden):
            return
        n_nodes = max(n_nodes, min(2 * len(self._hidden), self._most_nodes))
        self._kv, self._hidden, self._log_sums = (
            torch.cat((part, part.new_empty((n_nodes - len(part), *part.shape[1:]))))
            for part in (self._kv, self._hidden, self._log_sums)
        )

    @torch.no_grad()
    @all_torch_threads()
    def _forward(
        self, pieces: Sequence[int], places: Sequence[int], mask: Bools, past: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return keys and values (N, n_layers, 2, n_heads, d), hidden states (N, d_model), and log-sums (N,)
        of next pieces. mask: (N, P + N), which of the P nodes of past and of these each piece attends to.
        """
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache()
        if past:
            held = self._kv[torch.tensor(past, device=self._device)].permute(1, 2, 3, 0, 4)
            for layer, (keys, values) in enumerate(held):
                cache.update(keys[None], values[None], layer)
        bias = torch.zeros(mask.shape, dtype=self._dtype, device=self._device)
        bias.masked_fill_(torch.from_numpy(~mask).to(self._device), torch.finfo(self._dtype).min)
        output = self._body(
            input_ids=torch.tensor([pieces], device=self._device),
            attention_mask=bias[None, None],
            position_ids=torch.tensor([places], device=self._device),
            use_cache=True,
            **{self._cache_argument: cache},
        )
        hidden = output.last_hidden_state[0]
        return _keys_values(cache, len(past)), hidden, self._head(hidden).float().logsumexp(dim=1)

    @staticmethod
    @torch.no_grad()
    def _check_head(network: PreTrainedModel, first: int) -> None:
        ids = torch.tensor([[first]], device=_output_layer(network).weight.device)
        logits = network(input_ids=ids).logits[0].float()
        hidden = network.base_model(input_ids=ids).last_hidden_state[0]
        ours = _output_layer(network)(hidden).float()
        if float((ours - logits).norm()) > _HEAD_TOLERANCE * float(logits.norm()):
            raise LanguageModelError(
                "neural model: expected logits that are its output embeddings times its last hidden state, "
                f"got {type(network).__name__}, which changes them"
            )


def _output_layer(network: PreTrainedModel) -> nn.Linear:
    layer: nn.Linear = network.get_output_embeddings()  # type: ignore[no-untyped-call]
    return layer


def _keys_values(cache: DynamicCache, n_past: int) -> Tensor:
    from transformers.cache_utils import DynamicLayer

    layers = [_stacked(layer)[:, 0, :, n_past:] for layer in cache.layers if isinstance(layer, DynamicLayer)]
    return torch.stack(layers).permute(3, 0, 1, 2, 4)


def _stacked(layer: DynamicLayer) -> Tensor:
    assert layer.keys is not None
    assert layer.values is not None
    return torch.stack((layer.keys, layer.values))


def _quantise(network: nn.Module) -> None:
    from transformers.pytorch_utils import Conv1D

    for name, layer in list(network.named_modules()):
        if isinstance(layer, Conv1D):
            n_in, n_out = layer.weight.shape
            linear = nn.Linear(n_in, n_out, device="meta")
            linear.weight, linear.bias = nn.Parameter(layer.weight.t()), layer.bias
        elif isinstance(layer, nn.Linear):
            linear = layer
        else:
            continue
        parent, _, last = name.rpartition(".")
        setattr(network.get_submodule(parent), last, NativeLinear(linear))


class CausalWordModel:
    """Scores words with a causal model of transformers; a thread-safe `WordLanguageModel`.

    dtype: of weights and activations, converted in place; see `CtcFusionOptions.neural_dtype`. cache_mb: see
    `PieceTree`.

    Raises:
        LanguageModelError: a tokenizer with neither bos nor eos token, or as `PieceTree`.
        OptionError: an unknown dtype, or int8 without a CPU and the native kernels.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        device: torch.device | Device | None = None,
        dtype: str = "float32",
        cache_mb: float = CACHE_MB,
    ) -> None:
        device = torch.device(str(device or "cpu"))
        given = [token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id) if token is not None]
        if not given:
            raise LanguageModelError("neural model: expected a bos or eos token, got a tokenizer without")
        self._bos, self._eos = given[0], given[-1]
        self._tokenizer = tokenizer
        numbers = _numbers(dtype, device)
        network = model.eval().to(device, getattr(torch, numbers.dtype))  # type: ignore[no-untyped-call]
        self._tree = PieceTree(
            network, cache_bytes=int(cache_mb * 2**20), first=self._bos, is_int8=numbers.int8
        )
        self._split: dict[str, tuple[int, ...]] = {}
        self._lock = Lock()

    @classmethod
    def load(
        cls,
        name: str,
        *,
        device: torch.device | Device | None = None,
        dtype: str = "auto",
        cache_mb: float = CACHE_MB,
    ) -> CausalWordModel:
        """Load a folder, a GGUF file, a hub name, or the folder of a LoRA adapter.

        Raises:
            MissingExtraError: without transformers, or peft for an adapter.
            LanguageModelError, OptionError: as the class.
        """
        with needs("transformers", "neural-lm", f"the language model {name}"):
            from transformers import AutoModelForCausalLM, AutoTokenizer
        causes = (OSError, ValueError, ImportError, KeyError)
        with expecting(name, "a causal language model", LanguageModelError, causes):
            adapter = Path(name) / "adapter_config.json"
            base = (
                str(json.loads(adapter.read_text())["base_model_name_or_path"]) if adapter.is_file() else name
            )
            folder, file = _gguf(base)
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                folder, gguf_file=file, dtype="auto"
            )
            if adapter.is_file():
                model = _adapted(model, name)
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
        return cls(model, tokenizer, device=device, dtype=dtype, cache_mb=cache_mb)

    def __reduce__(self) -> NoReturn:
        raise TypeError("neural_lm: expected a name or folder to be pickled, got a loaded model")

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        with self._lock:
            return self._scored({pair: (pair[0], self._pieces(pair[1])) for pair in pairs})

    def score_ends(self, histories: Sequence[History]) -> Mapping[History, float]:
        with self._lock:
            return self._scored({history: (history, (self._eos,)) for history in histories})

    def _scored(self, texts: Mapping[Asked, tuple[History, tuple[int, ...]]]) -> dict[Asked, float]:
        before = {history: self._begun(history) for history, _ in texts.values()}
        rows = [ContinuedText(before[history] + pieces, len(pieces)) for history, pieces in texts.values()]
        return dict(zip(texts, self._tree.log_probs(rows), strict=True))

    def _begun(self, history: History) -> tuple[int, ...]:
        return (self._bos, *(piece for word in history for piece in self._pieces(word)))

    def _pieces(self, word: str) -> tuple[int, ...]:
        if word not in self._split:
            self._split[word] = tuple(self._tokenizer.encode(" " + word, add_special_tokens=False))
        return self._split[word]


def _numbers(dtype: str, device: torch.device) -> NumberFormat:
    has_kernels = importlib.util.find_spec("sottovoce_kernels") is not None
    if dtype == "auto" and device.type == "cpu":
        return NumberFormat("float32", int8=has_kernels)
    chosen = choose_number_format(dtype, device)
    if chosen.int8 and not (has_kernels and device.type == "cpu"):
        lack = f"device {device.type}" if has_kernels else "no native kernels (pip install ./kernels)"
        raise OptionError(f"neural model: expected a CPU and the native kernels for {dtype}, got {lack}")
    return NumberFormat("float32", int8=True) if chosen.int8 else chosen


def _adapted(model: PreTrainedModel, folder: str) -> PreTrainedModel:
    with needs("peft", "neural-lm", f"the adapter {folder}"):
        from peft import PeftModel
    merged: PreTrainedModel = PeftModel.from_pretrained(model, folder).merge_and_unload()
    return merged


def _gguf(name: str) -> tuple[str, str | None]:
    """Return a model's folder, and its GGUF file or None. Raises: OSError: no such file."""
    path = Path(name)
    if path.suffix != ".gguf":
        return name, None
    if not path.is_file():
        raise FileNotFoundError("no such file")
    return str(path.parent), path.name
