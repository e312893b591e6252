"""Load what `torch.save` wrote, tensors only: no code in it runs."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import torch

from sottovoce.errors import CheckpointError


def load_pickle(path: Path) -> object:
    """The content of a PyTorch file; its tensors stay on disk until used, where the format allows it.

    Raises: CheckpointError, when the file is damaged or holds anything but tensors and plain values.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a damaged pickle makes the unpickler stumble with any error at all
        raise CheckpointError(f"{path}: not a readable PyTorch file ({first_line(error)})") from error


def first_line(error: Exception) -> str:
    """What an error says in one line, or its kind when it says nothing; never advice to run a file."""
    text = str(error)
    if isinstance(error, pickle.UnpicklingError):
        text = text.partition("WeightsUnpickler error:")[2].strip() or "it holds more than tensors"
    lines = text.splitlines()
    return lines[0] if lines else type(error).__name__
