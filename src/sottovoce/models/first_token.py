"""What follows one token at position 0: a decoder step with everything left out that is known before.

With a single token the softmax of self-attention is over one key, so its output is the value; the first
layer up to its queries does not hear the audio and is computed once. Several stretches of the audio are
rows of one batch; frames that no stretch hears are not read. It knows no cache and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.models.linear import rows_times_table
from sottovoce.models.whisper import DecoderBlock, KeysValues, TextDecoder


class FirstToken:
    """The decoder after one token and nothing else, for some rows of the vocabulary.

    token: the one token. vocabulary: (n_rows,) int64, on the decoder's device. What is kept besides the
    weights: two vectors of n_text_state, and n_rows of the embedding.
    """

    def __init__(self, decoder: TextDecoder, token: int, vocabulary: Tensor) -> None:
        self._blocks: list[DecoderBlock] = decoder.layers
        self._ln = decoder.ln
        embedding = decoder.token_embedding
        self._table = embedding.rows(vocabulary)  # (n_rows, d)
        row = embedding(torch.tensor(token, device=vocabulary.device))
        at_start = (row + decoder.positional_embedding[0]).to(embedding.dtype)
        self._read = _read(self._blocks[0], at_start[None, None])  # (1, 1, d)
        self._queries = _queries(self._blocks[0], self._read)  # (1, H, 1, d_head)

    def __call__(self, keys_values: Sequence[KeysValues], spans: Sequence[tuple[int, int]]) -> Tensor:
        """Logits (n_spans, n_rows) float32; row r hears frames [start, end) of one audio alone.

        keys_values: per layer, (1, H, n_frames, d_head) twice. spans: at least one, none of them empty.
        """
        first, last = min(start for start, _ in spans), max(end for _, end in spans)
        mask = _hidden_outside(spans, first, last, self._read)
        x, queries = self._read, self._queries.expand(-1, -1, len(spans), -1)
        for layer, (block, (keys, values)) in enumerate(zip(self._blocks, keys_values, strict=True)):
            if layer > 0:
                x = _read(block, x)
                queries = _queries(block, x)
            heard = block.cross_attn(queries, keys[:, :, first:last], values[:, :, first:last], mask=mask)
            x = block.add_mlp(x + heard)
        return rows_times_table(self._ln(x)[0], self._table).float()


def _read(block: DecoderBlock, x: Tensor) -> Tensor:
    """Self-attention of tokens (1, R, d) that each stand alone: a softmax over one key is 1."""
    read: Tensor = x + block.attn.out(block.attn.value(block.attn_ln(x)))
    return read


def _queries(block: DecoderBlock, x: Tensor) -> Tensor:
    return block.cross_attn.queries(block.cross_attn_ln(x))


def _hidden_outside(spans: Sequence[tuple[int, int]], first: int, last: int, like: Tensor) -> Tensor | None:
    """-inf where a row hears nothing: (1, 1, n_spans, last - first); None when all hear everything."""
    if all(span == (first, last) for span in spans):
        return None
    starts, ends = torch.tensor(spans, device=like.device).t()[:, :, None]  # (n_spans, 1) each
    frames = torch.arange(first, last, device=like.device)
    hidden = (frames < starts) | (frames >= ends)
    return torch.zeros_like(hidden, dtype=like.dtype).masked_fill_(hidden, -torch.inf)[None, None]
