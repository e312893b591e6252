"""How long a model takes for the parts of its work, on whatever is at hand.

The audio of the parts is noise, a full window of it, and the decoder is given tokens instead of choosing
them: what is computed is the same as for speech, and the same for every model of a size.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sottovoce.audio.mel import log_mel, window_features
from sottovoce.backends.base import Backend, DecoderState
from sottovoce.errors import OptionError
from sottovoce.types import HOP_SAMPLES, SAMPLE_RATE, EncoderOutput

MEL_FRAMES_PER_SECOND = SAMPLE_RATE // HOP_SAMPLES
PROMPT_TOKENS = 100
STEPS = 40
"""Tokens read one after the other, behind a prompt; a window of speech has about so many."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that something took: the median of its repeats, the lowest and the highest."""

    median_s: float
    lowest_s: float
    highest_s: float

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """Of measured seconds, at least one."""
        return cls(statistics.median(seconds), min(seconds), max(seconds))

    def each(self, n: int) -> Timing:
        """Of one of n equal pieces."""
        return Timing(self.median_s / n, self.lowest_s / n, self.highest_s / n)


def timed(
    action: Callable[[], object], repeats: int, *, warm_ups: int = 1, device: torch.device | None = None
) -> Timing:
    """Repeat an action: `warm_ups` times unmeasured, then `repeats` times.

    device: waited for where it works beside the program.

    Raises: OptionError for less than one repeat.
    """
    if repeats < 1:
        raise OptionError(f"repeats: expected at least 1, got {repeats}")
    seconds = []
    with torch.inference_mode():
        for number in range(warm_ups + repeats):
            _wait_for(device)
            begun = time.perf_counter()
            action()
            _wait_for(device)
            if number >= warm_ups:
                seconds.append(time.perf_counter() - begun)
    return Timing.of(seconds)


def model_parts(backend: Backend, n_rows: int, repeats: int) -> Iterator[tuple[str, Timing]]:
    """What a full window costs, part by part: names, and seconds as they are measured.

    n_rows: decoder rows read together, the beams of a search; one row is measured too.

    Raises: OptionError for less than one row or repeat.
    """
    if n_rows < 1:
        raise OptionError(f"rows: expected at least 1, got {n_rows}")
    window = _Window(backend)
    device = backend.device
    seconds = f"{window.seconds:g} s"
    yield f"spectrogram, {seconds}", timed(window.spectrogram, repeats, device=device)
    yield f"encoder, {seconds}", timed(window.encode, repeats, device=device)
    yield f"decoder, {PROMPT_TOKENS} tokens at once", timed(window.read_prompt, repeats, device=device)
    for rows in sorted({1, n_rows}):
        name = "decoder, a token" + (f" of {rows} rows" if rows > 1 else "")
        yield name, timed(window.reading_on(rows), repeats, device=device).each(STEPS)


class _Window:
    """A window of noise, and what a model does with it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        n_frames = 2 * backend.dims.n_audio_ctx
        self.seconds = n_frames / MEL_FRAMES_PER_SECOND
        n_samples = int(self.seconds * SAMPLE_RATE)
        self._noise = 0.1 * np.random.default_rng(0).standard_normal(n_samples).astype(np.float32)
        self._features = window_features([self.spectrogram()], n_frames)
        self._prompt = torch.arange(PROMPT_TOKENS, device=backend.device)[None]
        with torch.inference_mode():
            self._encoded = self.encode()

    def spectrogram(self) -> Tensor:
        return log_mel(self._noise, self._backend.dims.n_mels, self._backend.device)

    def encode(self) -> EncoderOutput:
        return self._backend.encode(self._features)

    def read_prompt(self, n_rows: int = 1) -> DecoderState:
        state = self._backend.start(self._encoded, n_rows)
        self._backend.step(self._prompt.expand(n_rows, -1), state)
        return state

    def reading_on(self, n_rows: int) -> Callable[[], None]:
        with torch.inference_mode():
            state = self.read_prompt(n_rows)
        token = torch.full((n_rows, 1), PROMPT_TOKENS, device=self._backend.device)

        def read_on() -> None:
            for _ in range(STEPS):
                self._backend.step(token, state)
            state.truncate(PROMPT_TOKENS)

        return read_on


def _wait_for(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
