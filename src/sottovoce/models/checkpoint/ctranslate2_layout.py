"""Where CTranslate2 keeps Whisper's weights: its variables, and the tensors of OpenAI that each one stacks.

Query, key and value of a self-attention are one matrix, and so are key and value of a cross-attention.
Source: CTranslate2 4.8, `python/ctranslate2/specs/transformer_spec.py` and `converters/transformers.py`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TypeAlias

from sottovoce.models.dims import ModelDims

Layout: TypeAlias = dict[str, tuple[str, ...]]
"""Variable to the tensors whose rows it holds, in order."""

EMBEDDINGS = "decoder/embeddings/weight"
PROJECTION = "decoder/projection/weight"
"""The table of the logits: Whisper's is that of the embeddings, under another name."""
HEADS = MappingProxyType({"n_audio_head": "encoder/num_heads", "n_text_head": "decoder/num_heads"})

ACTIVATION = "decoder/activation"
GELU = 3
OLD_GELU = 1
"""GELU before revision 3, which gave its variants numbers of their own."""
WRITTEN = MappingProxyType(
    {
        ACTIVATION: GELU,
        "decoder/pre_norm": 1,
        "decoder/scale_embeddings": 0,
        "decoder/start_from_zero_embedding": 0,
    }
)
"""Properties of the network that Whisper has, in eight bits."""
FREE = frozenset({*HEADS.values(), "decoder/alignment_heads", "decoder/alignment_layer"})
"""Properties that may have any value; others of which nothing is known must be off (0)."""


def layout(dims: ModelDims) -> Layout:
    """Every variable of a model of these dimensions; a key's bias is named too, though Whisper has none."""
    variables: Layout = {
        EMBEDDINGS: ("decoder.token_embedding.weight",),
        **_plain("encoder/conv1", "encoder.conv1"),
        **_plain("encoder/conv2", "encoder.conv2"),
        **_norm("encoder/layer_norm", "encoder.ln_post"),
        **_norm("decoder/layer_norm", "decoder.ln"),
    }
    for side, n_layer in (("encoder", dims.n_audio_layer), ("decoder", dims.n_text_layer)):
        variables[f"{side}/position_encodings/encodings"] = (f"{side}.positional_embedding",)
        for i in range(n_layer):
            variables |= _block(f"{side}/layer_{i}", f"{side}.blocks.{i}", with_cross=side == "decoder")
    return variables


def _block(theirs: str, ours: str, *, with_cross: bool) -> Layout:
    variables = _attention(f"{theirs}/self_attention", f"{ours}.attn", (("query", "key", "value"), ("out",)))
    if with_cross:
        rows = (("query",), ("key", "value"), ("out",))
        variables |= _attention(f"{theirs}/attention", f"{ours}.cross_attn", rows)
    return {
        **variables,
        **_plain(f"{theirs}/ffn/linear_0", f"{ours}.mlp.0"),
        **_plain(f"{theirs}/ffn/linear_1", f"{ours}.mlp.2"),
        **_norm(f"{theirs}/ffn/layer_norm", f"{ours}.mlp_ln"),
    }


def _attention(theirs: str, ours: str, linears: tuple[tuple[str, ...], ...]) -> Layout:
    variables = _norm(f"{theirs}/layer_norm", f"{ours}_ln")
    for i, parts in enumerate(linears):
        for kind in ("weight", "bias"):
            variables[f"{theirs}/linear_{i}/{kind}"] = tuple(f"{ours}.{part}.{kind}" for part in parts)
    return variables


def _plain(theirs: str, ours: str) -> Layout:
    return {f"{theirs}/{kind}": (f"{ours}.{kind}",) for kind in ("weight", "bias")}


def _norm(theirs: str, ours: str) -> Layout:
    return {f"{theirs}/gamma": (f"{ours}.weight",), f"{theirs}/beta": (f"{ours}.bias",)}
