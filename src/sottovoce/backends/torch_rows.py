"""Continuous batching on PyTorch: nothing is copied when a row is admitted or released."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sottovoce.backends.base import AlignmentHeads, ModelDims, RowPrefix, RowsOutput
from sottovoce.backends.by_step import check_admitted, check_selected, check_step
from sottovoce.errors import OptionError
from sottovoce.models.caches import RowBatchSlice, RowCrossAttention, RowKvCache, decode_rows
from sottovoce.models.layers import KeysValues
from sottovoce.models.whisper import Whisper
from sottovoce.types import EncoderOutput


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    cache: RowKvCache
    audio: RowCrossAttention


class TorchRows:
    """`RunningRows` of one model.

    keys_values: computes the cross-attention keys and values of a window, per layer (1, H, n_frames, d_head).
    """

    def __init__(
        self, model: Whisper, keys_values: Callable[[EncoderOutput], Sequence[KeysValues]], name: str
    ) -> None:
        self._model = model
        self._keys_values = keys_values
        self._name = name
        self._rows: list[_Row] = []

    @property
    def n_rows(self) -> int:
        return len(self._rows)

    @torch.no_grad()
    def admit(
        self, encoded: EncoderOutput, bias: Tensor | None = None, prefix: RowPrefix | None = None
    ) -> None:
        """Append a row; see `RunningRows.admit`. bias: (n_frames,) float32.

        Raises: OptionError for several windows, a bias of another length, or a prefix of another backend.
        """
        check_admitted(encoded, bias)
        if prefix is not None and not isinstance(prefix, RowKvCache):
            raise OptionError(
                f"rows: expected the state of a row of {self._name}, got {type(prefix).__name__}"
            )
        dims, states = self._model.dims, encoded.states
        n_layer, n_head = dims.n_text_layer, dims.n_text_head
        if prefix is None:
            cache = RowKvCache(n_layer, n_head, dims.n_text_state // n_head, states)
        else:
            cache = prefix.first(prefix.n_tokens)
        added = None if bias is None else bias.to(states.device, torch.float32)[None]
        if encoded.log_weights is not None:
            added = encoded.log_weights if added is None else added + encoded.log_weights
        folded = None if added is None else added[:, None, None]
        self._rows.append(_Row(cache, self._audio(self._keys_values(encoded), folded)))

    def _audio(self, keys_values: Sequence[KeysValues], bias: Tensor | None) -> RowCrossAttention:
        """Cross-attention of a row; the object of the row before, where both share their audio."""
        last = self._rows[-1].audio if self._rows else None
        if last is not None and bias is None and last.bias is None and last.keys_values is keys_values:
            return last
        return RowCrossAttention(keys_values, bias)

    def select(self, rows: Sequence[int]) -> None:
        """Replace the rows; see `RunningRows.select`. Only caches of rows that branch are copied."""
        check_selected(rows, self.n_rows)
        taken: set[int] = set()
        chosen = []
        for index in rows:
            row = self._rows[index]
            chosen.append(replace(row, cache=row.cache.copy()) if index in taken else row)
            taken.add(index)
        self._rows = chosen

    def cut(self, row: int, n_tokens: int) -> None:
        """Drop the newest tokens of a row."""
        self._rows[row].cache.cut(n_tokens)

    def prefix_of(self, row: int, n_tokens: int) -> RowKvCache:
        """Return the cache of a row's first tokens; see `RunningRows.prefix_of`."""
        return self._rows[row].cache.first(n_tokens)

    @torch.no_grad()
    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
    ) -> RowsOutput:
        """Append tokens to every row; see `RunningRows.step`."""
        check_step(tokens, wanted, self.n_rows)
        check_heads(capture, self._model.dims)
        decoder = self._model.decoder
        device = decoder.positional_embedding.device
        batch, places = self._placed(tokens, wanted)
        flat = torch.tensor([token for new in tokens for token in new], device=device)
        hidden, captured = decode_rows(decoder, flat, [row for row in batch if row.n_new], capture)
        rows = None if vocabulary is None else vocabulary.to(device)
        logits = decoder.logits(hidden[torch.tensor(places, device=device)][None], rows)[0]
        attention = [captured[:, row.start : row.end, : row.audio.n_frames] for row in batch]
        return RowsOutput(logits, attention)

    def _placed(
        self, tokens: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]
    ) -> tuple[list[RowBatchSlice], list[int]]:
        """Lay out the new tokens of each row in the batch; return the slices and the wanted positions."""
        longest = self._model.dims.n_text_ctx
        batch: list[RowBatchSlice] = []
        places: list[int] = []
        at = 0
        for row, new, positions in zip(self._rows, tokens, wanted, strict=True):
            n_total = row.cache.n_tokens + len(new)
            if n_total > longest:
                raise OptionError(f"rows: {n_total} tokens in a row, {self._name} reads {longest}")
            batch.append(RowBatchSlice(row.cache, row.audio, at, at + len(new)))
            places += [at + position for position in positions]
            at += len(new)
        return batch, places


def check_heads(heads: AlignmentHeads, dims: ModelDims) -> None:
    """Check (layer, head) pairs.

    Raises: OptionError for a head that the model does not have.
    """
    n_layer, n_head = dims.n_text_layer, dims.n_text_head
    for layer, head in heads:
        if not (0 <= layer < n_layer and 0 <= head < n_head):
            raise OptionError(f"step: head ({layer}, {head}) of {n_layer} layers of {n_head} was asked for")
