"""What both kinds of voice activity detection share: windows of probabilities, and checks of options.

This module knows no segments and no edges.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sottovoce.audio.silero import WINDOW_SAMPLES, SileroState, SpeechModel
from sottovoce.errors import OptionError
from sottovoce.types import SAMPLE_RATE, Samples


class SpeechWindows:
    """Samples of any number to probabilities of whole windows."""

    def __init__(self, model: SpeechModel) -> None:
        self._model = model
        self._state: SileroState = model.start()
        self._pending = torch.zeros(0)
        self.n_samples = 0

    def push(self, samples: Samples) -> list[float]:
        self.n_samples += len(samples)
        signal = torch.cat((self._pending, torch.from_numpy(np.array(samples))))
        n_whole = len(signal) // WINDOW_SAMPLES * WINDOW_SAMPLES
        self._pending = signal[n_whole:].clone()
        return self._probabilities(signal[:n_whole])

    def finish(self) -> list[float]:
        """The last window, filled up with zeros."""
        missing = -len(self._pending) % WINDOW_SAMPLES
        return self._probabilities(torch.nn.functional.pad(self._pending, (0, missing)))

    def _probabilities(self, signal: Tensor) -> list[float]:
        if len(signal) == 0:
            return []
        probabilities, self._state = self._model.probabilities(signal, self._state)
        found: list[float] = probabilities.tolist()
        return found


def ms_to_samples(duration_ms: float) -> float:
    return SAMPLE_RATE * duration_ms / 1000


def exit_threshold(threshold: float, neg_threshold: float | None) -> float:
    return max(threshold - 0.15, 0.01) if neg_threshold is None else neg_threshold


def require_thresholds(threshold: float, neg_threshold: float | None) -> None:
    if not 0 < threshold < 1:
        raise OptionError(f"threshold: expected a probability between 0 and 1, got {threshold}")
    if neg_threshold is not None and not 0 <= neg_threshold <= threshold:
        raise OptionError(f"neg_threshold: expected 0 to threshold ({threshold}), got {neg_threshold}")


def require_non_negative(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise OptionError(f"{name}: expected 0 or more, got {value}")
