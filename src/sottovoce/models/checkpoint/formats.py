"""The registry of checkpoint formats: their names, and how they are recognised.

The module that reads and writes a format is imported when it is used.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from sottovoce.errors import CheckpointError, OptionError, cause_of

if TYPE_CHECKING:
    from sottovoce.models.checkpoint.base import Codec

NANO_ASSET = Path(__file__).parents[1] / "assets" / "nano.safetensors"
CONFIG = "config.json"
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
"""Of a Hugging Face folder, whole or an index of shards."""
CT2_MODEL = "model.bin"
_CONFIGS = (CONFIG, "generation_config.json", "preprocessor_config.json")
GGML_MAGIC = b"lmgg"


@dataclass(frozen=True, slots=True)
class CheckpointFormat:
    """A format of checkpoints: files with a suffix, or folders.

    name: as `models convert --to` takes it. module: has a `CODEC`. title, content: in messages. suffixes:
    empty for folders. magic: bytes of files at offset magic_at. weights, mark: files of a folder, and the one
    that identifies it. companion: pattern of another file of the weights. hub_files: sets of file patterns
    of the hub, by preference. is_written: models can be converted to it.
    """

    name: str
    title: str
    module: str
    content: str = ""
    suffixes: tuple[str, ...] = ()
    magic: tuple[bytes, ...] = ()
    magic_at: int = 0
    weights: tuple[str, ...] = ()
    mark: str = ""
    companion: str = "*"
    hub_files: tuple[tuple[str, ...], ...] = ()
    is_written: bool = True

    @property
    def program(self) -> str:
        return self.title.removesuffix(" folder").removesuffix(f" {(*self.suffixes, '')[0]}")

    def codec(self) -> Codec:
        """Import the format's codec."""
        codec: Codec = importlib.import_module(f"{__package__}.{self.module}").CODEC
        return codec

    def matches(self, path: Path) -> bool:
        """Return whether a file or folder is of this format. Raises: CheckpointError if it cannot be read."""
        if path.is_dir():
            return any((path / name).exists() or _index(path, name).exists() for name in self.weights)
        head = head_of(path)[self.magic_at :]
        return any(head.startswith(magic) for magic in self.magic)

    def is_complete(self, folder: Path) -> bool:
        """Return whether a folder holds a complete set of weights."""
        has_weights = any((folder / name).is_file() for name in self.weights)
        has_weights = has_weights or any(_has_all_shards(folder, name) for name in self.weights)
        return has_weights and any(folder.glob(self.companion))


FORMATS = (
    CheckpointFormat(
        "pt", "OpenAI .pt", "torch_file", "PyTorch", suffixes=(".pt",), magic=(b"PK\x03\x04", b"\x80\x02")
    ),
    CheckpointFormat(
        "compact",
        "compact safetensors",
        "compact",
        "safetensors",
        magic=(b"{",),
        magic_at=8,
        is_written=False,
    ),
    CheckpointFormat(
        "hf",
        "Hugging Face folder",
        "huggingface",
        weights=WEIGHT_FILES,
        mark=CONFIG,
        hub_files=(
            (*_CONFIGS, "model.safetensors", "model.safetensors.index.json", "model-*.safetensors"),
            (*_CONFIGS, "pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"),
        ),
    ),
    CheckpointFormat("ggml", "ggml", "ggml", "ggml", suffixes=(".bin", ".ggml"), magic=(GGML_MAGIC,)),
    CheckpointFormat(
        "ct2",
        "CTranslate2 folder",
        "ctranslate2",
        "CTranslate2",
        magic=(b"\x0c\0WhisperSpec\0",),  # behind a version of four bytes
        magic_at=4,
        weights=(CT2_MODEL,),
        mark=CT2_MODEL,
        companion="vocabulary.*",
        hub_files=((*_CONFIGS, CT2_MODEL, "vocabulary.*", "tokenizer.json"),),
    ),
)
"""A folder without weights is read as the first format of folders, for its error."""

BY_NAME = MappingProxyType({each.name: each for each in FORMATS})
WRITTEN = tuple(each.name for each in FORMATS if each.is_written)
HUB_FILES = tuple(filter(None, chain(*zip_longest(*(each.hub_files for each in FORMATS)))))
_FOLDERS = tuple(each for each in FORMATS if each.weights)
_HEAD_BYTES = max(each.magic_at + len(magic) for each in FORMATS for magic in each.magic)


def format_of(path: Path) -> CheckpointFormat:
    """Recognise a file or folder by its content.

    Raises: CheckpointError for an unknown format or unreadable file.
    """
    recognised = next((each for each in FORMATS if each.matches(path)), None)
    if recognised is None and path.is_dir():
        return _FOLDERS[0]
    if recognised is None:
        *others, last = (each.content for each in FORMATS if each.content)
        raise CheckpointError(
            f"{path}: begins with {head_of(path)[:4]!r}, "
            f"expected a {', '.join(others)} or {last} file, or a folder"
        )
    return recognised


def head_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({cause_of(error)})") from error


def format_by_name(output: Path) -> CheckpointFormat:
    """Choose a format by a file's ending; without one, the first format of folders.

    Raises: OptionError: another ending.
    """
    ending = ending_of(output)
    if not ending:
        return _FOLDERS[0]
    chosen = next((each for each in FORMATS if ending in each.suffixes), None)
    if chosen is None:
        files = " or ".join(f"{each.suffixes[0]} ({each.program})" for each in FORMATS if each.suffixes)
        folders = f"{_FOLDERS[0].program}, or "
        folders += " or ".join(f"{each.program} with --to {each.name}" for each in _FOLDERS[1:])
        raise OptionError(
            f"output '{output}': expected a name that ends in {files}, or a folder's "
            f"({folders}), got '{output.suffix}'"
        )
    return chosen


def require_suffix(output: Path, wanted: CheckpointFormat) -> None:
    """Check that a file's ending is not that of another format.

    Raises: OptionError.
    """
    ending = ending_of(output)
    if ending and ending not in wanted.suffixes:
        raise OptionError(
            f"output '{output}': expected a name that ends in {wanted.suffixes[0]} ({wanted.program}), "
            f"got '{output.suffix}'"
        )


def ending_of(output: Path) -> str:
    """Return the lower-case ending of a format; "" for a model name with a dot (`large-v3.5`, `base.q5_0`,
    `small.en`).
    """
    ending = output.suffix.lower()
    return ending if ending[1:].isalpha() and ending != ".en" else ""


def is_whole(folder: Path) -> bool:
    """Return whether a folder has a configuration and one complete set of weights."""
    return (folder / CONFIG).is_file() and any(each.is_complete(folder) for each in FORMATS)


def may_be_model(folder: Path) -> bool:
    return any((folder / each.mark).exists() for each in FORMATS if each.mark)


def _index(folder: Path, weights: str) -> Path:
    return folder / f"{weights}.index.json"


def _has_all_shards(folder: Path, weights: str) -> bool:
    try:
        names = set(json.loads(_index(folder, weights).read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False
    return bool(names) and all((folder / str(name)).is_file() for name in names)
