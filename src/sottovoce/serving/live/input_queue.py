"""What a client sent and nobody has worked on yet, in order: audio joined together, commands between it.

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

C = TypeVar("C")

MAX_COMMANDS = 64
"""That wait before their sender does."""


class InputQueue(Generic[C]):
    """A queue of samples and commands of type C: one putter at a time, one taker.

    max_samples: of audio that waits before its sender does.
    """

    def __init__(self, max_samples: int) -> None:
        self._max_samples = max_samples
        self._items: deque[Samples | C] = deque()
        self._n_samples = 0
        self._n_commands = 0
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._changed = anyio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._items

    @property
    def n_samples(self) -> int:
        """Samples that wait."""
        return self._n_samples

    async def put_audio(self, samples: Samples) -> None:
        """Add samples (n,); returns when what waits is within the limit."""
        if len(samples):
            with self._lock:
                self._items.append(samples)
                self._n_samples += len(samples)
            self._wake()
        while self._n_samples > self._max_samples:
            await self._changed.wait()

    async def put(self, command: C) -> None:
        """Add a command; returns when few of them wait."""
        with self._lock:
            self._items.append(command)
        self._n_commands += 1
        self._wake()
        while self._n_commands > MAX_COMMANDS:
            await self._changed.wait()

    async def take(self) -> Samples | C:
        """Take the next command, or all audio before it, (n,); waits for one."""
        while not self._items:
            await self._changed.wait()
        if isinstance(self._items[0], np.ndarray):
            audio = self._audio()
            self._wake()
            return audio
        with self._lock:
            command = cast(C, self._items.popleft())
        self._n_commands -= 1
        self._wake()
        return command

    def take_audio(self) -> Samples:
        """Take all audio before the next command, (n,), if any; from any thread, while nobody takes."""
        audio = self._audio()
        if len(audio):
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                self._loop.call_soon_threadsafe(self._wake)
        return audio

    def _audio(self) -> Samples:
        pieces: list[Samples] = [np.zeros(0, np.float32)]
        with self._lock:
            while self._items and isinstance(following := self._items[0], np.ndarray):
                pieces.append(following)
                self._items.popleft()
            self._n_samples -= sum(map(len, pieces))
        return np.concatenate(pieces)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
