"""Audio of one session on its way to the model: held until an update is due, and then taken all at once.

Audio that comes while an update waits goes into it, and what comes later into the next. Not known here:
threads, clients, and when the model has time.
"""

from __future__ import annotations

import numpy as np

from sottovoce.engine.update_interval import INTERVALS_S
from sottovoce.types import SAMPLE_RATE, Samples


class AudioAccumulator:
    """Samples that wait for their update."""

    def __init__(self) -> None:
        self._pieces: list[Samples] = []
        self._n_samples = 0

    @property
    def waiting_s(self) -> float:
        """Seconds of audio that wait."""
        return self._n_samples / SAMPLE_RATE

    def add(self, pcm: Samples) -> None:
        """Take samples (n,) float32 that follow those before."""
        self._pieces.append(pcm)
        self._n_samples += len(pcm)

    def is_due(self, interval_s: float) -> bool:
        """Return whether there is enough for an update.

        At the shortest interval any audio is: the session itself knows when its updates are due.
        """
        if interval_s <= INTERVALS_S[0]:
            return self._n_samples > 0
        return self.waiting_s >= interval_s

    def take(self, most: int | None = None) -> Samples:
        """Take out all that waits, (n,) float32.

        most: samples at most, the first ones; None: all.
        """
        waiting: Samples = np.concatenate([np.zeros(0, np.float32), *self._pieces])
        taken, rest = waiting[:most], waiting[len(waiting[:most]) :]
        self._pieces, self._n_samples = [rest] if len(rest) else [], len(rest)
        return taken
