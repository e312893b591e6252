"""Load models by name or path, and write them in the formats of other programs.

Also published alignment heads, and the size and languages of a named model before it is loaded.
Encoder modes that the self-test found are in the cache folder, a small file for each set of weights.

Source of the heads, as (decoder layer, head) pairs: the masks in openai-whisper 20250625,
`whisper/__init__.py` (gzip under base85).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

from sottovoce.errors import OptionError
from sottovoce.models.checkpoint.base import (
    LONG,
    Checkpoint,
    FileTensors,
    QuantizationLoss,
    expected_shapes,
    floats,
    release_pages,
    write_json,
)
from sottovoce.models.checkpoint.compact import compact_languages
from sottovoce.models.checkpoint.formats import BY_NAME, format_of
from sottovoce.models.ctc_head import ctc_head_of
from sottovoce.models.dims import PUBLISHED_MODES, AlignmentHeads, EncoderMode, ModelDims
from sottovoce.models.package_index import cache_root
from sottovoce.models.sources import MILLIONS, NANO, Sources, local_path, resolve
from sottovoce.text.files import from_json, whole_file, writing
from sottovoce.text.languages import language_codes
from sottovoce.text.tokenizer import N_VOCAB_99, N_VOCAB_100, N_VOCAB_ENGLISH

# fmt: off
LARGE_V1: AlignmentHeads = (
    (9, 19), (11, 2), (11, 4), (11, 17), (22, 7), (22, 11), (22, 17), (23, 2), (23, 15),
)
HEADS: Mapping[tuple[int, int, int], AlignmentHeads] = MappingProxyType({
    (4, 6, N_VOCAB_ENGLISH): ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)),
    (4, 6, N_VOCAB_99): ((2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)),
    (6, 8, N_VOCAB_ENGLISH): ((3, 3), (4, 7), (5, 1), (5, 5), (5, 7)),
    (6, 8, N_VOCAB_99): ((3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)),
    (12, 12, N_VOCAB_ENGLISH): (
        (6, 6), (7, 0), (7, 3), (7, 8), (8, 2), (8, 5), (8, 7), (9, 0), (9, 4), (9, 8), (9, 10), (10, 0),
        (10, 1), (10, 2), (10, 3), (10, 6), (10, 11), (11, 2), (11, 4),
    ),
    (12, 12, N_VOCAB_99): (
        (5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5),
    ),
    (24, 16, N_VOCAB_ENGLISH): (
        (11, 4), (14, 1), (14, 12), (14, 14), (15, 4), (16, 0), (16, 4), (16, 9), (17, 12), (17, 14),
        (18, 7), (18, 10), (18, 15), (20, 0), (20, 3), (20, 9), (20, 14), (21, 12),
    ),
    (24, 16, N_VOCAB_99): ((13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4)),
    (32, 20, N_VOCAB_99): (
        (10, 12), (13, 17), (16, 11), (16, 12), (16, 13), (17, 15), (17, 16), (18, 4), (18, 11), (18, 19),
        (19, 11), (21, 2), (21, 3), (22, 3), (22, 9), (22, 12), (23, 5), (23, 7), (23, 13), (25, 5),
        (26, 1), (26, 12), (27, 15),
    ),
    (32, 20, N_VOCAB_100): (
        (7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1), (25, 6),
    ),
    (4, 20, N_VOCAB_100): ((2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14)),
})
# fmt: on
"""By decoder layers, heads of a layer, and size of the vocabulary. large-v1 has the size of large-v2."""
FIRST_LARGE = re.compile(r"(^|[^a-z])(large-v1|whisper-large$)")


def published_heads(name: str, dims: ModelDims) -> AlignmentHeads | None:
    """Return the alignment heads of the published model with these dimensions, or None.

    name: hub id or file stem; only distinguishes large-v1 and large-v2.
    """
    size = (dims.n_text_layer, dims.n_text_head, dims.n_vocab)
    return LARGE_V1 if size == (32, 20, N_VOCAB_99) and FIRST_LARGE.search(name) else HEADS.get(size)


def expected_bytes(name: str) -> int:
    """Return the bytes of the float32 weights of a named model, before it is loaded; 0: unknown."""
    within = max((known for known in MILLIONS if known in name), key=len, default=None)
    return 0 if within is None else round(4e6 * MILLIONS[within])


def n_parameters(dims: ModelDims) -> int:
    return sum(math.prod(shape) for shape in expected_shapes(dims).values())


def expected_languages(name: str) -> tuple[str, ...]:
    if name == NANO:
        return compact_languages() or language_codes()
    if re.search(r"\.en\b", name):
        return ("en",)
    return language_codes(100 if re.search(r"large-v3|turbo", name) else 99)


MODES_VERSION = 1
"""Of the self-test and of the files; other versions are ignored."""


def weights_key(checkpoint: Checkpoint) -> str:
    """Return a name for the weights, from their dimensions and the first numbers of every tensor."""
    digest = hashlib.sha256(repr(checkpoint.dims).encode())
    for name, tensor in sorted(checkpoint.tensors.items()):
        digest.update(name.encode())
        # 64 numbers of each tensor identify the weights
        digest.update(floats(tensor.reshape(-1)[:64]).tobytes())
    return digest.hexdigest()[:32]


def stored_mode(key: str) -> EncoderMode | None:
    """Return the mode stored for weights, or None: without an entry, or with a damaged or older one."""
    path = _mode_file(key)
    with suppress(OSError, OptionError):
        entry = from_json(_StoredMode, path.read_bytes(), str(path))
        return entry.mode if entry.version == MODES_VERSION else None
    return None


@dataclass(frozen=True, slots=True)
class _StoredMode:
    version: int
    mode: EncoderMode


def store_mode(key: str, mode: EncoderMode) -> Path:
    """Store the mode of weights; return the file. Raises: OSError."""
    path = _mode_file(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(_StoredMode(MODES_VERSION, mode)), indent=None)
    return path


def _mode_file(key: str) -> Path:
    return cache_root() / "encoder-modes" / f"{key}.json"


def load_checkpoint(name_or_path: str | Path, sources: Sources | None = None) -> Checkpoint:
    """Find a model and read it; a local path has precedence over a name.

    An encoder mode that is neither published nor in the file is that of a self-test, or None.

    Raises: ModelNotFoundError: no source has the name. CheckpointError: a file cannot be read. OptionError:
    contradicting sources.
    """
    is_local = local_path(name_or_path) is not None
    path = resolve(name_or_path, sources)
    checkpoint = open_checkpoint(path)
    name = checkpoint.name if is_local else str(name_or_path)
    heads = checkpoint.alignment_heads or published_heads(name, checkpoint.dims)
    if checkpoint.encoder_mode is None and checkpoint.dims.size not in PUBLISHED_MODES:
        key = weights_key(checkpoint)
        checkpoint = replace(checkpoint, mode_key=key, encoder_mode=stored_mode(key))
    return replace(checkpoint, name=name, alignment_heads=heads, ctc_head=ctc_head_of(checkpoint, path))


def open_checkpoint(path: Path) -> Checkpoint:
    """Read a file or folder of any known format. Raises: CheckpointError."""
    kind = format_of(path)
    checkpoint = kind.codec().read(path)
    release_pages(checkpoint.tensors)  # of names and shapes, between the numbers
    return replace(checkpoint, kind=kind.name, tensors=FileTensors(checkpoint.tensors, path))


def write_checkpoint(checkpoint: Checkpoint, output: Path, kind: str, number: str) -> QuantizationLoss | None:
    """Write a checkpoint to a new path; return the quantisation loss or None.

    kind: one of `formats.WRITTEN`. number: "f32", "f16", "bf16", or a type of the kind ("q5_0" for ggml,
    "int8_float16" for ct2).

    Raises: OptionError: the kind does not have the number type, or the output exists.
    """
    write = BY_NAME[kind].codec().write
    assert write is not None
    with writing(f"output '{output}'"):
        if output.exists():
            raise OptionError(f"output '{output}': is there already, choose another name")
        if not output.parent.is_dir():
            raise OptionError(f"output '{output}': expected an existing folder {output.parent}")
        with whole_file(output) as unfinished:
            return write(checkpoint, unfinished, LONG.get(number, number))
