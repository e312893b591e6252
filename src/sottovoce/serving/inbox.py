"""What a client sent and nobody has worked on yet, in order: audio joined together, words between it.

Whoever puts waits while there is too much audio, which a fast sender feels as a socket that is not read.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import anyio
import numpy as np

from sottovoce.types import Samples

W = TypeVar("W")


class Inbox(Generic[W]):
    """One putter, one taker. most_samples: of audio that waits."""

    def __init__(self, most_samples: int) -> None:
        self._most = most_samples
        self._items: deque[Samples | W] = deque()
        self._n_samples = 0
        self._changed = anyio.Event()

    @property
    def n_samples(self) -> int:
        """Audio that waits."""
        return self._n_samples

    async def put_audio(self, samples: Samples) -> None:
        """Add samples (n,); returns when what waits is less than the most."""
        if len(samples):
            self._items.append(samples)
            self._n_samples += len(samples)
            self._tell()
        while self._n_samples > self._most:
            await self._change()

    def put(self, word: W) -> None:
        """Add something that is not audio."""
        self._items.append(word)
        self._tell()

    async def take(self) -> Samples | W:
        """The next word, or all audio before it."""
        while not self._items:
            await self._change()
        first = self._items.popleft()
        if not isinstance(first, np.ndarray):
            return first
        pieces: list[Samples] = [first]
        while self._items and isinstance(following := self._items[0], np.ndarray):
            pieces.append(following)
            self._items.popleft()
        self._n_samples = 0 if not self._items else self._count()
        self._tell()
        return np.concatenate(pieces)

    def _count(self) -> int:
        return sum(len(item) for item in self._items if isinstance(item, np.ndarray))

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _change(self) -> None:
        await self._changed.wait()
