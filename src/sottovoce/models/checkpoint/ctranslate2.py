"""Read and write CTranslate2 folders of Whisper: `model.bin`, config.json and the vocabulary.

`model.bin` (little-endian) holds the specification's name, variables and aliases. A string is its length with
the closing zero (u16) and its bytes; a variable its name, rank (u8), dimensions (u32), type (u8), number of
bytes (u32) and values; an alias its name and that of a variable. Query, key and value of self-attention are
one matrix, as are key and value of cross-attention. int8 has a scale per row, int16 one.

Source: CTranslate2 4.8, `python/ctranslate2/specs/{model_spec,transformer_spec}.py`,
`converters/transformers.py` and `src/models/model.cc`.
"""

from __future__ import annotations

import json
import logging
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from sottovoce.errors import CheckpointError, OptionError, cause_of
from sottovoce.models.checkpoint.base import (
    BFLOAT16,
    MAX_RANK,
    Array,
    Checkpoint,
    Codec,
    Cursor,
    QuantizationLoss,
    Shape,
    StoredTensor,
    StoredTensors,
    TensorLoss,
    check_dims,
    cursor_over,
    dtype_name,
    expected_shapes,
    floats,
    tensor_loss,
    validated,
    with_dtype,
    write_json,
)
from sottovoce.models.checkpoint.base import DTYPES as PLAIN
from sottovoce.models.checkpoint.formats import CT2_MODEL
from sottovoce.models.checkpoint.huggingface import (
    alignment_heads,
    has_vocabulary,
    read_json,
    suppressed_first,
    suppressed_tokens,
    tokens_of,
    write_features,
    write_tokenizer,
)
from sottovoce.models.dims import AlignmentHeads, ModelDims, upper_half_heads
from sottovoce.text.files import from_plain, whole_file
from sottovoce.text.languages import language_codes
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Floats

logger = logging.getLogger(__name__)

VERSIONS = range(4, 7)
"""Of the binary layout: types have numbers since 4; 5 and 6 changed other files."""
SPECIFICATION = "WhisperSpec"
REVISIONS = range(1, 4)
DTYPES: tuple[np.dtype[np.generic], ...] = (*map(np.dtype, ("<f4", "i1", "<i2", "<i4", "<f2")), BFLOAT16)


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    shape: Shape
    dtype: np.dtype[np.generic]
    at: int

    @property
    def is_integer(self) -> bool:
        return self.dtype.kind == "i"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """An open `model.bin`. variables: by their names and aliases."""

    cursor: Cursor
    revision: int
    variables: Mapping[str, Variable]

    @property
    def source(self) -> str:
        return self.cursor.source

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        if name not in self.variables:
            raise CheckpointError(f"{self.source}: variable {name} is missing")
        shape = self.variables[name].shape
        if len(shape) != rank:
            raise CheckpointError(
                f"{self.source}: variable {name} has shape {shape}, expected {rank} dimensions"
            )
        return shape

    def integer(self, name: str) -> int:
        self.shape(name, 0)
        variable = self.variables[name]
        if not variable.is_integer:
            raise CheckpointError(
                f"{self.source}: variable {name} holds {dtype_name(variable.dtype)}, expected an integer"
            )
        return int(read_values(self.cursor, variable))

    def weights(self, name: str) -> StoredTensor:
        """Return a variable whose quantised rows are decoded when they are read."""
        variable = self.variables[name]
        values = read_values(self.cursor, variable)
        if not variable.is_integer:
            return StoredTensor(variable.shape, variable.dtype, lambda: values, values)
        # CTranslate2 multiplies by the inverse scale; this product is exact.
        inverse = np.float32(1) / self._scale(variable)
        inverses = inverse.reshape(-1, *[1] * (values.ndim - 1))
        decoded = lambda: values.astype(np.float32) * inverses  # noqa: E731
        return StoredTensor(variable.shape, np.dtype("<f4"), decoded, values)

    def _scale(self, variable: Variable) -> Floats:
        stored = self.variables.get(f"{variable.name}_scale")
        if stored is None and variable.dtype == np.int16:
            # The scale of int16 weights without a stored one (`global_int16_scale`).
            return np.array(1000.0, np.float32)
        n_rows = variable.shape[0] if variable.shape else 1
        if stored is None or stored.dtype != np.float32 or stored.shape not in ((), (1,), (n_rows,)):
            what = "nothing" if stored is None else f"{dtype_name(stored.dtype)} of shape {stored.shape}"
            raise CheckpointError(
                f"{self.source}: {variable.name} holds {dtype_name(variable.dtype)}, "
                f"expected {n_rows} float32 scales in another variable, got {what}"
            )
        scale = floats(read_values(self.cursor, stored))
        if not (np.isfinite(scale) & (scale > 0)).all():
            raise CheckpointError(f"{self.source}: {stored.name} holds scales that are not above 0")
        return scale


def read_contents(cursor: Cursor) -> ModelFile:
    """Read names, shapes and offsets of all variables, without values.

    Raises: CheckpointError: damaged, another model, or an unsupported version.
    """
    version = cursor.integer("the version", "I")
    _check_version("binary version", version, VERSIONS, cursor.source)
    specification = _string(cursor, "the specification's name")
    if specification != SPECIFICATION:
        raise CheckpointError(
            f"{cursor.source}: holds a {specification[:40]!r}, expected a {SPECIFICATION!r}"
        )
    revision = cursor.integer("the specification's revision", "I")
    _check_version("revision", revision, REVISIONS, cursor.source)
    variables: dict[str, Variable] = {}
    for _ in range(cursor.integer("the number of variables", "I")):
        variable = _variable(cursor)
        _add(variables, variable.name, variable, cursor.source)
    for _ in range(cursor.integer("the number of aliases", "I")):
        alias, target = _string(cursor, "an alias"), _string(cursor, "what an alias stands for")
        if target not in variables:
            raise CheckpointError(
                f"{cursor.source}: alias {alias[:80]!r} stands for {target[:80]!r}, which is not there"
            )
        _add(variables, alias, variables[target], cursor.source)
    return ModelFile(cursor, revision, variables)


def read_values(cursor: Cursor, variable: Variable) -> Array:
    cursor.at = variable.at
    n_bytes = math.prod(variable.shape) * variable.dtype.itemsize
    values = cursor.array(n_bytes, f"variable {variable.name}")
    return values.view(variable.dtype).reshape(variable.shape)


def write_model(path: Path, variables: Mapping[str, Array], aliases: Mapping[str, str]) -> None:
    """Write a file of the newest version atomically.

    variables: in dtypes of `DTYPES`. aliases: names of variables by alias.
    """
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        file.write(struct.pack("<I", VERSIONS[-1]) + _packed(SPECIFICATION))
        file.write(struct.pack("<II", REVISIONS[-1], len(variables)))
        for name, tensor in sorted(variables.items()):
            values = tensor.tobytes()
            file.write(_packed(name) + struct.pack(f"<B{tensor.ndim}I", tensor.ndim, *tensor.shape))
            file.write(struct.pack("<BI", DTYPES.index(tensor.dtype), len(values)))
            file.write(values)
        file.write(struct.pack("<I", len(aliases)))
        for alias, target in sorted(aliases.items()):
            file.write(_packed(alias) + _packed(target))


def _variable(cursor: Cursor) -> Variable:
    name = _string(cursor, "a variable's name")
    part = f"variable {name[:80]!r}"
    rank = cursor.integer(part, "B")
    if rank > MAX_RANK:
        raise CheckpointError(f"{cursor.source}: {part} has {rank} dimensions, expected 0 to {MAX_RANK}")
    shape = cursor.integers(rank, part, "I")
    if 0 in shape:
        raise CheckpointError(f"{cursor.source}: {part} has shape {shape}, expected sizes of 1 or more")
    number = cursor.integer(part, "B")
    if number >= len(DTYPES):
        names = ", ".join(f"{i} {dtype_name(kind)}" for i, kind in enumerate(DTYPES))
        raise CheckpointError(f"{cursor.source}: {part} has the unknown type {number}, expected {names}")
    n_bytes = cursor.integer(part, "I")
    expected = math.prod(shape) * DTYPES[number].itemsize
    if n_bytes != expected:
        raise CheckpointError(
            f"{cursor.source}: {part} of shape {shape} has {n_bytes} bytes, expected {expected}"
        )
    cursor.skip(n_bytes, part)
    return Variable(name, shape, DTYPES[number], cursor.at - n_bytes)


def _add(variables: dict[str, Variable], name: str, variable: Variable, source: str) -> None:
    if name in variables:
        raise CheckpointError(f"{source}: variable {name[:80]!r} comes twice")
    variables[name] = variable


def _string(cursor: Cursor, part: str) -> str:
    n_bytes = cursor.integer(part, "H")
    text = cursor.text(max(0, n_bytes - 1), part)
    if not n_bytes or cursor.take(1, part) != b"\0":
        raise CheckpointError(f"{cursor.source}: {part} has {n_bytes} bytes, expected the last to be zero")
    return text


def _packed(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<H", len(encoded) + 1) + encoded + b"\0"


def _check_version(what: str, version: int, expected: range, source: str) -> None:
    if version not in expected:
        raise CheckpointError(f"{source}: {what} {version}, expected {expected[0]} to {expected[-1]}")


Layout: TypeAlias = dict[str, tuple[str, ...]]
"""By variable, the tensors that it stacks, in order."""

EMBEDDINGS = "decoder/embeddings/weight"
PROJECTION = "decoder/projection/weight"
HEADS = MappingProxyType({"n_audio_head": "encoder/num_heads", "n_text_head": "decoder/num_heads"})

ACTIVATION = "decoder/activation"
GELU = 3
"""Source: CTranslate2 4, `ActivationType`."""
WRITTEN = MappingProxyType(
    {
        ACTIVATION: GELU,
        "decoder/pre_norm": 1,
        "decoder/scale_embeddings": 0,
        "decoder/start_from_zero_embedding": 0,
    }
)
"""Properties of Whisper's network, in eight bits."""
FREE = frozenset({*HEADS.values(), "decoder/alignment_heads", "decoder/alignment_layer"})
"""Properties with any value; other unknown ones must be 0."""


def layout(dims: ModelDims) -> Layout:
    """Return every variable of a model. Unlike Whisper's, keys have a bias."""
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


LAYER = re.compile(r"(encoder|decoder)/layer_(\d{1,6})/")


def read_ctranslate2(path: Path) -> Checkpoint:
    """Read a folder or its `model.bin`; quantised weights become float32.

    Raises: CheckpointError naming the variable or part.
    """
    folder, file = (path, path / CT2_MODEL) if path.is_dir() else (path.parent, path)
    source = str(file)
    contents = read_contents(cursor_over(file))
    dims = _dims(contents)
    _check_properties(contents)
    tensors = StoredTensors(dict(_tensors(contents, dims)))
    _check_projection(contents)
    _check_vocabulary(folder, dims)
    config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    _note_suppressed(config, dims, str(folder))
    checkpoint = Checkpoint(
        name=folder.resolve().name,
        dims=dims,
        tensors=tensors,
        alignment_heads=_named_heads(config, dims, str(folder)),
        languages=_languages(config, dims, str(folder)),
        numbers=_numbers(contents),
    )
    return validated(checkpoint, source)


def _dims(contents: ModelFile) -> ModelDims:
    n_layer = {"encoder": 0, "decoder": 0}
    for match in filter(None, map(LAYER.match, contents.variables)):
        n_layer[match[1]] = max(n_layer[match[1]], int(match[2]) + 1)
    n_audio_ctx, n_audio_state = contents.shape("encoder/position_encodings/encodings", 2)
    n_vocab, n_text_state = contents.shape(EMBEDDINGS, 2)
    dims = ModelDims(
        n_mels=contents.shape("encoder/conv1/weight", 3)[1],
        n_audio_ctx=n_audio_ctx,
        n_audio_state=n_audio_state,
        n_audio_head=contents.integer(HEADS["n_audio_head"]),
        n_audio_layer=n_layer["encoder"],
        n_vocab=n_vocab,
        n_text_ctx=contents.shape("decoder/position_encodings/encodings", 2)[0],
        n_text_state=n_text_state,
        n_text_head=contents.integer(HEADS["n_text_head"]),
        n_text_layer=n_layer["decoder"],
    )
    check_dims(dims, contents.source)
    return dims


def _check_properties(contents: ModelFile) -> None:
    expected = dict(WRITTEN)
    if contents.revision < 3:
        expected[ACTIVATION] = 1  # GELU before revision 3
    for name, variable in contents.variables.items():
        if variable.shape or name in FREE or name.endswith("_scale"):
            continue
        value = contents.integer(name)
        if value != expected.get(name, 0):
            raise CheckpointError(f"{contents.source}: {name} is {value}, expected {expected.get(name, 0)}")


def _tensors(contents: ModelFile, dims: ModelDims) -> Iterator[tuple[str, StoredTensor]]:
    shapes = expected_shapes(dims)
    expected = layout(dims)
    for name, variable in contents.variables.items():
        belongs = name.removesuffix("_scale") in expected or name.startswith(PROJECTION) or not variable.shape
        if not belongs:
            raise CheckpointError(
                f"{contents.source}: variable {name[:80]!r} belongs to no Whisper of these dimensions"
            )
    for name in (name for name in expected if name in contents.variables):
        parts = expected[name]
        weights = contents.weights(name)
        if not weights.shape or weights.shape[0] % len(parts):
            raise CheckpointError(
                f"{contents.source}: variable {name} has shape {weights.shape}, "
                f"expected rows of {len(parts)} tensors"
            )
        n_rows = weights.shape[0] // len(parts)
        for index, part in enumerate(parts):
            # Whisper has no key bias, and softmax cancels it: it shifts all scores of a query alike.
            if part in shapes:
                yield part, _rows(weights, index * n_rows, n_rows)


def _rows(weights: StoredTensor, first: int, n: int) -> StoredTensor:
    shape, stored = (n, *weights.shape[1:]), weights.stored
    return StoredTensor(shape, weights.dtype, lambda: weights.read()[first : first + n], stored)


def _check_projection(contents: ModelFile) -> None:
    table, projection = contents.variables[EMBEDDINGS], contents.variables.get(PROJECTION)
    if projection is None or projection == table:
        return
    if projection.shape != table.shape or not np.array_equal(
        contents.weights(PROJECTION).read(), contents.weights(EMBEDDINGS).read()
    ):
        raise CheckpointError(
            f"{contents.source}: {PROJECTION} differs from the token embedding, expected them tied"
        )


def _check_vocabulary(folder: Path, dims: ModelDims) -> None:
    new, old = folder / "vocabulary.json", folder / "vocabulary.txt"
    try:
        if new.exists():
            tokens = json.loads(new.read_bytes())
        elif old.exists():
            tokens = old.read_bytes().removesuffix(b"\n").split(b"\n")
        else:
            return
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: the vocabulary cannot be read ({cause_of(error)})") from error
    if not isinstance(tokens, list) or len(tokens) != dims.n_vocab:
        held = f"{len(tokens)} tokens" if isinstance(tokens, list) else type(tokens).__name__
        raise CheckpointError(f"{folder}: the vocabulary holds {held}, the model has {dims.n_vocab}")


def _named_heads(config: Mapping[str, object], dims: ModelDims, source: str) -> AlignmentHeads | None:
    """None: the converter's default, the upper half."""
    heads = alignment_heads(config, dims, source)
    return None if heads is None or set(heads) == set(upper_half_heads(dims)) else heads


def _languages(config: Mapping[str, object], dims: ModelDims, source: str) -> tuple[str, ...] | None:
    """Return the codes of `lang_ids`, if fewer than in the vocabulary.

    English-only folders list languages too, and older converters invalid ids; both are skipped.
    """
    where = f"{source}: lang_ids in config.json"
    ids = from_plain(frozenset[int], config.get("lang_ids") or (), where, CheckpointError)
    codes = language_codes(dims.n_languages) if dims.is_multilingual else ()
    # 50259: the token of the first language in every multilingual vocabulary.
    named = tuple(code for i, code in enumerate(codes) if 50_259 + i in ids)
    return named if 0 < len(named) < len(codes) else None


def _note_suppressed(config: Mapping[str, object], dims: ModelDims, source: str) -> None:
    listed = config.get("suppress_ids")
    if isinstance(listed, list) and has_vocabulary(dims):
        usual = suppressed_tokens(Tokenizer.for_model(dims.n_vocab))
        if set(map(str, listed)) != set(map(str, usual)):
            logger.info("%s: suppress_ids in config.json are not Whisper's, which are used", source)


def _numbers(contents: ModelFile) -> str:
    kinds = [contents.variables[name].dtype for name in (EMBEDDINGS, "encoder/layer_norm/gamma")]
    weights, rest = map(dtype_name, kinds)
    return f"int8_{rest}" if weights == "int8" else weights


LARGEST_INT8 = np.iinfo(np.int8).max
LARGEST_INT16 = 1 << 10
"""Ten bits, so that sums of products fit 32."""


INT8, INT16 = DTYPES[1:3]


@dataclass(frozen=True, slots=True)
class NumberType:
    weights: np.dtype[np.generic]
    rest: np.dtype[np.generic]


TYPES = MappingProxyType(
    {
        **{name: NumberType(dtype, dtype) for name, dtype in PLAIN.items()},
        "int8": NumberType(INT8, PLAIN["float32"]),
        **{f"int8_{name}": NumberType(INT8, dtype) for name, dtype in PLAIN.items()},
        "int16": NumberType(INT16, PLAIN["float32"]),
    }
)
"""By name of CTranslate2's converters."""


def save_ctranslate2(
    checkpoint: Checkpoint, folder: Path, number: str = "float16"
) -> QuantizationLoss | None:
    """Write a folder; return the quantisation loss or None. number: a name in `TYPES`.

    Vocabulary and tokenizer, which CTranslate2 needs, are written for Whisper's own vocabularies only.
    Raises: OptionError: another number type.
    """
    kind = TYPES.get(number)
    if kind is None:
        raise OptionError(f"CTranslate2 type {number!r} given, expected one of {', '.join(TYPES)}")
    folder.mkdir(parents=True, exist_ok=True)
    variables: dict[str, Array] = {}
    losses: list[TensorLoss] = []
    for name, tensor in _stacked(checkpoint).items():
        stored = _stored(name, tensor, kind)
        losses.append(_loss(name, tensor, stored))
        variables |= stored
    write_model(folder / CT2_MODEL, variables | _properties(checkpoint), {PROJECTION: EMBEDDINGS})
    write_json(folder / "config.json", _config(checkpoint))
    write_features(folder, checkpoint.dims)
    if has_vocabulary(checkpoint.dims):
        tokenizer = Tokenizer.for_model(checkpoint.dims.n_vocab)
        write_json(folder / "vocabulary.json", tokens_of(tokenizer), indent=None)
        write_tokenizer(tokenizer, folder)
    return QuantizationLoss.of(losses)


CODEC = Codec(read_ctranslate2, save_ctranslate2)


def quantize_int8(weights: Floats) -> tuple[Array, Floats]:
    """Quantise weights (n_out, ...) to int8 and float32 scales (n_out,); value = weight * scale."""
    rows = weights.reshape(len(weights), -1)
    largest = np.abs(rows).max(axis=1)
    largest = np.where(largest > 0, largest, np.float32(LARGEST_INT8))
    largest = np.maximum(largest, np.float32(LARGEST_INT8) / np.finfo(np.float32).max)
    scales = np.float32(LARGEST_INT8) / largest
    return np.rint(rows * scales[:, None]).astype(np.int8).reshape(weights.shape), scales


def quantize_int16(weights: Floats) -> tuple[Array, Floats]:
    """Quantise weights to int16 and one float32 scale ()."""
    largest = np.abs(weights).max()
    scale = np.array(LARGEST_INT16 / (largest if largest > 0 else 1.0), np.float32)
    return np.rint(weights * scale).astype(np.int16), scale


def _stacked(checkpoint: Checkpoint) -> dict[str, Array]:
    left = dict(checkpoint.tensors)
    stacked: dict[str, Array] = {}
    for name, parts in layout(checkpoint.dims).items():
        tensors = [left.pop(part) if part in left else _no_bias(part, checkpoint) for part in parts]
        present = [tensor for tensor in tensors if tensor is not None]
        if present:
            stacked[name] = (
                np.concatenate([floats(each) for each in present]) if len(present) > 1 else present[0]
            )
    return stacked | left


def _no_bias(name: str, checkpoint: Checkpoint) -> Array | None:
    return np.zeros(checkpoint.dims.n_text_state, np.float32) if name.endswith("key.bias") else None


def _stored(name: str, tensor: Array, kind: NumberType) -> dict[str, Array]:
    if not name.endswith("/weight"):
        return {name: with_dtype(tensor, kind.rest)}
    if kind.weights not in (INT8, INT16):
        return {name: with_dtype(tensor, kind.weights)}
    values, scale = (quantize_int8 if kind.weights == INT8 else quantize_int16)(floats(tensor))
    return {name: values, f"{name}_scale": scale}


def _loss(name: str, tensor: Array, stored: dict[str, Array]) -> TensorLoss:
    after = sum(part.nbytes for part in stored.values())
    scale = stored.get(f"{name}_scale")
    if scale is None:
        return TensorLoss(name, tensor.nbytes, after)
    packed = floats(stored[name]) / floats(scale).reshape(-1, *[1] * (tensor.ndim - 1))
    return tensor_loss(name, floats(tensor), packed, bytes_before=tensor.nbytes, bytes_after=after)


def _properties(checkpoint: Checkpoint) -> dict[str, Array]:
    heads = {name: getattr(checkpoint.dims, ours) for ours, name in HEADS.items()}
    # CTranslate2's own heads for translation: none, as Whisper's are in config.json.
    heads |= {"decoder/alignment_heads": 1, "decoder/alignment_layer": -1}
    counts: dict[str, Array] = {name: np.array(value, np.int16) for name, value in heads.items()}
    return counts | {name: np.array(value, np.int8) for name, value in WRITTEN.items()}


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
