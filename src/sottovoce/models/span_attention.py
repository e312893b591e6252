"""The decoder after one token, for many spans of one audio: what the language probe reads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.models.attention import KeysValues, MultiHeadAttention
from sottovoce.models.whisper import TextDecoder


class SpanAttention:
    """`DecoderAttention` of one token at position 0; row r attends to the frames [start, end) of span r.

    The softmax of self-attention over a single key is 1, so its output is the value; and up to the first
    cross-attention all rows are one.
    """

    def __init__(self, keys_values: Sequence[KeysValues], spans: Sequence[tuple[int, int]]) -> None:
        self._keys_values = keys_values
        self._spans = spans
        self.positions = torch.zeros(1, dtype=torch.int64, device=keys_values[0][0].device)

    def over_text(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Return the value of each row: (1, 1 or n_spans, d)."""
        value: Tensor = attention.out(attention.value(x))
        return value

    def over_audio(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        """Return the cross-attention (1, n_spans, d) to each row's span.

        Span by span and in float32: on a CPU faster than one product with all frames under a mask, and than
        its kernel for single queries in bfloat16.
        """
        keys, values = self._keys_values[layer]
        queries = attention.queries(x).expand(-1, -1, len(self._spans), -1)
        attended = [
            F.scaled_dot_product_attention(
                query, keys[:, :, start:end].float(), values[:, :, start:end].float()
            )
            for query, (start, end) in zip(torch.split(queries.float(), 1, dim=2), self._spans, strict=True)
        ]
        return attention.merged(torch.cat(attended, dim=2).to(queries.dtype))


def first_token_logits(
    decoder: TextDecoder,
    keys_values: Sequence[KeysValues],
    spans: Sequence[tuple[int, int]],
    *,
    token: int,
    vocabulary: Tensor,
) -> Tensor:
    """Return logits (n_spans, n_rows) float32 after `token` at position 0, one row a span of one audio.

    keys_values: per layer, (1, H, n_frames, d_head) twice. spans: frames [start, end), at least one span,
    none of them empty. vocabulary: (n_rows,) int64, on the decoder's device.
    """
    tokens = torch.tensor([[token]], device=vocabulary.device)
    return decoder.logits(decoder(tokens, SpanAttention(keys_values, spans)), vocabulary)[0]
