"""What `sottovoce ctc` reads: emissions of npy, npz and csv files, or recordings through a CTC head."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel
from sottovoce.errors import InputError, OptionError, cause_of
from sottovoce.models.ctc_head import emissions_of_recording
from sottovoce.text.files import read_lines, read_text
from sottovoce.types import FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True)
class EmissionSource:
    """One utterance: its name and its log-probabilities or logits (T, V) float32."""

    name: str
    values: Tensor


def read_emissions(path: Path) -> Iterator[EmissionSource]:
    """Utterances of a file: (T, V) or (B, T, V) of an npy, every array of an npz, the rows of a csv.

    "-" is an npy from standard input. A csv is separated by commas or semicolons, without a header.
    Raises InputError.
    """
    try:
        if str(path) == "-":
            whole = io.BytesIO(sys.stdin.buffer.read())
            yield from _utterances("-", np.load(whole, allow_pickle=False))
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                for name in archive.files:
                    yield from _utterances(f"{path}#{name}", archive[name])
        elif path.suffix == ".npy":
            yield from _utterances(str(path), np.load(path, allow_pickle=False))
        elif path.suffix == ".csv":
            yield from _utterances(str(path), _read_csv(path))
        else:
            raise ValueError(f"a file that ends in {path.suffix!r}")
    except InputError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{path}: expected emissions as .npy, .npz or .csv, got {cause_of(error)}"
        ) from error


def read_priors(path: Path) -> tuple[float, ...]:
    """Read how frequent each label is, (V,): numbers of a text file, one a line. Raises OptionError."""
    text = read_text(path, "one number a label")
    try:
        return tuple(float(line) for line in text.split())
    except ValueError as error:
        raise OptionError(f"{path}: expected one number a label, got {cause_of(error)}") from error


def recorded_emissions(path: Path, model: Model) -> EmissionSource:
    """Compute the emissions of a recording by a model's CTC head, window by window. Raises OptionError."""
    if model.ctc_head is None:
        raise OptionError(
            f"--model: expected a model with a CTC head (nano and base have one), got {model.name}"
        )
    dims = model.backend.dims
    values = emissions_of_recording(
        model.ctc_head,
        log_mel(load_audio(path), dims.n_mels, model.backend.device),
        n_audio_ctx=dims.n_audio_ctx,
        n_tail_frames=round(model.backend.tail_s * FRAMES_PER_SECOND),
    )
    return EmissionSource(str(path), values)


def _utterances(
    name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> Iterator[EmissionSource]:
    if values.ndim == 2:
        yield EmissionSource(name, torch.from_numpy(values.astype(np.float32)))
        return
    if values.ndim != 3:
        raise ValueError(f"an array of shape {values.shape}")
    for row, utterance in enumerate(values):
        yield EmissionSource(f"{name}[{row}]", torch.from_numpy(utterance.astype(np.float32)))


def _read_csv(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    lines = read_lines(path, "emissions as .npy, .npz or .csv", InputError)
    rows = csv.reader(lines, delimiter=";" if ";" in "".join(lines[:1]) else ",")
    return np.array([[float(cell) for cell in row if cell.strip()] for row in rows if row], dtype=np.float32)
