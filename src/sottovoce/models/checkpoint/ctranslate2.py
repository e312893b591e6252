"""CTranslate2's folders of Whisper, as faster-whisper uses them: `model.bin`, and config.json beside it.

Dimensions come from the shapes of the variables; the vocabulary beside the weights is only counted.
The layout of the file is in `ctranslate2_file`, that of the weights in `ctranslate2_layout`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sottovoce.errors import CheckpointError, cause_of
from sottovoce.models.checkpoint.base import Checkpoint, check_dims, expected_shapes, validated
from sottovoce.models.checkpoint.ctranslate2_file import Contents, Variable, read_contents, read_values
from sottovoce.models.checkpoint.ctranslate2_layout import (
    ACTIVATION,
    EMBEDDINGS,
    FREE,
    HEADS,
    OLD_GELU,
    PROJECTION,
    WRITTEN,
    layout,
)
from sottovoce.models.checkpoint.cursor import Cursor, cursor_over
from sottovoce.models.checkpoint.huggingface import alignment_heads, read_json
from sottovoce.models.checkpoint.tokenizer_json import has_vocabulary, suppressed_tokens
from sottovoce.models.dims import AlignmentHeads, ModelDims, upper_half_heads
from sottovoce.text.languages import language_codes
from sottovoce.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MODEL = "model.bin"
INT16_SCALE = 1000.0
"""Of weights in 16 bits that come without a scale (CTranslate2's `global_int16_scale`)."""
LAYER = re.compile(r"(encoder|decoder)/layer_(\d{1,6})/")
FIRST_LANGUAGE = 50_259
"""Token of the first language in every multilingual vocabulary."""


def read_ctranslate2(path: Path) -> Checkpoint:
    """Read a folder, or the `model.bin` in one; quantised weights come as float32.

    Raises: CheckpointError naming the variable or part at which the file is wrong.
    """
    folder, file = (path, path / MODEL) if path.is_dir() else (path.parent, path)
    source = str(file)
    with cursor_over(file, source) as cursor:
        contents = read_contents(cursor)
        reader = _Reader(cursor, contents.variables)
        dims = _dims(reader)
        _check_properties(contents, reader)
        tensors = dict(_tensors(reader, dims))
        _check_projection(reader)
    _check_vocabulary(folder, dims)
    config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    _note_suppressed(config, dims, str(folder))
    checkpoint = Checkpoint(
        name=folder.resolve().name,
        dims=dims,
        tensors=tensors,
        alignment_heads=_named_heads(config, dims, str(folder)),
        languages=_languages(config, dims, str(folder)),
        kind="ct2",
        numbers=_numbers(contents),
    )
    return validated(checkpoint, source)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Variables of an open file, by name."""

    cursor: Cursor
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
        """A property of the model."""
        self.shape(name, 0)
        variable = self.variables[name]
        if variable.dtype.is_floating_point:
            raise CheckpointError(
                f"{self.source}: variable {name} holds {variable.dtype}, expected an integer"
            )
        return int(read_values(self.cursor, variable))

    def weights(self, name: str) -> Tensor:
        """A variable as floats: quantised values divided by the scale of their row, or of all of them."""
        variable = self.variables[name]
        values = read_values(self.cursor, variable)
        if values.is_floating_point():
            return values
        # The file multiplied when it was made; CTranslate2 multiplies with the inverse, and so is this exact.
        inverse = 1 / self._scale(variable)
        return values.float() * inverse.reshape(-1, *[1] * (values.ndim - 1))

    def _scale(self, variable: Variable) -> Tensor:
        """Float32, one number or one a row."""
        found = self.variables.get(f"{variable.name}_scale")
        if found is None and variable.dtype == torch.int16:
            return torch.tensor(INT16_SCALE)
        n_rows = variable.shape[0] if variable.shape else 1
        if found is None or found.dtype != torch.float32 or found.shape not in ((), (1,), (n_rows,)):
            what = "nothing" if found is None else f"{found.dtype} of shape {found.shape}"
            raise CheckpointError(
                f"{self.source}: {variable.name} holds {variable.dtype}, "
                f"expected {n_rows} float32 scales beside it, found {what}"
            )
        scale = read_values(self.cursor, found)
        if not (torch.isfinite(scale) & (scale > 0)).all():
            raise CheckpointError(f"{self.source}: {found.name} holds scales that are not above 0")
        return scale


def _dims(reader: _Reader) -> ModelDims:
    n_layer = {"encoder": 0, "decoder": 0}
    for match in filter(None, map(LAYER.match, reader.variables)):
        n_layer[match[1]] = max(n_layer[match[1]], int(match[2]) + 1)
    n_audio_ctx, n_audio_state = reader.shape("encoder/position_encodings/encodings", 2)
    n_vocab, n_text_state = reader.shape(EMBEDDINGS, 2)
    dims = ModelDims(
        n_mels=reader.shape("encoder/conv1/weight", 3)[1],
        n_audio_ctx=n_audio_ctx,
        n_audio_state=n_audio_state,
        n_audio_head=reader.integer(HEADS["n_audio_head"]),
        n_audio_layer=n_layer["encoder"],
        n_vocab=n_vocab,
        n_text_ctx=reader.shape("decoder/position_encodings/encodings", 2)[0],
        n_text_state=n_text_state,
        n_text_head=reader.integer(HEADS["n_text_head"]),
        n_text_layer=n_layer["decoder"],
    )
    check_dims(dims, reader.source)
    return dims


def _check_properties(contents: Contents, reader: _Reader) -> None:
    """Refuse another network than Whisper's."""
    expected = dict(WRITTEN)
    if contents.revision < 3:
        expected[ACTIVATION] = OLD_GELU
    for name, variable in contents.variables.items():
        if variable.shape or name in FREE or name.endswith("_scale"):
            continue
        found = reader.integer(name)
        if found != expected.get(name, 0):
            raise CheckpointError(f"{reader.source}: {name} is {found}, expected {expected.get(name, 0)}")


def _tensors(reader: _Reader, dims: ModelDims) -> Iterator[tuple[str, Tensor]]:
    """OpenAI's names and tensors, one variable after the other."""
    shapes = expected_shapes(dims)
    expected = layout(dims)
    for name, variable in reader.variables.items():
        belongs = name.removesuffix("_scale") in expected or name.startswith(PROJECTION) or not variable.shape
        if not belongs:
            raise CheckpointError(
                f"{reader.source}: variable {name[:80]!r} belongs to no Whisper of these dimensions"
            )
    for name in (name for name in expected if name in reader.variables):
        parts = expected[name]
        weights = reader.weights(name)
        if not weights.ndim or len(weights) % len(parts):
            raise CheckpointError(
                f"{reader.source}: variable {name} has shape {tuple(weights.shape)}, "
                f"expected rows of {len(parts)} tensors"
            )
        for part, rows in zip(parts, weights.chunk(len(parts)), strict=True):
            # A key's bias moves all scores of a query alike, which softmax undoes: Whisper has none.
            if part in shapes:
                yield part, rows


def _check_projection(reader: _Reader) -> None:
    table, projection = reader.variables[EMBEDDINGS], reader.variables.get(PROJECTION)
    if projection is None or projection == table:
        return
    if projection.shape != table.shape or not torch.equal(
        reader.weights(PROJECTION), reader.weights(EMBEDDINGS)
    ):
        raise CheckpointError(
            f"{reader.source}: {PROJECTION} differs from the token embedding, expected them tied"
        )


def _check_vocabulary(folder: Path, dims: ModelDims) -> None:
    """Refuse a list of tokens of another length; there need not be any."""
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
        found = f"{len(tokens)} tokens" if isinstance(tokens, list) else type(tokens).__name__
        raise CheckpointError(f"{folder}: the vocabulary holds {found}, the model has {dims.n_vocab}")


def _named_heads(config: Mapping[str, object], dims: ModelDims, source: str) -> AlignmentHeads | None:
    """Heads that the folder names; None for the converter's default, all of the upper half."""
    heads = alignment_heads(config, dims, source)
    return None if heads is None or set(heads) == set(upper_half_heads(dims)) else heads


def _languages(config: Mapping[str, object], dims: ModelDims, source: str) -> tuple[str, ...] | None:
    """Codes of `lang_ids`, where they are fewer than the vocabulary names.

    English-only folders list languages too, and older converters a few ids that are none: passed over.
    """
    found = config.get("lang_ids") or []
    if not isinstance(found, list) or not all(type(token) is int for token in found):
        raise CheckpointError(f"{source}: lang_ids in config.json is {str(found)[:40]!r}, expected token ids")
    codes = language_codes(dims.n_languages) if dims.is_multilingual else ()
    named = tuple(code for i, code in enumerate(codes) if FIRST_LANGUAGE + i in set(found))
    return named if 0 < len(named) < len(codes) else None


def _note_suppressed(config: Mapping[str, object], dims: ModelDims, source: str) -> None:
    """Log that a folder suppresses other tokens than Whisper does: the decoder's options decide."""
    found = config.get("suppress_ids")
    if isinstance(found, list) and has_vocabulary(dims):
        usual = suppressed_tokens(Tokenizer.for_model(dims.n_vocab))
        if set(map(str, found)) != set(map(str, usual)):
            logger.info("%s: suppress_ids in config.json are not Whisper's, which are used", source)


def _numbers(contents: Contents) -> str:
    """The types stored, under the names of CTranslate2's converters."""
    kinds = [contents.variables[name].dtype for name in (EMBEDDINGS, "encoder/layer_norm/gamma")]
    weights, rest = (str(kind).removeprefix("torch.") for kind in kinds)
    return f"int8_{rest}" if weights == "int8" else weights
