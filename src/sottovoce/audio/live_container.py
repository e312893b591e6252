"""Decoding of containers that arrive in pieces, such as WebM and Ogg from browsers.

FFmpeg's reads block, so each container has a thread.
"""

from __future__ import annotations

import io
import logging
import queue
import threading
from typing import TypeAlias

import numpy as np

from sottovoce.audio.container import MOST_LIVE_GAP_S, ContainerDecoder
from sottovoce.errors import AudioError
from sottovoce.types import SAMPLE_RATE, Samples

logger = logging.getLogger(__name__)

MOST_AT_ONCE_S = 5.0
"""A few bytes may hold hours of silence."""
MOST_BLOCKS = 32
THREAD_NAME = "sottovoce-container"
_Decoded: TypeAlias = "Samples | AudioError | bool"
"""True: more input is needed; False: the container has ended."""


class LiveContainer:
    """Decodes the bytes of a container, cut anywhere, to 16 kHz mono: `feed` a piece, then `take` until it is
    used up. Not thread-safe.
    """

    n_read = 0

    def __init__(self, name: str = "live audio") -> None:
        self._name = name
        self._fed: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._rest = b""
        self._decoded: queue.Queue[_Decoded] = queue.Queue(MOST_BLOCKS)
        self._thread: threading.Thread | None = None
        self._is_read = False
        self._is_pending = False
        self._is_over = False
        self._is_dropped = False

    def feed(self, piece: bytes) -> None:
        if self._is_over or not piece:
            return
        self._is_pending = True
        if self._thread is None:
            self._rest = piece
            self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            self._thread.start()
        else:
            self._fed.put(piece)

    def take(self) -> tuple[Samples, bool]:
        """Return samples (n,) float32, and whether the fed bytes hold more.

        Raises: AudioError for data that is no container, or has no audio.
        """
        parts: list[Samples] = [np.zeros(0, np.float32)]
        while self._is_pending and sum(map(len, parts)) < MOST_AT_ONCE_S * SAMPLE_RATE:
            found = self._decoded.get()
            if isinstance(found, AudioError):
                raise found
            if isinstance(found, bool):
                self._is_pending, self._is_over = False, not found
            else:
                parts.append(found)
        return np.concatenate(parts), self._is_pending

    def end(self) -> None:
        if self._thread is not None and not self._is_over:
            self._is_pending = True
            self._fed.put(b"")

    def close(self) -> None:
        self._is_dropped = True
        self._fed.put(b"")
        while not self._decoded.empty():  # the thread may wait for a free slot
            self._decoded.get()
        if self._thread is not None:
            self._thread.join()

    def read(self, n_bytes: int) -> bytes:
        if not self._rest and not self._is_read and not self._is_dropped:
            self._hand(True)
            self._rest = self._fed.get()
            self._is_read = not self._rest
        given, self._rest = self._rest[:n_bytes], self._rest[n_bytes:]
        self.n_read += len(given)
        return given

    def seekable(self) -> bool:
        return False

    def seek(self, offset: int, whence: int = 0) -> int:
        raise io.UnsupportedOperation("live audio cannot be sought in")

    def tell(self) -> int:
        return self.n_read

    def _run(self) -> None:
        try:
            decoder = ContainerDecoder(self, self._name, most_gap_s=MOST_LIVE_GAP_S)
            try:
                for block in decoder.blocks():
                    if self._is_dropped:
                        break
                    self._hand(block[0])
                for warning in decoder.warnings():
                    logger.warning("%s: %s", self._name, warning)
            finally:
                decoder.close()
        except AudioError as error:
            self._hand(error)
        finally:
            self._hand(False)

    def _hand(self, decoded: _Decoded) -> None:
        if not self._is_dropped:
            self._decoded.put(decoded)
