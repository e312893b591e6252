"""Time of a model's parts, on noise and fixed tokens, and memory of this process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.audio.mel import MEL_FRAMES_PER_SECOND, log_mel, window_features
from sottovoce.errors import OptionError
from sottovoce.models.backend import Backend, EncoderOutput, RunningRows
from sottovoce.models.devices import HasType
from sottovoce.types import SAMPLE_RATE, Floats

PROMPT_TOKENS = 100
STEPS = 40
"""Decoded tokens; about as many as in a window of speech."""
PROCESS = Path("/proc/self")
FORGET_PEAK = "5"
"""Value for Linux's `clear_refs` that resets the peak (proc(5))."""


@dataclass(frozen=True, slots=True)
class Timing:
    median_s: float
    lowest_s: float
    highest_s: float

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        return cls(statistics.median(seconds), min(seconds), max(seconds))

    def each(self, n: int) -> Timing:
        return Timing(self.median_s / n, self.lowest_s / n, self.highest_s / n)


def timed(
    action: Callable[[], object], repeats: int, *, warm_ups: int = 1, device: HasType | None = None
) -> Timing:
    """Time an action, `repeats` times after `warm_ups`.

    device: synchronised around each run if it is CUDA.
    Raises: OptionError for less than one repeat.
    """
    if repeats < 1:
        raise OptionError(f"repeats: expected at least 1, got {repeats}")
    seconds = []
    for number in range(warm_ups + repeats):
        _wait_for(device)
        begun = time.perf_counter()
        action()
        _wait_for(device)
        if number >= warm_ups:
            seconds.append(time.perf_counter() - begun)
    return Timing.of(seconds)


def model_parts(backend: Backend, n_rows: int, repeats: int) -> Iterator[tuple[str, Timing]]:
    """Time spectrogram, encoder and decoder on a full window.

    n_rows: decoder rows of one step, besides a single row.
    Raises: OptionError for less than one row or repeat.
    """
    if n_rows < 1:
        raise OptionError(f"rows: expected at least 1, got {n_rows}")
    window = _NoiseWindow(backend)
    device = backend.device
    seconds = f"{window.seconds:g} s"
    yield f"spectrogram, {seconds}", timed(window.spectrogram, repeats, device=device)
    yield f"encoder, {seconds}", timed(window.encode, repeats, device=device)
    yield f"decoder, {PROMPT_TOKENS} tokens at once", timed(window.read_prompt, repeats, device=device)
    for rows in sorted({1, n_rows}):
        name = "decoder, a token" + (f" of {rows} rows" if rows > 1 else "")
        yield name, timed(window.reading_on(rows), repeats, device=device).each(STEPS)


class _NoiseWindow:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        n_frames = 2 * backend.dims.n_audio_ctx
        self.seconds = n_frames / MEL_FRAMES_PER_SECOND
        n_samples = int(self.seconds * SAMPLE_RATE)
        self._noise = 0.1 * np.random.default_rng(0).standard_normal(n_samples).astype(np.float32)
        self._features = window_features([self.spectrogram()], n_frames)
        self._encoded = self.encode()

    def spectrogram(self) -> Floats:
        return log_mel(self._noise, self._backend.dims.n_mels)

    def encode(self) -> EncoderOutput:
        return self._backend.encode(self._features)

    def read_prompt(self, n_rows: int = 1) -> RunningRows:
        rows = self._backend.rows()
        rows.admit(self._encoded)
        rows.select([0] * n_rows)
        rows.step([range(PROMPT_TOKENS)] * n_rows, [[PROMPT_TOKENS - 1]] * n_rows)
        return rows

    def reading_on(self, n_rows: int) -> Callable[[], None]:
        rows = self.read_prompt(n_rows)

        def read_on() -> None:
            for _ in range(STEPS):
                rows.step([[PROMPT_TOKENS]] * n_rows, [[0]] * n_rows)
            for row in range(n_rows):
                rows.cut(row, STEPS)

        return read_on


def _wait_for(device: HasType | None) -> None:
    if device is not None and device.type == "cuda":
        import torch

        torch.cuda.synchronize(str(device))


def forget_peak(process: Path = PROCESS) -> None:
    """Reset the peak memory of this process; no effect outside Linux."""
    try:
        (process / "clear_refs").write_text(FORGET_PEAK)
    except OSError:
        return


def peak_bytes(process: Path = PROCESS) -> int | None:
    """Return the highest resident memory since `forget_peak` (None outside Linux)."""
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return None
    peaks = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peaks[0]) * 1024 if peaks else None
