"""Files of `torch.save` (OpenAI's `.pt`, `pytorch_model.bin`), read and written without PyTorch;
and OpenAI's checkpoints.

A file is a pickle that refers to storages: entries of a zip archive, or, before PyTorch 1.6, bytes behind the
pickle. Python's unpickler reads it without looking up any class or function, and opcodes that `torch.save`
does not write for tensors and plain values are refused. Tensors are views of the mapped file.

Source: PyTorch 2.5, `torch/serialization.py` and `torch/_utils.py` (`_rebuild_tensor_v2`).
"""

from __future__ import annotations

import io
import math
import mmap
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from sottovoce.errors import CheckpointError, cause_of
from sottovoce.models.checkpoint.base import (
    BFLOAT16,
    Array,
    Checkpoint,
    Codec,
    check_dims,
    map_file,
    plain_dtype,
    validated,
    with_dtype,
)
from sottovoce.models.dims import ModelDims
from sottovoce.text.files import from_plain, whole_file

STORAGES: Mapping[str, np.dtype[np.generic]] = MappingProxyType(
    {
        "torch FloatStorage": np.dtype("<f4"),
        "torch HalfStorage": np.dtype("<f2"),
        "torch BFloat16Storage": BFLOAT16,
        "torch DoubleStorage": np.dtype("<f8"),
        "torch LongStorage": np.dtype("<i8"),
        "torch IntStorage": np.dtype("<i4"),
        "torch ShortStorage": np.dtype("<i2"),
        "torch CharStorage": np.dtype("i1"),
        "torch ByteStorage": np.dtype("u1"),
        "torch BoolStorage": np.dtype("?"),
    }
)
"""Names in pickles, and the numbers of such a storage."""
REBUILD = "torch._utils _rebuild_tensor_v2"
TENSORS = (REBUILD, "torch._utils _rebuild_tensor")
PARAMETER = "torch._utils _rebuild_parameter"
ORDERED = "collections OrderedDict"
OPCODES = (
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2"),
    *("LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "SHORT_BINBYTES", "BINBYTES", "EMPTY_DICT"),
    *("EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM"),
    *("SETITEMS", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET", "BINPERSID", "REDUCE"),
    *("GLOBAL", "STACK_GLOBAL"),
)
"""Of tensors and plain values; a pickle with others is refused."""
MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
"""First pickle of a file before PyTorch 1.6; its version, facts of the system, the content and the storages'
keys follow, each a pickle.
"""


@dataclass(frozen=True, slots=True)
class _Storage:
    """A storage that a pickle refers to."""

    dtype: np.dtype[np.generic]
    key: str
    n_items: int


class Skipped:
    """Replaces an object that is neither a tensor nor a plain value, with all that it holds."""

    def __new__(cls, *_: object) -> Skipped:
        return super().__new__(cls)

    def append(self, item: object) -> None: ...

    def __setitem__(self, name: object, value: object) -> None: ...


Tensors = Callable[[_Storage], Array]


def read_torch_file(path: Path, *, skips_objects: bool = False) -> object:
    """Read tensors, as views of the mapped file, and plain values.

    skips_objects: objects of other classes become `Skipped`, instead of an error.

    Raises: CheckpointError: a damaged file, or one with other objects.
    """
    try:
        content = map_file(path)
        if content[:2] == b"PK":
            return _read_archive(path, content, skips_objects)
        return _read_legacy(content, skips_objects)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle or archive can raise any error
        raise CheckpointError(f"{path}: not a readable PyTorch file ({cause_of(error)})") from error


def _read_archive(path: Path, content: mmap.mmap, skips_objects: bool) -> object:
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        if "data.pkl" not in entries:
            raise ValueError("no entry data.pkl in the archive")
        pickled = archive.read(entries["data.pkl"])
        order = archive.read(entries["byteorder"]) if "byteorder" in entries else b"little"
    if order != b"little":
        raise ValueError(f"byte order {order[:10]!r}, expected b'little'")

    def storage(of: _Storage) -> Array:
        entry = entries[f"data/{of.key}"]
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise ValueError(f"entry data/{of.key} is compressed or encrypted, expected it plain")
        n_name, n_extra = struct.unpack_from("<2H", content, entry.header_offset + 26)
        at = entry.header_offset + 30 + n_name + n_extra
        return _storage(content, at, at + entry.file_size, of)

    return _Unpickler(io.BytesIO(pickled), storage, skips_objects).load()


def _read_legacy(content: mmap.mmap, skips_objects: bool) -> object:
    def pickled(read: Tensors | None = None) -> _Unpickler:
        return _Unpickler(content, read, skips_objects)

    if pickled().load() != MAGIC_NUMBER:
        raise ValueError("it does not begin with PyTorch's magic number")
    pickled().load()
    pickled().load()
    begin = content.tell()
    places = pickled()
    places.load()
    keys = pickled().load()
    at, begins = content.tell(), {}
    for key in keys if isinstance(keys, list) else ():
        (n_items,) = struct.unpack_from("<q", content, at)
        begins[key] = at + 8
        at += 8 + n_items * places.storages[key].dtype.itemsize
        if not 0 <= n_items <= at <= len(content):
            raise ValueError(f"storage {key[:40]!r} ends behind the file")
    content.seek(begin)
    return pickled(lambda of: _storage(content, begins[of.key], len(content), of)).load()


def _storage(content: mmap.mmap, at: int, end: int, of: _Storage) -> Array:
    if not 0 <= of.n_items * of.dtype.itemsize <= min(end, len(content)) - at:
        raise ValueError(f"storage {of.key[:40]!r} has {end - at} bytes, expected {of.n_items} numbers")
    return np.frombuffer(content, of.dtype, of.n_items, at)


class _Opcodes(dict[int, Callable[[Any], None]]):
    def __missing__(self, code: int) -> NoReturn:
        import pickletools  # slow

        name = next((each.name for each in pickletools.opcodes if ord(each.code) == code), hex(code))
        raise ValueError(f"pickle opcode {name}, expected tensors and plain values alone")


class _Unpickler(pickle._Unpickler):
    """Reads pickles of tensors and plain values.

    read: of a storage; None: tensors become None. storages: those that the pickle refers to.
    """

    stack: list[Any]
    dispatch = _Opcodes(
        {code: pickle._Unpickler.dispatch[code] for name in OPCODES for code in getattr(pickle, name)}
    )

    def __init__(self, file: io.BytesIO | mmap.mmap, read: Tensors | None, skips_objects: bool) -> None:
        super().__init__(file)
        self._storage_of = read
        self._skips_objects = skips_objects
        self.storages: dict[object, _Storage] = {}
        self._arrays: dict[str, Array] = {}

    def drop_attributes(self) -> None:
        """Drop those of a mapping, such as `_metadata`, and of skipped objects."""
        self.stack.pop()

    dispatch[pickle.BUILD[0]] = drop_attributes

    def skip_object(self) -> None:
        if not self._skips_objects:
            self.dispatch.__missing__(pickle.NEWOBJ[0])
        self.stack[-2:] = [Skipped()]

    dispatch[pickle.NEWOBJ[0]] = skip_object

    def find_class(self, module: str, name: str) -> object:
        function = f"{module} {name}"
        known = {
            **STORAGES,
            **dict.fromkeys(TENSORS, self._tensor),
            PARAMETER: lambda tensor, *_: tensor,
            ORDERED: dict,
        }
        if function not in known and not self._skips_objects:
            raise ValueError(f"it names {f'{module}.{name}'[:80]!r}, expected tensors and plain values alone")
        return known.get(function, Skipped)

    def persistent_load(self, pid: object) -> _Storage:
        if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage":
            kind, key, _, n_items = pid[1:5]
            view = pid[5] if len(pid) > 5 else None
            if isinstance(kind, np.dtype) and type(n_items) is int and view is None:
                return self.storages.setdefault(key, _Storage(kind, str(key), n_items))
        raise ValueError(f"a storage of an unknown kind: {pid!r:.80}")

    def _tensor(
        self, storage: object, offset: object, shape: object, strides: object, *_: object
    ) -> Array | None:
        if self._storage_of is None:
            return None
        if not isinstance(storage, _Storage):
            raise ValueError("a tensor without a storage")
        (first,), lengths, steps = map(_sizes, ((offset,), shape, strides))
        if len(lengths) != len(steps) or len(lengths) > 8:
            raise ValueError(f"a tensor of shape {shape!r:.40} and strides {strides!r:.40}")
        if storage.key not in self._arrays:
            self._arrays[storage.key] = self._storage_of(storage)
        items = self._arrays[storage.key]
        last = first + sum((length - 1) * step for length, step in zip(lengths, steps, strict=True))
        if 0 in lengths:
            return np.empty(lengths, items.dtype)
        if last >= len(items):
            raise ValueError(f"a tensor of shape {tuple(lengths)} ends behind its storage of {len(items)}")
        if math.prod(lengths) > len(items) - first:
            raise ValueError(f"a tensor of shape {tuple(lengths)} repeats the {len(items)} of its storage")
        return np.lib.stride_tricks.as_strided(
            items[first:], lengths, [step * items.dtype.itemsize for step in steps]
        )


def _sizes(given: object) -> tuple[int, ...]:
    sizes = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(f"sizes {given!r:.40}, expected whole numbers from 0 on")
    return sizes


def write_torch_file(
    path: Path, values: Mapping[str, object], name: str, tensors: Mapping[str, Array]
) -> None:
    """Write an archive that `torch.load` reads: plain values, and a mapping of tensors under a name."""
    kinds = {dtype: kind for kind, dtype in STORAGES.items()}
    items = []
    for index, (key, array) in enumerate(tensors.items()):
        strides = tuple(step // array.itemsize for step in np.empty(array.shape, array.dtype).strides)
        storage = (
            _plain("storage"),
            _named(kinds[array.dtype]),
            *map(_plain, (str(index), "cpu", array.size)),
        )
        arguments = (b"(", *storage, b"tQ", *map(_plain, (0, array.shape, strides, False)))
        items += [_plain(key), _named(REBUILD), b"(", *arguments, _named(ORDERED), b")RtR"]
    plain = [_plain(each) for pair in values.items() for each in pair]
    pickled = b"".join((b"\x80\x02}(", *plain, _plain(name), b"}(", *items, b"uu."))
    with whole_file(path) as unfinished, zipfile.ZipFile(unfinished, "w") as archive:
        _store(archive, "archive/data.pkl", pickled)
        _store(archive, "archive/byteorder", b"little")
        for index, array in enumerate(tensors.values()):
            _store(archive, f"archive/data/{index}", np.ascontiguousarray(array).tobytes())
        _store(archive, "archive/version", b"3\n")


def _plain(value: object) -> bytes:
    """Pickle a plain value without references, so that pickles can be joined."""
    into = io.BytesIO()
    pickler = pickle.Pickler(into, protocol=2)
    pickler.fast = True
    pickler.dump(value)
    return into.getvalue()[2:-1]


def _named(function: str) -> bytes:
    module, name = function.split()
    return f"c{module}\n{name}\n".encode()


def _store(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name)
    n_before = archive.fp.tell() + 30 + len(name) + 4 if archive.fp is not None else 0
    # Storages in an archive begin at multiples of 64 bytes.
    n_padding = -n_before % 64
    entry.extra = struct.pack("<2H", 0x4246, n_padding) + bytes(n_padding)  # "FB", as PyTorch pads
    archive.writestr(entry, content)


OPTIONAL_TENSORS = ("decoder.mask", "alignment_heads")
"""Computed buffers of some exports, dropped."""


def read_openai(path: Path) -> Checkpoint:
    """Read a `.pt` file; tensors stay on disk until used. Raises: CheckpointError."""
    content = read_torch_file(path)
    if not isinstance(content, Mapping) or not {"dims", "model_state_dict"} <= set(content):
        raise CheckpointError(f"{path}: no Whisper checkpoint, expected the keys dims and model_state_dict")
    dims = dims_from_mapping(content["dims"], str(path))
    state = content["model_state_dict"]
    if not isinstance(state, Mapping) or not all(isinstance(tensor, np.ndarray) for tensor in state.values()):
        raise CheckpointError(f"{path}: model_state_dict holds something else than tensors")
    tensors = {name: tensor for name, tensor in state.items() if name not in OPTIONAL_TENSORS}
    return validated(Checkpoint(path.stem, dims=dims, tensors=tensors), str(path))


def save_openai(checkpoint: Checkpoint, path: Path, dtype: str = "float16") -> None:
    """dtype: float32, float16 or bfloat16."""
    number = plain_dtype(dtype, "pt")
    state = {name: with_dtype(tensor, number) for name, tensor in checkpoint.tensors.items()}
    write_torch_file(path, {"dims": asdict(checkpoint.dims)}, "model_state_dict", state)


CODEC = Codec(read_openai, save_openai)


def dims_from_mapping(stored: object, source: str) -> ModelDims:
    dims = from_plain(ModelDims, stored, f"{source}: dims", CheckpointError)
    check_dims(dims, source)
    return dims
