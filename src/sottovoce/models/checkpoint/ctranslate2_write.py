"""Write CTranslate2's folders: what `ctranslate2.models.Whisper` and faster-whisper load.

Weights in eight bits have a scale a row, in sixteen one scale; the scale is what a weight is multiplied
with (CTranslate2 4.8, `python/ctranslate2/specs/model_spec.py`, `_quantize`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.ctranslate2 import MODEL
from sottovoce.models.checkpoint.ctranslate2_file import write_model
from sottovoce.models.checkpoint.ctranslate2_layout import EMBEDDINGS, HEADS, PROJECTION, WRITTEN, layout
from sottovoce.models.checkpoint.huggingface import write_features
from sottovoce.models.checkpoint.loss import QuantizationLoss, TensorLoss, tensor_loss
from sottovoce.models.checkpoint.tokenizer_json import (
    has_vocabulary,
    suppressed_first,
    suppressed_tokens,
    tokens_of,
    write_tokenizer,
)
from sottovoce.models.checkpoint.writing import write_json
from sottovoce.models.dims import upper_half_heads
from sottovoce.text.tokenizer import Tokenizer

LARGEST_INT8 = 127
LARGEST_INT16 = 1 << 10
"""Ten bits, so that products of two leave room for their sum in 32."""


@dataclass(frozen=True, slots=True)
class NumberType:
    """What a folder stores. weights: of matrices and convolutions; rest: of everything else."""

    weights: torch.dtype
    rest: torch.dtype


TYPES = MappingProxyType(
    {
        "float32": NumberType(torch.float32, torch.float32),
        "float16": NumberType(torch.float16, torch.float16),
        "bfloat16": NumberType(torch.bfloat16, torch.bfloat16),
        "int8": NumberType(torch.int8, torch.float32),
        "int8_float32": NumberType(torch.int8, torch.float32),
        "int8_float16": NumberType(torch.int8, torch.float16),
        "int8_bfloat16": NumberType(torch.int8, torch.bfloat16),
        "int16": NumberType(torch.int16, torch.float32),
    }
)
"""Under the names of CTranslate2's converters."""


def save_ctranslate2(
    checkpoint: Checkpoint, folder: Path, number: str = "float16"
) -> QuantizationLoss | None:
    """Write a folder; return what quantising cost, if the type does. number: a name in `TYPES`.

    The vocabulary and the tokenizer are written for Whisper's own vocabularies; CTranslate2 wants them.

    Raises: OptionError for another number type.
    """
    kind = TYPES.get(number)
    if kind is None:
        raise OptionError(f"CTranslate2 type {number!r} given, expected one of {', '.join(TYPES)}")
    folder.mkdir(parents=True, exist_ok=True)
    variables: dict[str, Tensor] = {}
    losses: list[TensorLoss] = []
    for name, tensor in _stacked(checkpoint).items():
        stored = _stored(name, tensor, kind)
        losses.append(_loss(name, tensor, stored))
        variables |= stored
    write_model(folder / MODEL, variables | _properties(checkpoint), {PROJECTION: EMBEDDINGS})
    write_json(folder / "config.json", _config(checkpoint))
    write_features(folder, checkpoint.dims)
    if has_vocabulary(checkpoint.dims):
        tokenizer = Tokenizer.for_model(checkpoint.dims.n_vocab)
        write_json(folder / "vocabulary.json", tokens_of(tokenizer), indent=None)
        write_tokenizer(tokenizer, folder)
    return QuantizationLoss.of(losses)


def quantize_int8(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise weights (n_out, ...) to int8 values of that shape, and float32 scales (n_out,).

    A value is the weight times the scale of its row.
    """
    rows = weights.float().flatten(1)
    largest = rows.abs().amax(dim=1)
    largest = torch.where(largest > 0, largest, LARGEST_INT8)
    largest = largest.clamp(min=LARGEST_INT8 / torch.finfo(torch.float32).max)
    # A true division: torch takes a number over a tensor as the number times the inverse.
    scales = torch.full_like(largest, LARGEST_INT8) / largest
    return (rows * scales[:, None]).round().to(torch.int8).view(weights.shape), scales


def quantize_int16(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise weights of any shape to int16 values of that shape and one scale, float32 of shape ()."""
    largest = weights.float().abs().max()
    scale = LARGEST_INT16 / torch.where(largest > 0, largest, 1.0)
    return (weights.float() * scale).round().to(torch.int16), scale


def _stacked(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Variables as CTranslate2 stacks them; tensors that it has no place for under their own names."""
    left = dict(checkpoint.tensors)
    stacked: dict[str, Tensor] = {}
    for name, parts in layout(checkpoint.dims).items():
        found = [left.pop(part) if part in left else _no_bias(part, checkpoint) for part in parts]
        present = [tensor for tensor in found if tensor is not None]
        if present:
            stacked[name] = torch.cat(present) if len(present) > 1 else present[0]
    return stacked | left


def _no_bias(name: str, checkpoint: Checkpoint) -> Tensor | None:
    """Zeros in the place of a key's bias."""
    return torch.zeros(checkpoint.dims.n_text_state) if name.endswith("key.bias") else None


def _stored(name: str, tensor: Tensor, kind: NumberType) -> dict[str, Tensor]:
    """A variable in the numbers of the folder, with its scale where it has one."""
    if not name.endswith("/weight"):
        return {name: tensor.to(kind.rest)}
    if kind.weights.is_floating_point:
        return {name: tensor.to(kind.weights)}
    values, scale = (quantize_int8 if kind.weights == torch.int8 else quantize_int16)(tensor)
    return {name: values, f"{name}_scale": scale}


def _loss(name: str, tensor: Tensor, stored: dict[str, Tensor]) -> TensorLoss:
    after = sum(part.nbytes for part in stored.values())
    scale = stored.get(f"{name}_scale")
    if scale is None:
        return TensorLoss(name, tensor.nbytes, after)
    packed = stored[name].float() / scale.view(-1, *[1] * (tensor.ndim - 1))
    weights = tensor.float().numpy()
    return tensor_loss(name, weights, packed.numpy(), bytes_before=tensor.nbytes, bytes_after=after)


def _properties(checkpoint: Checkpoint) -> dict[str, Tensor]:
    heads = {name: getattr(checkpoint.dims, ours) for ours, name in HEADS.items()}
    # The heads of CTranslate2's own alignment for translation: none, Whisper's are in config.json.
    heads |= {"decoder/alignment_heads": 1, "decoder/alignment_layer": -1}
    counts = {name: torch.tensor(value, dtype=torch.int16) for name, value in heads.items()}
    return counts | {name: torch.tensor(value, dtype=torch.int8) for name, value in WRITTEN.items()}


def _config(checkpoint: Checkpoint) -> dict[str, object]:
    heads = checkpoint.alignment_heads or upper_half_heads(checkpoint.dims)
    config: dict[str, object] = {"alignment_heads": [list(pair) for pair in heads]}
    if not has_vocabulary(checkpoint.dims):
        return config | {"lang_ids": [], "suppress_ids": [], "suppress_ids_begin": []}
    tokenizer = Tokenizer.for_model(checkpoint.dims.n_vocab)
    codes = checkpoint.languages or tokenizer.language_codes
    return config | {
        "lang_ids": [tokenizer.language_token(code) for code in codes if tokenizer.is_multilingual],
        "suppress_ids": list(suppressed_tokens(tokenizer)),
        "suppress_ids_begin": list(suppressed_first(tokenizer)),
    }
