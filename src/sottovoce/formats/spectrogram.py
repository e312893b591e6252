"""The spectrogram of a recording as a small PNG for a page."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sottovoce.audio.io import AudioSource, open_audio
from sottovoce.audio.mel import DYNAMIC_RANGE, MelStream

MOST_COLUMNS = 1600
N_ROWS = 40
FRAMES_A_COLUMN = 5
N_SHADES = 64
COLOURS = ("000004", "2b115e", "721f81", "b73779", "f1605d", "feb078", "fcfdbf")
Columns: TypeAlias = npt.NDArray[np.float32]


def spectrogram_address(recording: AudioSource) -> str:
    """Encode the spectrogram of a recording as a `data:` address: a PNG of at most 1600 by 40 pixels."""
    columns = np.concatenate(list(_columns(recording)))
    if len(columns) > MOST_COLUMNS:
        starts = np.arange(MOST_COLUMNS) * len(columns) // MOST_COLUMNS
        counts = np.diff(np.append(starts, len(columns)))
        columns = np.add.reduceat(columns, starts, axis=0) / counts[:, None]
    relative = (columns - columns.max()) / (DYNAMIC_RANGE * 0.75) + 1.0
    shades = (np.clip(relative, 0.0, 1.0) * (N_SHADES - 1)).round().astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(png(shades.T[::-1])).decode("ascii")


def _columns(recording: AudioSource) -> Iterator[Columns]:
    waiting = np.zeros((0, 2 * N_ROWS), np.float32)
    for frames in _log_mel(recording):
        waiting = np.concatenate([waiting, frames])
        n_whole = len(waiting) // FRAMES_A_COLUMN * FRAMES_A_COLUMN
        yield _pooled(waiting[:n_whole])
        waiting = waiting[n_whole:]
    if len(waiting):
        yield _pooled(np.resize(waiting, (FRAMES_A_COLUMN, 2 * N_ROWS)))


def _log_mel(recording: AudioSource) -> Iterator[Columns]:
    stream = MelStream(2 * N_ROWS)
    with open_audio(recording) as reader:
        for chunk in reader:
            yield stream.push(chunk.samples).T
    yield stream.finish().T


def _pooled(frames: Columns) -> Columns:
    pooled: Columns = frames.reshape(-1, FRAMES_A_COLUMN, N_ROWS, 2).mean(axis=(1, 3))
    return pooled


def png(shades: npt.NDArray[np.uint8]) -> bytes:
    """Encode shades (n_rows, n_columns) uint8 as a PNG of 8 bits a pixel. Source: RFC 2083."""
    height, width = shades.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), shades], axis=1)  # a byte for the filter: none
    places = np.linspace(0, len(COLOURS) - 1, N_SHADES)
    levels = np.array([list(bytes.fromhex(colour)) for colour in COLOURS]).T
    channels = [np.interp(places, range(len(COLOURS)), level) for level in levels]
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", np.stack(channels, axis=1).round().astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
