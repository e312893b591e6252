"""Weights as the native kernels read them: packed at a model's first use, mapped from the cache afterwards.

A file of the cache holds a page of JSON (`PackedFile`) and then the memory of all parts, each from a cache
line on. It is for one set of weights (`fingerprint`), one layout of the kernels and one choice of number
formats; instruction sets share it as far as they use the same number formats. Processes that map it share its
memory. Weights that were not read from files, and folders that cannot be written, are packed in memory.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from sottovoce_kernels.packed import pack, packed_layout, packed_size

from sottovoce.errors import OptionError, cause_of
from sottovoce.models.checkpoint.base import Array, Checkpoint, FileTensors, floats, release_pages
from sottovoce.models.package_index import cache_root
from sottovoce.text.files import from_json, whole_file
from sottovoce.types import Floats

logger = logging.getLogger(__name__)

Tensors: TypeAlias = Mapping[str, Array]
Bytes: TypeAlias = npt.NDArray[np.uint8]

VERSION = 1
"""Of the files, and of the numbers that are computed here; others are ignored."""
PAGE = 4096
"""Bytes before the parts in a file."""
LINE = 64
"""Bytes; parts begin at multiples."""
ROWS = 4096
"""Rows of a table that are float32 at a time."""
SAMPLES, SAMPLE_BYTES = 64, 4096
"""Places of each file that its fingerprint reads."""
SUFFIX = ".packed"


@dataclass(frozen=True, slots=True)
class PackedTable:
    """Linear layers or a convolution as one table (n_out, n_in).

    layers: names without `.weight` and `.bias`, stacked; missing biases are 0. in_words: int16, else int8.
    A convolution's inputs are those of its first place, then of the second, and so on.
    """

    layers: tuple[str, ...]
    shape: tuple[int, int]
    in_words: bool = False

    @property
    def n_bytes(self) -> int:
        return int(packed_size(self.shape, in_words=self.in_words))

    def fill(self, tensors: Tensors, memory: Bytes) -> None:
        at = 0
        for layer in self.layers:
            weight, bias = tensors[f"{layer}.weight"], tensors.get(f"{layer}.bias")
            biases = np.zeros(len(weight), np.float32) if bias is None else floats(bias)
            for first in range(0, len(weight), ROWS):
                rows = floats(weight[first : first + ROWS])
                if rows.ndim == 3:
                    rows = floats(rows.transpose(0, 2, 1).reshape(len(rows), -1))
                some = biases[first : first + ROWS]
                span = (at, at := at + len(rows))
                addresses = rows.ctypes.data, some.ctypes.data, self.shape, span, memory.ctypes.data
                pack(*addresses, in_words=self.in_words)


@dataclass(frozen=True, slots=True)
class PackedNumbers:
    """float32 numbers of a shape that `read` computes."""

    shape: tuple[int, ...]
    read: Callable[[Tensors], Floats]

    @property
    def n_bytes(self) -> int:
        return 4 * int(np.prod(self.shape))

    def fill(self, tensors: Tensors, memory: Bytes) -> None:
        memory.view(np.float32)[:] = self.read(tensors).reshape(-1)


def stored(name: str, *shape: int) -> dict[str, PackedPart]:
    """Return the part of a tensor, under its name."""
    return {name: PackedNumbers(shape, lambda tensors: floats(tensors[name]))}


PackedPart: TypeAlias = PackedTable | PackedNumbers


class PackedWeights:
    """Addresses of the parts of a network, by name. They are valid as long as this object."""

    def __init__(self, checkpoint: Checkpoint, parts: Mapping[str, PackedPart]) -> None:
        """Map the parts, or pack and store them."""
        places, end = {}, 0
        for name, part in parts.items():
            places[name] = slice(end, end + part.n_bytes)
            end += -(-part.n_bytes // LINE) * LINE
        tensors = checkpoint.tensors
        file = _file_of(checkpoint.name, tensors, parts, end)
        memory = None if file is None else file.memory()
        if memory is None:
            memory = _aligned(end)
            for name, part in parts.items():
                part.fill(tensors, memory[places[name]])
                release_pages(tensors)
            if file is not None:
                file.store(memory)
        release_pages(tensors)
        self._memory = memory
        self._starts = {name: place.start for name, place in places.items()}

    def __getitem__(self, name: str) -> int:
        return int(self._memory.ctypes.data) + self._starts[name]


def _aligned(n_bytes: int) -> Bytes:
    memory = np.empty(n_bytes + LINE, np.uint8)
    memory.fill(0)
    first = -memory.ctypes.data % LINE
    return memory[first : first + n_bytes]


class PackedFile(msgspec.Struct, frozen=True):
    """What a file of the cache holds. source: the path of the weights. n_bytes: of the parts."""

    version: int
    layout: int
    model: str
    source: str
    fingerprint: str
    key: str
    n_bytes: int

    @property
    def path(self) -> Path:
        return packed_folder() / f"{self.key}{SUFFIX}"

    @property
    def is_current(self) -> bool:
        """Whether it is of the kernels that are installed, and of the weights that `source` has now."""
        with suppress(OSError):
            return (self.version, self.layout) == (VERSION, packed_layout()) and (
                self.fingerprint == fingerprint(Path(self.source))
            )
        return False

    def memory(self) -> Bytes | None:
        """Map the parts; None without a whole file."""
        if read_packed(self.path) != self:
            return None
        with suppress(OSError, ValueError), self.path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return np.frombuffer(content, np.uint8, self.n_bytes, PAGE)
        return None

    def store(self, memory: Bytes) -> None:
        """Write the parts atomically, and remove files that are no longer current."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self.path) as unfinished, unfinished.open("wb") as file:
                file.write(msgspec.json.encode(self).ljust(PAGE))
                file.write(memory.data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            logger.info("%s: packed weights are not kept (%s)", self.model, cause_of(error))
            return
        for other in list_packed():
            if not other.is_current:
                other.remove()

    def remove(self) -> None:
        with suppress(OSError):  # another process may remove it too; Windows keeps mapped files
            self.path.unlink()


def _file_of(
    model: str, tensors: Tensors, parts: Mapping[str, PackedPart], n_bytes: int
) -> PackedFile | None:
    """Return the file for parts of weights; None if these were not read from a file or folder."""
    if not isinstance(tensors, FileTensors):
        return None
    with suppress(OSError):
        layout, source, identity = packed_layout(), tensors.path, fingerprint(tensors.path)
        formats = [(name, part.shape, getattr(part, "in_words", None)) for name, part in parts.items()]
        key = hashlib.sha256(repr((VERSION, layout, identity, formats)).encode()).hexdigest()[:32]
        file = PackedFile(VERSION, layout, model, str(source.absolute()), identity, key, n_bytes)
        return file if len(msgspec.json.encode(file)) <= PAGE else None
    return None


def fingerprint(path: Path) -> str:
    """Identify the content of a file or folder by names, sizes, times and samples. Raises: OSError."""
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    digest = hashlib.sha256()
    for each in files:
        with each.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            digest.update(repr((each.name, status.st_size, status.st_mtime_ns)).encode())
            for sample in range(SAMPLES if status.st_size > SAMPLES * SAMPLE_BYTES else 1):
                file.seek(sample * status.st_size // SAMPLES)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def packed_folder() -> Path:
    return cache_root() / "packed"


def list_packed() -> Iterator[PackedFile]:
    """Yield the readable files of the cache."""
    yield from filter(None, map(read_packed, sorted(packed_folder().glob(f"*{SUFFIX}"))))


def read_packed(path: Path) -> PackedFile | None:
    """Read the description of a file; None if it is missing, damaged or unfinished."""
    with suppress(OSError, OptionError), path.open("rb") as file:
        stored = from_json(PackedFile, file.read(PAGE), str(path))
        return stored if os.fstat(file.fileno()).st_size == PAGE + stored.n_bytes else None
    return None
