"""Decoding of uploads before any model runs, in few threads of low priority.

A small file may hold hours of audio: requests take turns by slices, and those of disconnected clients stop.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeAlias, TypeVar

import anyio

T = TypeVar("T")
Slices: TypeAlias = Generator[None, None, T]
"""Work that yields to let others have their turn."""

THREAD_NAME = "sottovoce-decode"
CORES_A_THREAD = 4
NICENESS = 10


class DecodePool:
    """Threads for decoding. n_threads: None: one for every `CORES_A_THREAD` cores."""

    def __init__(self, n_threads: int | None = None) -> None:
        count = n_threads or max(1, (os.cpu_count() or 1) // CORES_A_THREAD)
        self._threads = ThreadPoolExecutor(count, THREAD_NAME, initializer=lower_priority)

    async def run(self, slices: Slices[T]) -> T:
        """Run work slice by slice; a cancelled request ends after its slice.

        Raises: the error of the work.
        """
        try:
            while True:
                found = await self.call(lambda: _next_slice(slices))
                if found:
                    return found[0]
        finally:
            slices.close()

    async def call(self, do: Callable[[], T]) -> T:
        """Call a short function in a thread; returns only when it is over, also after cancellation.

        Raises: the error of the call.
        """
        submitted = self._threads.submit(do)
        wrapped = asyncio.wrap_future(submitted)
        try:
            return await asyncio.shield(wrapped)
        except asyncio.CancelledError:
            if not submitted.cancel():
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([wrapped])
                    wrapped.exception()
            raise

    def close(self, wait: bool = True) -> None:
        self._threads.shutdown(wait, cancel_futures=True)


def _next_slice(slices: Slices[T]) -> tuple[T] | None:
    try:
        next(slices)
    except StopIteration as end:
        return (end.value,)
    return None


def lower_priority() -> None:
    if sys.platform == "linux":  # elsewhere it would be that of the whole process
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
