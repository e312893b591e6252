"""Read and write Hugging Face folders: config.json, safetensors or pickles, and Whisper's tokenizer.

Names are those of transformers' `WhisperForConditionalGeneration`. Token bytes are written as GPT-2 does:
printable Latin-1 as itself, other bytes from U+0100 on. BPE merges follow from tiktoken's ranks: a token
joins the two pieces that the lower ranks leave.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from sottovoce.errors import CheckpointError, cause_of
from sottovoce.models.checkpoint.base import (
    Array,
    Checkpoint,
    Codec,
    check_dims,
    expected_shapes,
    plain_dtype,
    validated,
    with_dtype,
    write_json,
)
from sottovoce.models.checkpoint.formats import WEIGHT_FILES
from sottovoce.models.checkpoint.safetensors_file import read_safetensors, write_safetensors
from sottovoce.models.checkpoint.torch_file import read_torch_file
from sottovoce.models.dims import AlignmentHeads, ModelDims
from sottovoce.text.files import from_plain, read_text
from sottovoce.text.tokenizer import N_VOCAB_99, N_VOCAB_100, N_VOCAB_ENGLISH, Tokenizer

BYTE_LEVEL: Mapping[str, object] = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def has_vocabulary(dims: ModelDims) -> bool:
    return dims.n_vocab in (N_VOCAB_ENGLISH, N_VOCAB_99, N_VOCAB_100)


def tokens_of(tokenizer: Tokenizer) -> list[str]:
    """Return every token by id, special tokens and timestamps included."""
    text = [_shown(tokenizer.token_bytes(token)) for token in range(tokenizer.eot)]
    return text + [tokenizer.decode_with_timestamps([token]) for token in _specials(tokenizer)]


@cache
def merges(is_multilingual: bool) -> tuple[tuple[str, str], ...]:
    """Return the BPE merges of Whisper's vocabularies, by rank."""
    tokenizer = Tokenizer.for_model(N_VOCAB_99 if is_multilingual else N_VOCAB_ENGLISH)
    ranks = {tokenizer.token_bytes(token): token for token in range(tokenizer.eot)}
    halves = (_halves(piece, ranks) for piece in ranks if len(piece) > 1)
    return tuple((_shown(left), _shown(right)) for left, right in halves)


def suppressed_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return ids that Whisper never writes: sound annotations, and special tokens of the prompt."""
    special = (tokenizer.sot, tokenizer.translate, tokenizer.transcribe, tokenizer.sot_lm)
    others = (tokenizer.sot_prev, tokenizer.no_speech)
    return tuple(sorted({*tokenizer.non_speech_tokens, *special, *others}))


def suppressed_first(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return ids that do not begin a transcript: the blank and the end of text."""
    return (tokenizer.blank, tokenizer.eot)


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    write_json(folder / "tokenizer.json", _document(tokenizer), indent=None)


def _document(tokenizer: Tokenizer) -> dict[str, object]:
    tokens = tokens_of(tokenizer)
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {token: i for i, token in enumerate(tokens[: tokenizer.eot])},
        "merges": merges(tokenizer.is_multilingual),
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(tokenizer, i, tokens[i]) for i in _specials(tokenizer)],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "post_processor": _template(tokenizer, tokens),
        "decoder": BYTE_LEVEL,
        "model": model,
    }


def _added(tokenizer: Tokenizer, token: int, content: str) -> dict[str, object]:
    plain = tokenizer.is_timestamp(token)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": content, **flags, "special": not plain}


def _template(tokenizer: Tokenizer, tokens: list[str]) -> dict[str, object]:
    around = (tokenizer.sot, tokenizer.no_timestamps, tokenizer.eot)
    sot, no_timestamps, eot = ({"SpecialToken": {"id": tokens[i], "type_id": 0}} for i in around)
    single = [sot, no_timestamps, {"Sequence": {"id": "A", "type_id": 0}}, eot]
    special = {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in around}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single[:3], {"Sequence": {"id": "B", "type_id": 0}}, eot],
        "special_tokens": special,
    }


def _specials(tokenizer: Tokenizer) -> range:
    return range(tokenizer.eot, tokenizer.n_vocab)


def _halves(piece: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    limit = ranks[piece]
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while len(parts) > 2:
        joined = [ranks.get(left + right, limit) for left, right in pairwise(parts)]
        lowest = min(range(len(joined)), key=joined.__getitem__)
        parts[lowest : lowest + 2] = [parts[lowest] + parts[lowest + 1]]
    left, right = parts
    return left, right


def _shown(piece: bytes) -> str:
    return piece.decode("latin-1").translate(_characters())


@cache
def _characters() -> dict[int, str]:
    return dict(zip(_unprinted(), map(chr, range(0x100, 0x200)), strict=False))


def _unprinted() -> Iterator[int]:
    yield from range(0x21)
    yield from range(0x7F, 0xA1)
    yield 0xAD


logger = logging.getLogger(__name__)

DIMS_IN_CONFIG = {
    "n_mels": "num_mel_bins",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions",
    "n_text_state": "d_model",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}
"""OpenAI's names, and those of transformers' `WhisperConfig`."""

RENAMED = {
    "positional_embedding": "embed_positions.weight",
    "token_embedding": "embed_tokens",
    ".ln_post.": ".layer_norm.",
    ".ln.": ".layer_norm.",
    ".blocks.": ".layers.",
    ".cross_attn_ln.": ".encoder_attn_layer_norm.",
    ".attn_ln.": ".self_attn_layer_norm.",
    ".mlp_ln.": ".final_layer_norm.",
    ".cross_attn.": ".encoder_attn.",
    ".attn.": ".self_attn.",
    ".query.": ".q_proj.",
    ".key.": ".k_proj.",
    ".value.": ".v_proj.",
    ".out.": ".out_proj.",
    ".mlp.0.": ".fc1.",
    ".mlp.2.": ".fc2.",
}
"""Parts of OpenAI's names, and what they are in those of transformers."""
PROJECTION = "proj_out.weight"
TOKENIZER = {
    "tokenizer_class": "WhisperTokenizer",
    "processor_class": "WhisperProcessor",
    "model_max_length": 1024,
    "add_prefix_space": False,
    **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>"),
}


def read_huggingface(folder: Path) -> Checkpoint:
    """Read a folder, with the alignment heads of generation_config.json if any. Raises: CheckpointError."""
    source = str(folder)
    config = read_json(folder / "config.json")
    _check_config(config, source)
    dims = _dims(config, source)
    tensors = _openai_names(_read_weights(folder), dims, source)
    generation = folder / "generation_config.json"
    heads = alignment_heads(read_json(generation), dims, source) if generation.exists() else None
    name = folder.resolve().name
    checkpoint = Checkpoint(name, dims=dims, tensors=tensors, alignment_heads=heads)
    return validated(checkpoint, source)


def save_huggingface(checkpoint: Checkpoint, folder: Path, dtype: str = "float32") -> None:
    """Write a folder for transformers, with the tokenizer if the vocabulary is Whisper's.

    dtype: float32, float16 or bfloat16.
    """
    number = plain_dtype(dtype, "hf")
    folder.mkdir(parents=True, exist_ok=True)
    dims = checkpoint.dims
    tensors = {
        transformers_name(name): with_dtype(tensor, number) for name, tensor in checkpoint.tensors.items()
    }
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    special = _special_tokens(dims)
    write_json(folder / "config.json", _config(dims) | special)
    write_json(folder / "generation_config.json", special | _generation(checkpoint))
    write_features(folder, dims)
    if has_vocabulary(dims):
        write_tokenizer(Tokenizer.for_model(dims.n_vocab), folder)
        write_json(folder / "tokenizer_config.json", TOKENIZER)


CODEC = Codec(read_huggingface, save_huggingface)


def write_features(folder: Path, dims: ModelDims) -> None:
    features = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": dims.n_mels,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": max(1, dims.n_audio_ctx // 50),
        "padding_value": 0.0,
        "return_attention_mask": False,
    }
    write_json(folder / "preprocessor_config.json", features)


def transformers_name(name: str) -> str:
    """Translate a name: `decoder.blocks.0.cross_attn.query.weight` is
    `model.decoder.layers.0.encoder_attn.q_proj.weight`.
    """
    for ours, theirs in RENAMED.items():
        name = name.replace(ours, theirs)
    return f"model.{name}"


def _read_weights(folder: Path) -> dict[str, Array]:
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return _read_file(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _read_shards(index)
    raise CheckpointError(
        f"{folder}: no weights, expected {' or '.join(WEIGHT_FILES)}, whole or with an index"
    )


def _read_shards(index: Path) -> dict[str, Array]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is missing, expected tensor names to file names")
    tensors: dict[str, Array] = {}
    for shard in sorted({str(name) for name in weight_map.values()}):
        if Path(shard).name != shard:
            raise CheckpointError(f"{index}: shard {shard!r} is no file name in the same folder")
        tensors |= _read_file(index.parent / shard)
    missing = sorted(set(map(str, weight_map)) - set(tensors))
    if missing:
        raise CheckpointError(f"{index}: tensor {missing[0]} is in none of the shards")
    return tensors


def _read_file(path: Path) -> dict[str, Array]:
    if path.suffix == ".safetensors":
        return read_safetensors(path)[1]
    content = read_torch_file(path)
    if not isinstance(content, Mapping) or not all(isinstance(item, np.ndarray) for item in content.values()):
        raise CheckpointError(f"{path}: expected a mapping of names to tensors")
    return {str(name): tensor for name, tensor in content.items()}


def _openai_names(tensors: dict[str, Array], dims: ModelDims, source: str) -> dict[str, Array]:
    """Rename tensors, with or without "model." before their names; unknown ones keep theirs."""
    projection = tensors.pop(PROJECTION, None)
    ours = {transformers_name(name): name for name in expected_shapes(dims)}
    renamed = {
        ours.get(f"model.{name.removeprefix('model.')}", name): tensor for name, tensor in tensors.items()
    }
    table = renamed.get("decoder.token_embedding.weight")
    if projection is not None and (table is None or not np.array_equal(projection, table)):
        raise CheckpointError(f"{source}: {PROJECTION} differs from the token embedding, expected them tied")
    return renamed


def _check_config(config: Mapping[str, object], source: str) -> None:
    for key, expected in (
        ("model_type", "whisper"),
        ("scale_embedding", False),
        ("activation_function", "gelu"),
    ):
        value = config.get(key, expected)
        if value != expected:
            raise CheckpointError(f"{source}: {key} in config.json is {value!r}, expected {expected!r}")


def _dims(config: Mapping[str, object], source: str) -> ModelDims:
    where = f"{source}: {{}} in config.json"
    dims = ModelDims(
        **{
            ours: from_plain(int, config.get(theirs), where.format(theirs), CheckpointError)
            for ours, theirs in DIMS_IN_CONFIG.items()
        }
    )
    check_dims(dims, source)
    return dims


def _config(dims: ModelDims) -> dict[str, object]:
    sizes: dict[str, object] = {theirs: getattr(dims, ours) for ours, theirs in DIMS_IN_CONFIG.items()}
    return sizes | {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "encoder_ffn_dim": 4 * dims.n_audio_state,
        "decoder_ffn_dim": 4 * dims.n_text_state,
        "activation_function": "gelu",
        "scale_embedding": False,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
    }


def _special_tokens(dims: ModelDims) -> dict[str, object]:
    end = min(50_256 + int(dims.is_multilingual), dims.n_vocab - 1)
    start = min(end + 1, dims.n_vocab - 1)
    padding = {"pad_token_id": end, "bos_token_id": end, "eos_token_id": end}
    return {**padding, "decoder_start_token_id": start, "max_length": dims.n_text_ctx}


def _generation(checkpoint: Checkpoint) -> dict[str, object]:
    heads = checkpoint.alignment_heads
    named: dict[str, object] = {} if heads is None else {"alignment_heads": heads}
    if not has_vocabulary(checkpoint.dims):
        return named
    tokenizer = Tokenizer.for_model(checkpoint.dims.n_vocab)
    named |= {
        "is_multilingual": tokenizer.is_multilingual,
        "no_timestamps_token_id": tokenizer.no_timestamps,
        "prev_sot_token_id": tokenizer.sot_prev,
        "max_initial_timestamp_index": 50,
        "suppress_tokens": suppressed_tokens(tokenizer),
        "begin_suppress_tokens": suppressed_first(tokenizer),
    }
    if tokenizer.is_multilingual:
        codes = checkpoint.languages or tokenizer.language_codes
        named["lang_to_id"] = {f"<|{code}|>": tokenizer.language_token(code) for code in codes}
        # Without a language and a task, transformers would begin without a task token.
        named["task"] = "transcribe"
        named["task_to_id"] = {"transcribe": tokenizer.transcribe, "translate": tokenizer.translate}
    return named


def alignment_heads(generation: Mapping[str, object], dims: ModelDims, source: str) -> AlignmentHeads | None:
    """Return a folder's alignment heads; None, with a warning, if they do not fit the model.

    Some distilled models are published with their teachers' heads. Raises: CheckpointError: no (layer, head)
    pairs.
    """
    listed = generation.get("alignment_heads")
    if listed is None:
        return None
    heads = from_plain(tuple[tuple[int, int], ...], listed, f"{source}: alignment_heads", CheckpointError)
    if any(layer >= dims.n_text_layer or head >= dims.n_text_head for layer, head in heads):
        logger.warning("%s: alignment_heads name layers or heads that the model lacks: left out", source)
        return None
    return heads


def read_json(path: Path) -> Mapping[str, object]:
    try:
        document = json.loads(read_text(path, "a JSON object", CheckpointError))
    except CheckpointError:
        if path.exists():
            raise
        raise CheckpointError(
            f"{path.parent}: no {path.name}, expected a Hugging Face model folder"
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{path}: not readable as JSON ({cause_of(error)})") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path}: holds a {type(document).__name__}, expected a JSON object")
    return document
