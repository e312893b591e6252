"""Audio of one session on its way to the model: held until an update is due, and then all of it at once.

What has not begun is replaced by what is newer: audio that comes while an update waits or is under way goes
into the next one. Not known here: threads, clients, and when the model has time.
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

    def take(self) -> Samples:
        """All that waits, (n,) float32."""
        taken: Samples = np.concatenate([np.zeros(0, np.float32), *self._pieces])
        self._pieces, self._n_samples = [], 0
        return taken
