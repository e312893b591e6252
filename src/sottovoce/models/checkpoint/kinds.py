"""Formats of models: their names, and how files and folders are recognised. Imports nothing heavy."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType

from sottovoce.errors import CheckpointError, OptionError, cause_of

NANO_ASSET = Path(__file__).parents[1] / "assets" / "nano.safetensors"
KINDS = MappingProxyType(
    {"pt": "OpenAI .pt", "hf": "Hugging Face folder", "ggml": "ggml", "ct2": "CTranslate2 folder"}
)
"""Formats that can be written, and their names in messages."""


ENDINGS = MappingProxyType({".pt": "pt", ".bin": "ggml", ".ggml": "ggml"})


def kind_by_name(output: Path) -> str:
    """Choose a format by a file's ending; Hugging Face without one.

    Raises:
        OptionError: another ending.
    """
    ending = ending_of(output)
    if ending and ending not in ENDINGS:
        raise OptionError(
            f"output '{output}': expected a name that ends in .pt (OpenAI) or .bin (ggml), or a folder's "
            f"(Hugging Face, or CTranslate2 with --to ct2), got '{output.suffix}'"
        )
    return ENDINGS.get(ending, "hf")


def require_ggml_name(output: Path) -> None:
    """Raise OptionError if a file's ending is that of another format than ggml."""
    ending = ending_of(output)
    if ending and ENDINGS.get(ending) != "ggml":
        raise OptionError(
            f"output '{output}': expected a name that ends in .bin (ggml), got '{output.suffix}'"
        )


def ending_of(output: Path) -> str:
    """Return the ending of a format in lower case; "" for model names that contain a dot.

    Those end in a number (`large-v3.5`, `base.q5_0`) or a language (`small.en`).
    """
    ending = output.suffix.lower()
    return ending if ending[1:].isalpha() and ending != ".en" else ""


WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
"""Weights in a Hugging Face folder, whole or with an index of shards."""
CT2_MODEL = "model.bin"
"""Weights in a CTranslate2 folder."""
_CONFIGS = ("config.json", "generation_config.json", "preprocessor_config.json")
SAFETENSORS = (*_CONFIGS, "model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
CTRANSLATE2 = (*_CONFIGS, CT2_MODEL, "vocabulary.*", "tokenizer.json")
PICKLES = (*_CONFIGS, "pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")
HUB_FILES = (SAFETENSORS, CTRANSLATE2, PICKLES)
"""Sets of files; the first for which a repository has weights is used."""

GGML_MAGIC = b"lmgg"
CT2_HEAD = b"\x0c\0WhisperSpec\0"
"""The specification's name in a CTranslate2 file, after a version of four bytes."""
ZIP = b"PK\x03\x04"
PICKLE = b"\x80\x02"
"""First bytes of a `.pt` file of PyTorch before 1.6."""
COMPACT_KEY = "sottovoce"
"""Key of a compact file's description in its safetensors metadata."""


def kind_of(path: Path) -> str:
    """Recognise a file or folder by its content: a key of `KINDS`, or "compact".

    Raises:
        CheckpointError: the file is of no known kind, or not readable.
    """
    if path.is_dir():
        return "ct2" if (path / CT2_MODEL).exists() and not _has_weights(path) else "hf"
    try:
        with path.open("rb") as file:
            head = file.read(4 + len(CT2_HEAD))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({cause_of(error)})") from error
    if head[4:] == CT2_HEAD:
        return "ct2"
    if head.startswith(GGML_MAGIC):
        return "ggml"
    if head.startswith((ZIP, PICKLE)):
        return "pt"
    if head[8:9] != b"{":
        raise CheckpointError(
            f"{path}: begins with {head[:4]!r}, "
            "expected a PyTorch, safetensors, ggml or CTranslate2 file, or a folder"
        )
    if not _is_compact(path):
        raise CheckpointError(f"{path}: safetensors without dimensions, give the folder with its config.json")
    return "compact"


def _has_weights(folder: Path) -> bool:
    return any((folder / name).exists() or (folder / f"{name}.index.json").exists() for name in WEIGHT_FILES)


def _is_compact(path: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return COMPACT_KEY in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def is_whole(folder: Path) -> bool:
    """Return whether a folder has a configuration and one complete set of weights."""
    if not (folder / "config.json").is_file():
        return False
    if any((folder / name).is_file() for name in WEIGHT_FILES):
        return True
    if (folder / CT2_MODEL).is_file():
        return any(folder.glob("vocabulary.*"))
    return any(_has_all_shards(folder, folder / f"{name}.index.json") for name in WEIGHT_FILES)


def _has_all_shards(folder: Path, index: Path) -> bool:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False
    return bool(names) and all((folder / str(name)).is_file() for name in names)


def may_be_model(folder: Path) -> bool:
    """Return whether a folder holds a file of a model."""
    return any((folder / name).exists() for name in ("config.json", CT2_MODEL))
