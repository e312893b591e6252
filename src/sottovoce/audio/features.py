"""Encoder windows of a recording, in bounded memory.

Whisper clamps the log-mel at 8 below the maximum of its whole input. Three maxima are available:

- "recording": openai-whisper's. The file is read to its end first; one longer than ten minutes is read twice.
- "running": of the audio read so far; one reading.
- "window": of each window, as in a live stream; one reading.

The last two differ only in windows quieter than the maximum, where sound more than 80 dB below it stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from sottovoce.audio.mel import DYNAMIC_RANGE, SILENCE_LOG_MEL, WINDOW_FRAMES, MelStream, window_features
from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechFinder
from sottovoce.errors import OptionError
from sottovoce.options.transcribe import Normalization
from sottovoce.types import HOP_SAMPLES, SAMPLE_RATE, Features

Fill: TypeAlias = Literal["zero", "silence"]
"""Padding after a recording: 0.0 after normalisation, or the log-mel of silence."""

HELD_FRAMES = 60_000
"""Frames kept from the first reading (10 minutes; 19 MB with 80 mels)."""
# Frames after the content that still overlap its last samples: openai-whisper's maximum sees them.
_N_TAIL_FRAMES = 3


class RecordingFeatures:
    """Normalised log-mel windows of a recording, requested front to back. A context manager.

    Frames are 10 ms and stay until `drop_before`. held_frames: the longest recording held whole from its
    first reading. observer: receives every sample once, before its window is returned.

    Raises: OptionError for an unknown normalization; AudioError as `open_audio`.
    """

    def __init__(
        self,
        recording: Recording,
        n_mels: int = 80,
        device: torch.device | str = "cpu",
        *,
        normalization: Normalization = "recording",
        held_frames: int = HELD_FRAMES,
        observer: SpeechFinder | None = None,
    ) -> None:
        if normalization not in get_args(Normalization):
            raise OptionError(
                f"normalization: expected one of {get_args(Normalization)}, got {normalization!r}"
            )
        self._recording = recording
        self._mel = MelStream(n_mels, device)
        self._normalization = normalization
        self._held_frames = held_frames
        self._observer = observer
        self._maximum: Tensor | None = None
        self._frames = _FrameQueue()
        self._tail: Tensor | None = None
        self._n_frames: int | None = None
        self._n_samples = 0
        self._reader = recording.open()
        self.declared_duration_s = self._reader.info.duration_s
        self._incoming = self._read()
        self._is_scanned = normalization != "recording"

    @property
    def n_frames(self) -> int | None:
        """Frames of the recording; None until its end has been read (never with "recording")."""
        self._scan()
        return self._n_frames

    @property
    def n_held_frames(self) -> int:
        return max(0, self._frames.end - self._frames.start)

    @property
    def duration_s(self) -> float | None:
        """Seconds by decoded samples; None until the end has been read (never with "recording")."""
        self._scan()
        return None if self._n_frames is None else self._n_samples / SAMPLE_RATE

    def has(self, frame: int) -> bool:
        """Return whether the recording reaches that frame; reads up to it."""
        self._read_to(frame + 1)
        return frame < self._frames.end

    def window(
        self, start: int, end: int | None = None, *, n_frames: int = WINDOW_FRAMES, fill: Fill = "zero"
    ) -> Features:
        """Return frames [start, end) as one encoder window (1, n_mels, n_frames) float32.

        end: at most and by default start + n_frames. fill: openai-whisper decodes windows padded with 0.0,
        but detects the language of a short recording with silence as padding. Raises: OptionError for a
        window that is empty, was dropped, or begins after the end.
        """
        frames = self._slice("window", start, start + n_frames if end is None else min(end, start + n_frames))
        n_content = frames.shape[1]
        if fill == "silence":
            tail = self._tail if start + n_content == self._frames.end else None
            frames = _with_silence(frames, tail, n_frames)
        maximum = None if self._normalization == "window" else self._maximum
        return Features(window_features([frames], n_frames, maximum=maximum).mel, (n_content,))

    def log_mel(self, start: int, end: int) -> Tensor:
        """Return un-normalised frames [start, end), clipped to the recording: (n_mels, n) float32.

        Raises: OptionError for frames that were dropped or lie after the end.
        """
        return self._slice("log_mel", start, end)

    def _slice(self, name: str, start: int, end: int) -> Tensor:
        self._read_to(end)
        last = min(end, self._frames.end)
        if not self._frames.start <= start < last:
            raise OptionError(
                f"{name}: expected a start in [{self._frames.start}, {last}), got {start} (frames of 10 ms)"
            )
        return self._frames.slice(start, last)

    def is_blank(self, start: int, end: int) -> bool:
        """Whether frames [start, end) are digital silence, or 80 dB below the recording's maximum."""
        self._read_to(end)
        loudest = self._frames.slice(start, min(end, self._frames.end)).max()
        maximum = loudest if self._normalization == "window" or self._maximum is None else self._maximum
        return bool(loudest <= SILENCE_LOG_MEL) or bool(loudest <= maximum - DYNAMIC_RANGE)

    def drop_before(self, frame: int) -> None:
        """Release frames before `frame`, which cannot be requested again."""
        self._frames.drop_before(frame)

    @property
    def n_frames_read(self) -> int:
        return self._frames.end + (self._n_frames is not None)

    def skip_to(self, frame: int, *, n_frames_read: int) -> None:
        for reached in range(0, n_frames_read, WINDOW_FRAMES):
            self._read_to(reached)
            self.drop_before(min(frame, reached))
        self._read_to(n_frames_read)
        self.drop_before(frame)

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> RecordingFeatures:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Iterator[Tensor]:
        observer, self._observer = self._observer, None  # only the first reading is observed
        for chunk in self._reader:
            if observer is not None:
                observer.push(chunk.samples)
            yield self._seen(self._mel.push(chunk.samples))
        if observer is not None:
            observer.finish()
        self._n_frames = self._mel.n_samples // HOP_SAMPLES
        self._n_samples = self._mel.n_samples
        last = self._seen(self._mel.finish(n_padding_frames=_N_TAIL_FRAMES))
        n_content = last.shape[1] - _N_TAIL_FRAMES
        self._tail = last[:, n_content:]
        yield last[:, :n_content]
        self._reader.close()

    def _seen(self, frames: Tensor) -> Tensor:
        if frames.numel():
            maximum = frames.max()
            self._maximum = maximum if self._maximum is None else torch.maximum(self._maximum, maximum)
        return frames

    def _scan(self) -> None:
        if self._is_scanned:
            return
        self._is_scanned = True
        is_held = True
        for frames in self._incoming:
            is_held = is_held and self._mel.n_frames <= self._held_frames
            if is_held:
                self._frames.append(frames)
            else:
                self._frames = _FrameQueue()
        if not is_held:
            self._reader = self._recording.open()
            self._mel.reset()
            self._incoming = self._read()

    def _read_to(self, frame: int) -> None:
        self._scan()
        while self._frames.end < frame:
            frames = next(self._incoming, None)
            if frames is None:
                return
            self._frames.append(frames)


def _with_silence(frames: Tensor, tail: Tensor | None, n_frames: int) -> Tensor:
    parts = [frames] if tail is None else [frames, tail]
    n_missing = max(0, n_frames - sum(part.shape[1] for part in parts))
    silence = frames.new_full((frames.shape[0], n_missing), SILENCE_LOG_MEL)
    return torch.cat([*parts, silence], dim=1)[:, :n_frames]


class _FrameQueue:
    def __init__(self) -> None:
        self._blocks: deque[tuple[int, Tensor]] = deque()
        """Each with its first frame."""
        self.start = 0
        self.end = 0

    def append(self, frames: Tensor) -> None:
        if frames.shape[1]:
            self._blocks.append((self.end, frames))
            self.end += frames.shape[1]
            self.drop_before(self.start)

    def drop_before(self, frame: int) -> None:
        self.start = max(frame, self.start)
        while self._blocks and self._blocks[0][0] + self._blocks[0][1].shape[1] <= self.start:
            self._blocks.popleft()

    def slice(self, start: int, end: int) -> Tensor:
        return torch.cat(
            [
                block[:, max(0, start - first) : end - first]
                for first, block in self._blocks
                if first < end and first + block.shape[1] > start
            ],
            dim=1,
        )
