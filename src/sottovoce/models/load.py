"""Load models by name or path, with formats recognised by content; the bundled model `nano`; published
alignment heads.

`nano`, a toy for tests and demos (docs/nano.md), is a compact safetensors file in float16 that omits what
can be computed and all untrained vocabulary rows, which share one embedding that never wins.

Source of the alignment heads, as (decoder layer, head) pairs: the masks in openai-whisper 20250625,
`whisper/__init__.py` (gzip under base85); whisper.cpp's `g_aheads_*` are the same.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sottovoce.errors import CheckpointError, cause_of
from sottovoce.models.checkpoint.base import Checkpoint, CtcWeights, check_dims, validated
from sottovoce.models.checkpoint.ctranslate2 import MODEL, N_HEAD, is_model_head, read_ctranslate2
from sottovoce.models.checkpoint.ggml import MAGIC, read_ggml
from sottovoce.models.checkpoint.huggingface import has_weights, read_huggingface
from sottovoce.models.checkpoint.openai import dims_from_mapping, read_openai
from sottovoce.models.checkpoint.writing import whole_file
from sottovoce.models.ctc_head import ctc_head_of
from sottovoce.models.dims import AlignmentHeads, EncoderMode, ModelDims
from sottovoce.models.sources.find import Sources, local_path, resolve
from sottovoce.models.sources.names import NANO_ASSET
from sottovoce.models.whisper import sinusoids

ASSET = NANO_ASSET
METADATA_KEY = "sottovoce"
TAIL_S = 0.0
"""nano was trained on windows that end with the speech."""
ENCODER_MODE = EncoderMode(tail_s=TAIL_S, bucket_s=0.5)
"""Everything is recomputed at every update: the encoder is small."""
EMBEDDING = "decoder.token_embedding"
POSITIONS = "encoder.positional_embedding"
CTC = "ctc_head"


def is_compact(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            return METADATA_KEY in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def read_compact(path: Path = ASSET) -> Checkpoint:
    """Read a compact file; embeddings are expanded to the whole vocabulary.

    Raises:
        CheckpointError: the file is damaged or has other shapes.
    """
    source = str(path)
    metadata, tensors = _load(path)
    dims = dims_from_mapping(metadata.get("dims"), source)
    check_dims(dims, source)
    tokens = _integers(metadata.get("token_ids"), "token_ids", source)
    tensors[f"{EMBEDDING}.weight"] = _spread(tensors, tokens, dims, source)
    tensors[POSITIONS] = sinusoids(dims.n_audio_ctx, dims.n_audio_state)
    checkpoint = Checkpoint(
        name=str(metadata.get("name", path.stem)),
        dims=dims,
        ctc_head=_ctc_weights(metadata, tensors, source),
        tensors=tensors,
        alignment_heads=_stored_heads(metadata.get("alignment_heads"), source),
        trained_tokens=tokens,
        languages=_strings(metadata.get("languages"), "languages", source),
        tail_s=TAIL_S,
        encoder_mode=ENCODER_MODE,
    )
    return validated(checkpoint, source)


def compact_languages(path: Path = ASSET) -> tuple[str, ...] | None:
    """Read the trained languages from the header of a compact file; None: those of its vocabulary.

    Raises:
        CheckpointError: the file cannot be read.
    """
    source = str(path)
    return _strings(_load(path, with_tensors=False)[0].get("languages"), "languages", source)


def save_compact(checkpoint: Checkpoint, path: Path) -> None:
    """Write the compact form; all rows outside `trained_tokens` are stored as one.

    Raises:
        CheckpointError: `trained_tokens` is None.
    """
    tokens = checkpoint.trained_tokens
    if tokens is None:
        raise CheckpointError(f"{checkpoint.name}: trained_tokens is unknown, the compact form needs it")
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name != POSITIONS}
    table = tensors.pop(f"{EMBEDDING}.weight")
    unused = sorted(set(range(table.shape[0])) - set(tokens))
    tensors[f"{EMBEDDING}.rows"] = table[list(tokens)]
    tensors[f"{EMBEDDING}.unused"] = table[unused[0]] if unused else torch.zeros_like(table[0])
    metadata: dict[str, object] = {
        "name": checkpoint.name,
        "dims": asdict(checkpoint.dims),
        "alignment_heads": checkpoint.alignment_heads,
        "languages": checkpoint.languages,
        "token_ids": tokens,
    }
    if checkpoint.ctc_head is not None:
        if checkpoint.ctc_head.convolutions:
            raise CheckpointError(f"{checkpoint.name}: the compact form keeps linear CTC heads alone")
        metadata |= {"ctc_vocab": checkpoint.ctc_head.labels, "ctc_blank": checkpoint.ctc_head.blank}
        tensors |= {f"{CTC}.weight": checkpoint.ctc_head.weight, f"{CTC}.bias": checkpoint.ctc_head.bias}
    halves = {name: tensor.to(torch.float16).contiguous() for name, tensor in tensors.items()}
    with whole_file(path) as unfinished:
        save_file(halves, unfinished, metadata={METADATA_KEY: json.dumps(metadata)})


def _load(path: Path, *, with_tensors: bool = True) -> tuple[dict[str, object], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get(METADATA_KEY, "null"))
            names = file.keys() if with_tensors else ()
            tensors = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({cause_of(error)})") from error
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{path}: no metadata under {METADATA_KEY!r}, expected a JSON object")
    return metadata, tensors


def _spread(tensors: dict[str, Tensor], tokens: tuple[int, ...], dims: ModelDims, source: str) -> Tensor:
    rows = tensors.pop(f"{EMBEDDING}.rows", None)
    unused = tensors.pop(f"{EMBEDDING}.unused", None)
    expected = (len(tokens), dims.n_text_state)
    if rows is None or tuple(rows.shape) != expected:
        found = None if rows is None else tuple(rows.shape)
        raise CheckpointError(f"{source}: tensor {EMBEDDING}.rows has shape {found}, expected {expected}")
    if unused is None or tuple(unused.shape) != expected[1:]:
        found = None if unused is None else tuple(unused.shape)
        raise CheckpointError(
            f"{source}: tensor {EMBEDDING}.unused has shape {found}, expected {expected[1:]}"
        )
    if len(set(tokens)) != len(tokens) or not all(0 <= token < dims.n_vocab for token in tokens):
        raise CheckpointError(f"{source}: token_ids repeat or leave the vocabulary of {dims.n_vocab}")
    table = unused.expand(dims.n_vocab, -1).clone()
    table[list(tokens)] = rows.to(table.dtype)
    return table


def _ctc_weights(metadata: dict[str, object], tensors: dict[str, Tensor], source: str) -> CtcWeights | None:
    weight = tensors.pop(f"{CTC}.weight", None)
    bias = tensors.pop(f"{CTC}.bias", None)
    labels = _strings(metadata.get("ctc_vocab"), "ctc_vocab", source)
    if weight is None or bias is None or labels is None:
        return None
    blank = metadata.get("ctc_blank")
    if type(blank) is not int:
        raise CheckpointError(f"{source}: ctc_blank is {blank!r}, expected an integer")
    return CtcWeights(weight=weight, bias=bias, labels=labels, blank=blank)


def _integers(found: object, name: str, source: str) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(item) is int for item in found):
        raise CheckpointError(f"{source}: {name} is no list of integers")
    return tuple(found)


def _strings(found: object, name: str, source: str) -> tuple[str, ...] | None:
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise CheckpointError(f"{source}: {name} is no list of strings")
    return tuple(found)


def _stored_heads(found: object, source: str) -> tuple[tuple[int, int], ...] | None:
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in found):
        raise CheckpointError(f"{source}: alignment_heads is no list of (layer, head) pairs")
    pairs = [_integers(pair, "alignment_heads", source) for pair in found]
    return tuple((layer, head) for layer, head in pairs)


# fmt: off
TINY_EN: AlignmentHeads = (
    (1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4),
)
TINY: AlignmentHeads = ((2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5))
BASE_EN: AlignmentHeads = ((3, 3), (4, 7), (5, 1), (5, 5), (5, 7))
BASE: AlignmentHeads = ((3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6))
SMALL_EN: AlignmentHeads = (
    (6, 6), (7, 0), (7, 3), (7, 8), (8, 2), (8, 5), (8, 7), (9, 0), (9, 4), (9, 8), (9, 10), (10, 0),
    (10, 1), (10, 2), (10, 3), (10, 6), (10, 11), (11, 2), (11, 4),
)
SMALL: AlignmentHeads = (
    (5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5),
)
MEDIUM_EN: AlignmentHeads = (
    (11, 4), (14, 1), (14, 12), (14, 14), (15, 4), (16, 0), (16, 4), (16, 9), (17, 12), (17, 14),
    (18, 7), (18, 10), (18, 15), (20, 0), (20, 3), (20, 9), (20, 14), (21, 12),
)
MEDIUM: AlignmentHeads = ((13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4))
LARGE_V1: AlignmentHeads = (
    (9, 19), (11, 2), (11, 4), (11, 17), (22, 7), (22, 11), (22, 17), (23, 2), (23, 15),
)
LARGE_V2: AlignmentHeads = (
    (10, 12), (13, 17), (16, 11), (16, 12), (16, 13), (17, 15), (17, 16), (18, 4), (18, 11), (18, 19),
    (19, 11), (21, 2), (21, 3), (22, 3), (22, 9), (22, 12), (23, 5), (23, 7), (23, 13), (25, 5),
    (26, 1), (26, 12), (27, 15),
)
LARGE_V3: AlignmentHeads = (
    (7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1), (25, 6),
)
LARGE_V3_TURBO: AlignmentHeads = ((2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14))
# fmt: on

ENGLISH, LANGUAGES_99, LANGUAGES_100 = 51864, 51865, 51866
HEADS = MappingProxyType(
    {
        "tiny.en": (4, 6, ENGLISH, TINY_EN),
        "tiny": (4, 6, LANGUAGES_99, TINY),
        "base.en": (6, 8, ENGLISH, BASE_EN),
        "base": (6, 8, LANGUAGES_99, BASE),
        "small.en": (12, 12, ENGLISH, SMALL_EN),
        "small": (12, 12, LANGUAGES_99, SMALL),
        "medium.en": (24, 16, ENGLISH, MEDIUM_EN),
        "medium": (24, 16, LANGUAGES_99, MEDIUM),
        "large-v1": (32, 20, LANGUAGES_99, LARGE_V1),
        "large-v2": (32, 20, LANGUAGES_99, LARGE_V2),
        "large-v3": (32, 20, LANGUAGES_100, LARGE_V3),
        "large": (32, 20, LANGUAGES_100, LARGE_V3),
        "large-v3-turbo": (4, 20, LANGUAGES_100, LARGE_V3_TURBO),
        "turbo": (4, 20, LANGUAGES_100, LARGE_V3_TURBO),
    }
)
"""Name to (decoder layers, heads a layer, size of the vocabulary, alignment heads)."""

BY_SIZE = MappingProxyType(
    {(layers, heads, vocabulary): found for layers, heads, vocabulary, found in HEADS.values()}
)
"""Of models of one size the later in `HEADS`: large-v2 hides large-v1, which needs its name."""
FIRST_LARGE = re.compile(r"(^|[^a-z])(large-v1|whisper-large$)")


def published_heads(name: str, dims: ModelDims) -> AlignmentHeads | None:
    """Look up the alignment heads of the published model with these dimensions, or None.

    name: such as "openai/whisper-large" or a file's stem; only distinguishes large-v1 and large-v2.
    """
    size = (dims.n_text_layer, dims.n_text_head, dims.n_vocab)
    heads = BY_SIZE.get(size)
    return LARGE_V1 if heads is LARGE_V2 and FIRST_LARGE.search(name) else heads


ZIP = b"PK\x03\x04"
PICKLE = b"\x80\x02"
"""First bytes of a `.pt` file of PyTorch before 1.6."""


def load_checkpoint(name_or_path: str | Path, sources: Sources | None = None) -> Checkpoint:
    """Find a model and read it; a local path has precedence over a name.

    Raises:
        ModelNotFoundError: no source has the name.
        CheckpointError: a file cannot be read.
        OptionError: contradicting sources.
    """
    is_local = local_path(name_or_path) is not None
    path = resolve(name_or_path, sources)
    checkpoint = open_checkpoint(path)
    name = checkpoint.name if is_local else str(name_or_path)
    heads = checkpoint.alignment_heads or published_heads(name, checkpoint.dims)
    return replace(checkpoint, name=name, alignment_heads=heads, ctc_head=ctc_head_of(checkpoint, path))


def open_checkpoint(path: Path) -> Checkpoint:
    """Read an OpenAI `.pt`, a Hugging Face or CTranslate2 folder, a ggml `.bin` or a compact file.

    Raises:
        CheckpointError: the file is damaged, of no known kind, or not readable.
    """
    if path.is_dir():
        is_ctranslate2 = (path / MODEL).exists() and not has_weights(path)
        return read_ctranslate2(path) if is_ctranslate2 else read_huggingface(path)
    head = _first_bytes(path, N_HEAD)
    if is_model_head(head):
        return read_ctranslate2(path)
    if head.startswith(MAGIC):
        return read_ggml(path)
    if head.startswith((ZIP, PICKLE)):
        return read_openai(path)
    if head[8:9] == b"{":
        if is_compact(path):
            return read_compact(path)
        raise CheckpointError(f"{path}: safetensors without dimensions, give the folder with its config.json")
    raise CheckpointError(
        f"{path}: begins with {head[:4]!r}, "
        "expected a PyTorch, safetensors, ggml or CTranslate2 file, or a folder"
    )


def _first_bytes(path: Path, n_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(n_bytes)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({cause_of(error)})") from error
