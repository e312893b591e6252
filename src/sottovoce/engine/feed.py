"""Audio of one session on its way to the model: held until an update is due, and then taken all at once.

Audio that comes while an update waits goes into it, and what comes later into the next. Not known here:
threads, clients, and when the model has time.
"""

from __future__ import annotations

import numpy as np

from sottovoce.engine.pace import INTERVALS_S
from sottovoce.types import SAMPLE_RATE, Samples


class Feed:
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
        """Whether there is enough for an update; at the shortest interval whatever there is, since then the
        session itself knows when its updates are due."""
        if interval_s <= INTERVALS_S[0]:
            return self._n_samples > 0
        return self.waiting_s >= interval_s

    def take(self, most: int | None = None) -> Samples:
        """All that waits, (n,) float32; the first of it where there is more than the most."""
        waiting: Samples = np.concatenate([np.zeros(0, np.float32), *self._pieces])
        taken, rest = waiting[:most], waiting[len(waiting[:most]) :]
        self._pieces, self._n_samples = [rest] if len(rest) else [], len(rest)
        return taken
