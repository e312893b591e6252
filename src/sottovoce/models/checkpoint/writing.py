"""Writing of model files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from sottovoce.text.files import whole_file


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
