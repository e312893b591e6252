"""What a client sent and nobody has worked on yet, in order: audio joined together, words between it.

Whoever puts waits while there is too much audio, which a fast sender feels as a socket that is not read. All
of it is for one event loop, but `take_audio`, which the thread of the model calls when an update begins.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar, cast

import anyio
import numpy as np

from sottovoce.types import Samples

W = TypeVar("W")

MOST_WORDS = 64
"""That wait."""


class Inbox(Generic[W]):
    """One putter at a time, one taker. most_samples: of audio that waits."""

    def __init__(self, most_samples: int) -> None:
        self._most = most_samples
        self._items: deque[Samples | W] = deque()
        self._n_samples = 0
        self._n_words = 0
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._changed = anyio.Event()

    @property
    def n_samples(self) -> int:
        """Audio that waits."""
        return self._n_samples

    async def put_audio(self, samples: Samples) -> None:
        """Add samples (n,); returns when what waits is less than the most."""
        if len(samples):
            with self._lock:
                self._items.append(samples)
                self._n_samples += len(samples)
            self._tell()
        while self._n_samples > self._most:
            await self._changed.wait()

    async def put(self, word: W) -> None:
        """Add something that is not audio; returns when few of those wait."""
        with self._lock:
            self._items.append(word)
        self._n_words += 1
        self._tell()
        while self._n_words > MOST_WORDS:
            await self._changed.wait()

    async def take(self) -> Samples | W:
        """The next word, or all audio before it."""
        while not self._items:
            await self._changed.wait()
        if isinstance(self._items[0], np.ndarray):
            audio = self._audio()
            self._tell()
            return audio
        with self._lock:
            word = cast(W, self._items.popleft())
        self._n_words -= 1
        self._tell()
        return word

    def take_audio(self) -> Samples:
        """All audio before the next word, (n,), if any; from any thread, while nobody takes."""
        audio = self._audio()
        if len(audio):
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                self._loop.call_soon_threadsafe(self._tell)
        return audio

    def _audio(self) -> Samples:
        pieces: list[Samples] = [np.zeros(0, np.float32)]
        with self._lock:
            while self._items and isinstance(following := self._items[0], np.ndarray):
                pieces.append(following)
                self._items.popleft()
            self._n_samples -= sum(map(len, pieces))
        return np.concatenate(pieces)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
