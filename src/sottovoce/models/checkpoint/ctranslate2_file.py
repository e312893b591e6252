"""CTranslate2's `model.bin`: the name of a specification, variables, and aliases of variables.

Little-endian throughout. A string is its length with the closing zero (u16) and its bytes. A variable is
its name, rank (u8), dimensions (u32), type (u8), number of bytes (u32) and values without alignment; an
alias is its name and that of a variable. Source: CTranslate2 4.8, `python/ctranslate2/specs/model_spec.py`
(writing) and `src/models/model.cc` (reading).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import Shape
from sottovoce.models.checkpoint.cursor import Cursor
from sottovoce.models.checkpoint.writing import whole_file

VERSIONS = range(4, 7)
"""Of the binary layout: types have numbers since 4, and 5 and 6 changed what stands beside the file."""
SPECIFICATION = "WhisperSpec"
REVISIONS = range(1, 4)
"""Of the specification: 2 and 3 left the layout of the weights as it was."""
TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
"""By their numbers in the file."""
MAX_RANK = 3
VERSION = struct.Struct("<I")
N_HEAD = 18
"""Bytes by which a model of Whisper is known: the version and the specification's name."""


@dataclass(frozen=True, slots=True)
class Variable:
    """Name, shape and dtype of a variable, and the offset of its first byte in the file."""

    name: str
    shape: Shape
    dtype: torch.dtype
    at: int


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a file. variables: also under the names of their aliases."""

    revision: int
    variables: Mapping[str, Variable]
    aliases: frozenset[str]


def is_model_head(head: bytes) -> bool:
    """Tell whether a file that begins with these bytes (N_HEAD suffice) is a CTranslate2 model of Whisper."""
    return head[VERSION.size :].startswith(_packed(SPECIFICATION))


def read_contents(cursor: Cursor) -> Contents:
    """Read names, shapes and positions of all variables; values are skipped.

    Raises: CheckpointError for a file that is damaged, of another model, or of an unsupported version.
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
    aliases: list[str] = []
    for _ in range(cursor.integer("the number of aliases", "I")):
        alias, target = _string(cursor, "an alias"), _string(cursor, "what an alias stands for")
        if target not in variables:
            raise CheckpointError(
                f"{cursor.source}: alias {alias[:80]!r} stands for {target[:80]!r}, which is not there"
            )
        _add(variables, alias, variables[target], cursor.source)
        aliases.append(alias)
    return Contents(revision, variables, frozenset(aliases))


def read_values(cursor: Cursor, variable: Variable) -> Tensor:
    """Read the values of a variable: a tensor of its shape, in the dtype that is stored."""
    cursor.at = variable.at
    n_bytes = math.prod(variable.shape) * variable.dtype.itemsize
    values = cursor.array(n_bytes, f"variable {variable.name}")
    return torch.from_numpy(values).view(variable.dtype).reshape(variable.shape)


def write_model(path: Path, variables: Mapping[str, Tensor], aliases: Mapping[str, str]) -> None:
    """Write a file of the newest version, whole or not at all.

    variables: tensors of any shape in a dtype of `TYPES`. aliases: names to names of variables.
    """
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        file.write(struct.pack("<I", VERSIONS[-1]) + _packed(SPECIFICATION))
        file.write(struct.pack("<II", REVISIONS[-1], len(variables)))
        for name, tensor in sorted(variables.items()):
            values = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            file.write(_packed(name) + struct.pack(f"<B{tensor.ndim}I", tensor.ndim, *tensor.shape))
            file.write(struct.pack("<BI", TYPES.index(tensor.dtype), len(values)))
            file.write(np.ascontiguousarray(values).data)
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
    if number >= len(TYPES):
        names = ", ".join(f"{i} {str(kind).removeprefix('torch.')}" for i, kind in enumerate(TYPES))
        raise CheckpointError(f"{cursor.source}: {part} has the unknown type {number}, expected {names}")
    n_bytes = cursor.integer(part, "I")
    expected = math.prod(shape) * TYPES[number].itemsize
    if n_bytes != expected:
        raise CheckpointError(
            f"{cursor.source}: {part} of shape {shape} has {n_bytes} bytes, expected {expected}"
        )
    cursor.skip(n_bytes, part)
    return Variable(name, shape, TYPES[number], cursor.at - n_bytes)


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


def _check_version(what: str, found: int, expected: range, source: str) -> None:
    if found not in expected:
        raise CheckpointError(f"{source}: {what} {found}, expected {expected[0]} to {expected[-1]}")
