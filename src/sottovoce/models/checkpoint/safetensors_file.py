"""safetensors files, read as views of the mapped file.

Source: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np

from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import BFLOAT16, Array, Cursor, cursor_over
from sottovoce.text.files import from_json, whole_file

KINDS: Mapping[str, np.dtype[np.generic]] = MappingProxyType(
    {
        "F64": np.dtype("<f8"),
        "F32": np.dtype("<f4"),
        "F16": np.dtype("<f2"),
        "BF16": BFLOAT16,
        "I64": np.dtype("<i8"),
        "I32": np.dtype("<i4"),
        "I16": np.dtype("<i2"),
        "I8": np.dtype("i1"),
        "U8": np.dtype("u1"),
        "BOOL": np.dtype("?"),
    }
)


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_safetensors(path: Path) -> tuple[Mapping[str, str], dict[str, Array]]:
    """Return the metadata of a file, and its tensors as views of it. Raises: CheckpointError."""
    source = str(path)
    cursor = cursor_over(path)
    header = cursor.take(_header_size(cursor), "the header")
    entries = from_json(dict[str, msgspec.Raw], header, f"{source}: header", CheckpointError)
    metadata = entries.pop("__metadata__", msgspec.Raw(b"{}"))
    begin = cursor.at
    tensors = {}
    for name, raw in entries.items():
        where = f"{source}: tensor {name[:80]}"
        tensors[name] = _tensor(cursor, begin, from_json(_Entry, raw, where, CheckpointError), where)
    n_bytes = sum(array.nbytes for array in tensors.values())
    if begin + n_bytes != len(cursor.content):
        raise CheckpointError(
            f"{source}: expected {n_bytes} bytes of tensors, got {len(cursor.content) - begin}"
        )
    return from_json(dict[str, str], metadata, f"{source}: metadata", CheckpointError), tensors


def _header_size(cursor: Cursor) -> int:
    n_bytes = cursor.integer("the size of the header", "Q")
    if n_bytes > cursor.n_left:
        raise CheckpointError(
            f"{cursor.source}: not a readable safetensors file "
            f"(a header of {n_bytes} bytes, {cursor.n_left} are left)"
        )
    return n_bytes


def _tensor(cursor: Cursor, begin: int, entry: _Entry, where: str) -> Array:
    kind = KINDS.get(entry.dtype)
    if kind is None:
        raise CheckpointError(f"{where}: holds {entry.dtype[:20]!r}, expected one of {', '.join(KINDS)}")
    first, last = entry.data_offsets
    if min((first, *entry.shape)) < 0:
        raise CheckpointError(f"{where}: shape {entry.shape} at {first}")
    expected = math.prod(entry.shape) * kind.itemsize
    if last - first != expected:
        raise CheckpointError(f"{where}: shape {entry.shape} has {last - first} bytes, expected {expected}")
    cursor.at = begin + first
    return cursor.array(expected, f"tensor {where.rpartition(' ')[2]}").view(kind).reshape(entry.shape)


def write_safetensors(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write tensors without copying them. Raises: OSError."""
    names = {dtype: name for name, dtype in KINDS.items()}
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for name, array in tensors.items():
        span = (at, at := at + array.nbytes)
        header[name] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": span}
    encoded = json.dumps(header).encode()
    # Headers are filled up to multiples of 8 bytes with spaces.
    encoded += b" " * (-len(encoded) % 8)
    with whole_file(path) as unfinished, unfinished.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
