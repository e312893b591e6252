"""Atomic writing of model files."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` at the end, or removed after an error.

    Permissions are those of any new file.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        unfinished = Path(folder) / path.name
        unfinished.touch()
        usual = unfinished.stat().st_mode
        yield unfinished
        unfinished.chmod(usual)
        os.replace(unfinished, path)


@contextmanager
def as_os_error() -> Iterator[None]:
    """Convert PyTorch's and safetensors' errors of a full disk to OSError."""
    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        raise OSError(str(error).partition("\n")[0]) from error


def write_json(path: Path, content: object, *, indent: int | None = 2) -> None:
    """indent: None is faster."""
    with whole_file(path) as unfinished:
        unfinished.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
