"""Recording from a microphone through PortAudio (package `sounddevice`, extra `mic`)."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sottovoce.audio.samples import chunk_samples
from sottovoce.errors import AudioError, MissingExtraError, cause_of
from sottovoce.types import SAMPLE_RATE, AudioChunk, Samples

logger = logging.getLogger(__name__)

_MAX_BACKLOG_S = 60.0


class Microphone:
    """Chunks of chunk_s seconds from an input device until `close` or an interrupt; a context manager.

    device: number or name; None: the system's default. Raises: OptionError for a chunk_s that is not
    positive; MissingExtraError without `sounddevice`; AudioError if the device is missing, cannot record 16
    kHz mono, or is read a minute late.
    """

    def __init__(self, device: int | str | None = None, *, chunk_s: float = 0.1) -> None:
        n_chunk = chunk_samples(chunk_s)
        self._backlog: queue.Queue[Samples | None] = queue.Queue(max(2, round(_MAX_BACKLOG_S / chunk_s)))
        self._is_behind = False
        self._n_losses = 0
        self._stream = _open_stream(n_chunk, device, self._deliver)
        self._stream.start()

    def __iter__(self) -> Iterator[AudioChunk]:
        start_sample = 0
        while (samples := self._next()) is not None:
            yield AudioChunk(samples, start_sample)
            start_sample += len(samples)

    def close(self) -> None:
        self._stream.close()
        if self._n_losses:
            logger.warning("microphone: the device lost samples %d times", self._n_losses)
            self._n_losses = 0
        if not self._backlog.full():
            self._backlog.put_nowait(None)

    def __enter__(self) -> Microphone:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> Samples | None:
        while True:
            if self._is_behind:
                raise AudioError(
                    f"microphone: expected reading to keep up, got {_MAX_BACKLOG_S:.0f} s behind"
                )
            try:
                # A time limit lets Ctrl-C through on every platform.
                return self._backlog.get(timeout=0.5)
            except queue.Empty:
                continue

    def _deliver(self, block: Samples, n_samples: int, times: object, status: object) -> None:
        self._n_losses += bool(status)
        try:
            self._backlog.put_nowait(np.array(block[:, 0]))
        except queue.Full:
            self._is_behind = True


def _open_stream(chunk_samples: int, device: int | str | None, callback: Callable[..., None]) -> Any:
    try:
        import sounddevice
    except ModuleNotFoundError as error:
        raise MissingExtraError("sounddevice", "mic", "Recording from a microphone") from error
    except OSError as error:
        raise AudioError(f"microphone: expected the PortAudio library, got '{cause_of(error)}'") from error
    try:
        return sounddevice.InputStream(
            samplerate=SAMPLE_RATE,
            channels=1,
            dtype="float32",
            blocksize=chunk_samples,
            device=device,
            callback=callback,
        )
    except (sounddevice.PortAudioError, ValueError) as error:
        name = "the default one" if device is None else repr(device)
        raise AudioError(
            f"microphone: expected an input device for 16 kHz mono, got {name}: {error}"
        ) from error
