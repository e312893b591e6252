"""What follows one token at position 0: a decoder step with everything left out that is known before.

With a single token the softmax of self-attention is over one key, so its output is the value; up to the
first cross-attention all rows are one. Several stretches of the audio are rows of one batch, and each
reads its own frames alone. It knows no cache and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.models.whisper import KeysValues, TextDecoder


def first_token_logits(
    decoder: TextDecoder,
    keys_values: Sequence[KeysValues],
    spans: Sequence[tuple[int, int]],
    *,
    token: int,
    vocabulary: Tensor,
) -> Tensor:
    """Logits (n_spans, n_rows) float32 after `token`; row r hears frames [start, end) of one audio alone.

    keys_values: per layer, (1, H, n_frames, d_head) twice. spans: at least one, none of them empty.
    vocabulary: (n_rows,) int64, on the decoder's device.
    """
    embedding = decoder.token_embedding
    row = embedding(torch.tensor([[token]], device=vocabulary.device))
    x = (row + decoder.positional_embedding[0]).to(embedding.dtype)  # (1, 1, d)
    for block, (keys, values) in zip(decoder.layers, keys_values, strict=True):
        x = x + block.attn.out(block.attn.value(block.attn_ln(x)))
        queries = block.cross_attn.queries(block.cross_attn_ln(x)).expand(-1, -1, len(spans), -1)
        x = x + block.cross_attn.out(_heard(queries, keys, values, spans))  # (1, n_spans, d)
        x = block.add_mlp(x)
    return decoder.logits(decoder.ln(x), vocabulary)[0]


def _heard(queries: Tensor, keys: Tensor, values: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """Attention of query r to the frames of span r: (1, n_spans, d).

    Span by span, and in float32: on a CPU quicker than one product with all frames under a mask, and than
    its kernel for single queries in bfloat16.
    """
    heard = [
        F.scaled_dot_product_attention(query, keys[:, :, start:end].float(), values[:, :, start:end].float())
        for query, (start, end) in zip(torch.split(queries.float(), 1, dim=2), spans, strict=True)
    ]
    return torch.cat(heard, dim=2).transpose(1, 2).flatten(2).to(queries.dtype)
