"""Whisper's log-mel spectrogram, for samples, streams that arrive in pieces, and recordings.

Whisper clamps it at 8 below a maximum: of the whole "recording" (openai-whisper's; a file longer than ten
minutes is read twice), of the audio read so far ("running"), or of each "window", as in a live stream.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from sottovoce.errors import AudioError, OptionError, SessionClosedError
from sottovoce.kernels import load_kernels
from sottovoce.options.transcribe import Normalization
from sottovoce.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, Features, Floats, Samples

if TYPE_CHECKING:
    from sottovoce.audio.io import Recording
    from sottovoce.audio.vad import SpeechFinder

N_FFT = 400
"""Samples of a frame (25 ms). Source of this and of the window: openai-whisper 20250625, audio.py."""
MEL_FRAMES_PER_SECOND = SAMPLE_RATE // HOP_SAMPLES
MELS_PER_FRAME = MEL_FRAMES_PER_SECOND // FRAMES_PER_SECOND
"""Log-mel frames of an encoder frame."""
WINDOW_FRAMES = 3000
FLOOR = 1e-10
"""Least power. Source: openai-whisper 20250625, `log_mel_spectrogram`."""
SILENCE_LOG_MEL = -10.0
"""Un-normalised log-mel of digital silence: log10 of the floor."""
DYNAMIC_RANGE = 8.0
"""log10 units kept below the maximum (80 dB)."""
PADDING_LOG_MEL = -4.0
"""Un-normalised log-mel of Whisper's padding, which `normalize` makes 0."""

_HALF = N_FFT // 2
_BLOCK_FRAMES = 300
"""Frames transformed at a time, so that intermediate arrays stay in the processor's cache."""
_WINDOW = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)
"""Hann window, periodic, float64: NumPy computes the Fourier transform in that precision."""


def hz_to_mel(hz: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Convert Hz to mels: linear below 1 kHz, logarithmic above. Source: Slaney, Auditory Toolbox (1998)."""
    logarithmic = 15.0 + 27.0 * np.log(np.maximum(hz, 1000.0) / 1000.0) / np.log(6.4)
    return np.where(hz < 1000.0, hz * 3.0 / 200.0, logarithmic)


def mel_to_hz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    logarithmic = 1000.0 * np.exp(np.log(6.4) * (mels - 15.0) / 27.0)
    return np.where(mels < 15.0, mels * 200.0 / 3.0, logarithmic)


@lru_cache(maxsize=8)
def mel_filters(n_mels: int) -> npt.NDArray[np.float32]:
    """Build `librosa.filters.mel(sr=16000, n_fft=400, n_mels=n_mels)`: (n_mels, 201) float32, read-only.

    Raises: OptionError for fewer than 1.
    """
    if n_mels < 1:
        raise OptionError(f"n_mels: expected at least 1 filter (Whisper has 80 or 128), got {n_mels}")
    nyquist = SAMPLE_RATE / 2
    bins = np.linspace(0.0, nyquist, 1 + _HALF)
    edges = mel_to_hz(np.linspace(0.0, float(hz_to_mel(np.array(nyquist))), n_mels + 2))
    slopes = edges[:, None] - bins[None, :]  # (n_mels + 2, 201)
    widths = np.diff(edges)[:, None]
    rising = -slopes[:-2] / widths[:-1]
    falling = slopes[2:] / widths[1:]
    # Rounded to float32 before and after the scaling, as librosa does: the filters are then equal.
    triangles = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    filters: npt.NDArray[np.float32] = (triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(
        np.float32
    )
    filters.setflags(write=False)
    return filters


class LogMel:
    """Log-mel of frames, in NumPy; a frame's does not depend on the others."""

    def __init__(self, n_mels: int) -> None:
        filters = mel_filters(n_mels)
        has_weight = filters > 0.0
        has_weight[~has_weight.any(axis=1), 0] = True  # a filter between two bins sums its 0.0
        rows, self._bins = np.nonzero(has_weight)
        self._weights = filters[rows, self._bins]
        self._starts = np.searchsorted(rows, np.arange(n_mels))
        self._n_mels = n_mels

    def compute(self, signal: Samples, n_frames: int) -> Floats:
        """Return log-mel (n_mels, n_frames) of samples (160 (n_frames - 1) + 400,) or more."""
        log_mels = np.empty((self._n_mels, n_frames), np.float32)
        for first in range(0, n_frames, _BLOCK_FRAMES):
            last = min(first + _BLOCK_FRAMES, n_frames)
            block = signal[first * HOP_SAMPLES : (last - 1) * HOP_SAMPLES + N_FFT]
            frames = np.lib.stride_tricks.sliding_window_view(block, N_FFT)[::HOP_SAMPLES]
            log_mels[:, first:last] = self._transform(frames * _WINDOW)
        return log_mels

    def _transform(self, frames: npt.NDArray[np.float64]) -> Floats:
        spectrum = np.fft.rfft(frames).astype(np.complex64).view(np.float32)
        spectrum *= spectrum
        power = spectrum[:, ::2] + spectrum[:, 1::2]
        mel = np.add.reduceat(power[:, self._bins] * self._weights, self._starts, axis=1)
        log_mel: Floats = np.log10(np.maximum(mel, FLOOR)).T
        return log_mel


class NativeLogMel(LogMel):
    """Log-mel with the native kernels: NumPy's numbers, on x86-64 bit by bit. Raises: as `load_kernels`."""

    def __init__(self, n_mels: int) -> None:
        load_kernels("mel")
        from sottovoce_kernels.mel import MelFilters

        turns = np.fft.rfft(np.eye(1, N_FFT, 1)[0])  # as NumPy rounds them
        filters = mel_filters(n_mels)
        self._n_mels = n_mels
        self._filters = MelFilters(_WINDOW.ctypes.data, turns.ctypes.data, filters.ctypes.data, n_mels)

    def compute(self, signal: Samples, n_frames: int) -> Floats:
        signal = np.ascontiguousarray(signal, np.float32)
        power = np.empty((self._n_mels, n_frames), np.float32)
        self._filters.power(signal.ctypes.data, n_frames, power.ctypes.data)
        return np.log10(power, out=power)


@lru_cache(maxsize=8)
def load_log_mel(n_mels: int) -> LogMel:
    """Return log-mel in the native kernels, or without them in NumPy, which is slower."""
    try:
        return NativeLogMel(n_mels)
    except ImportError:
        return LogMel(n_mels)


class MelStream:
    """Computes log-mel frames of audio that comes in pieces; the frames do not depend on the cuts.

    Frame t is centred on sample 160 t and complete 12.5 ms later.
    """

    def __init__(self, n_mels: int = 80) -> None:
        self.n_mels = n_mels
        self._log_mel = load_log_mel(n_mels)
        self.reset()

    def reset(self) -> None:
        self._pending: Samples = np.zeros(0, np.float32)
        self.n_samples = 0
        self.n_frames = 0
        self._finished = False

    def push(self, samples: Samples) -> Floats:
        """Append samples (n,) float32; return the completed frames (n_mels, n_new) float32.

        Raises: SessionClosedError after `finish`.
        """
        if self._finished:
            raise SessionClosedError("MelStream.push: expected no audio after finish(); call reset() first")
        self.n_samples += len(samples)
        return self._advance(samples)

    def finish(self, *, n_padding_frames: int = 0) -> Floats:
        """Return the remaining frames (n_mels, n), with silence after the end, and n_padding_frames more."""
        self._finished = True
        n_due = self.n_samples // HOP_SAMPLES + n_padding_frames - self.n_frames
        silence = np.zeros(N_FFT + (1 + n_padding_frames) * HOP_SAMPLES, np.float32)
        return self._advance(silence)[:, : max(0, n_due)]

    def _advance(self, received: Samples) -> Floats:
        signal = np.concatenate((self._pending, received))
        if self.n_frames == 0:
            if len(signal) <= _HALF:  # the mirror needs samples 1 to 200
                self._pending = signal
                return np.zeros((self.n_mels, 0), np.float32)
            signal = np.concatenate((signal[_HALF:0:-1], signal))
        n_new = max(0, (len(signal) - N_FFT) // HOP_SAMPLES + 1)
        frames = self._log_mel.compute(signal, n_new)
        self._pending = signal[n_new * HOP_SAMPLES :].copy()
        self.n_frames += n_new
        return frames


def log_mel(samples: Samples, n_mels: int = 80, *, padding_samples: int = 0) -> Floats:
    """Compute the un-normalised log10 mel power of 16 kHz audio: (n_mels, n_frames) float32.

    samples: (n,) float32 in [-1, 1]; n_frames is (n + padding_samples) // 160. padding_samples: appended
    zeros (openai-whisper: 480000 for a file). Raises: AudioError for another shape, or fewer than 201 samples
    with padding. Source: openai-whisper `log_mel_spectrogram`.
    """
    signal = np.asarray(samples, np.float32)
    if signal.ndim != 1:
        raise AudioError(f"log-mel: expected samples of shape (n,), got {signal.shape}")
    if len(signal) + padding_samples <= _HALF:
        raise AudioError(f"log-mel: expected at least {_HALF + 1} samples, got {len(signal)}")
    padded = np.pad(signal, (0, padding_samples))
    n_frames = len(padded) // HOP_SAMPLES
    mirrored = np.pad(padded, (0, _HALF), mode="reflect")
    return np.ascontiguousarray(MelStream(n_mels).push(mirrored)[:, :n_frames])


def normalize(log_mel: Floats, maximum: float | None = None) -> Floats:
    """Clamp log-mel (..., n_mels, n_frames) to 8 below the maximum and scale it for Whisper's encoder.

    maximum: None: each window's own; openai-whisper's is the recording's.
    """
    highest = log_mel.max(axis=(-2, -1), keepdims=True) if maximum is None else np.float32(maximum)
    return (np.maximum(log_mel, highest - np.float32(DYNAMIC_RANGE)) + np.float32(4.0)) * np.float32(0.25)


def smoothed(loudness: npt.NDArray[np.float64], n_frames: int) -> npt.NDArray[np.float64]:
    """Average loudness (n,) over n_frames, an odd number, to find pauses instead of single frames."""
    if len(loudness) <= n_frames:
        return loudness
    padded = np.pad(loudness, n_frames // 2, mode="edge")
    return np.convolve(padded, np.full(n_frames, 1 / n_frames), mode="valid")


def quietest_frame(loudness: npt.NDArray[np.float64], near: float) -> int:
    """Return the quietest frame of loudness (n,); of equally quiet ones the nearest to `near`."""
    distance = np.abs(np.arange(len(loudness)) - near)
    return int((loudness + 1e-6 * distance).argmin()) if len(loudness) else 0


def quiet_frames(loudness: npt.NDArray[np.float64], near: float) -> list[int]:
    """Return the local minima of loudness (n,), quietest first; ties go to the nearest to `near`."""
    is_dip = (loudness[1:-1] <= loudness[:-2]) & (loudness[1:-1] < loudness[2:])
    dips: list[int] = (1 + np.flatnonzero(is_dip)).tolist()
    return sorted(dips, key=lambda dip: (float(loudness[dip]), abs(dip - near)))


def pad_or_trim(mel: Floats, n_frames: int = WINDOW_FRAMES) -> Floats:
    """Cut normalised mel (..., n) to n_frames, or fill it up with 0.0, as openai-whisper does."""
    padded = np.zeros((*mel.shape[:-1], n_frames), np.float32)
    n_content = min(n_frames, mel.shape[-1])
    padded[..., :n_content] = mel[..., :n_content]
    return padded


def window_features(
    log_mels: Sequence[Floats],
    n_frames: int = WINDOW_FRAMES,
    *,
    maximum: float | None = None,
) -> Features:
    """Normalise windows (n_mels, n_i) and stack them to (B, n_mels, n_frames).

    n_frames: even, at least 2; windows are cut or padded to it. maximum: see `normalize`. Raises:
    OptionError.
    """
    if n_frames < 2 or n_frames % 2:
        raise OptionError(f"window_features: expected an even number of frames, got {n_frames}")
    if not log_mels:
        raise OptionError("window_features: expected at least one window, got none")
    windows = [
        pad_or_trim(normalize(window, maximum) if window.shape[-1] else window, n_frames)
        for window in log_mels
    ]
    return Features(np.stack(windows), tuple(min(window.shape[-1], n_frames) for window in log_mels))


Fill: TypeAlias = Literal["zero", "silence"]
"""Padding after a recording: 0.0 after normalisation, or the log-mel of silence."""

# Frames after the content that still overlap its last samples: openai-whisper's maximum sees them.
_N_TAIL_FRAMES = 3


class RecordingFeatures:
    """Normalised log-mel windows of a recording, requested front to back. A context manager.

    Frames are 10 ms and stay until `drop_before`. held_frames: the longest recording that is not read twice
    (10 minutes; 19 MB with 80 mels). observer: receives every sample once, before its window is returned;
    observes_first: before any window. Raises: OptionError for an unknown normalization; AudioError as
    `open_audio`.
    """

    def __init__(
        self,
        recording: Recording,
        n_mels: int = 80,
        *,
        normalization: Normalization = "recording",
        held_frames: int = 60_000,
        observer: SpeechFinder | None = None,
        observes_first: bool = False,
    ) -> None:
        if normalization not in get_args(Normalization):
            raise OptionError(
                f"normalization: expected one of {get_args(Normalization)}, got {normalization!r}"
            )
        self._recording = recording
        self._mel = MelStream(n_mels)
        self._normalization = normalization
        self._held_frames = held_frames
        self._observer = observer
        self._maximum: float | None = None
        self._frames = _FrameQueue()
        self._tail: Floats | None = None
        self._n_frames: int | None = None
        self._n_samples = 0
        self._reader = recording.open()
        self.declared_duration_s = self._reader.info.duration_s
        self.silences: list[tuple[float, float]] = []
        """Of the reader, if it has read the recording before the first window."""
        self._incoming = self._read()
        self._is_scanned = not (observes_first or normalization == "recording")

    @property
    def n_frames(self) -> int | None:
        """Frames of the recording; None until its end has been read (never with "recording")."""
        self._scan()
        return self._n_frames

    @property
    def duration_s(self) -> float | None:
        """Seconds by decoded samples; None until the end has been read (never with "recording")."""
        self._scan()
        return None if self._n_frames is None else self._n_samples / SAMPLE_RATE

    def has(self, frame: int) -> bool:
        """Return whether the recording reaches that frame; reads up to it."""
        self._read_to(frame + 1)
        return frame < self._frames.end

    def end_before(self, end: int) -> int:
        """Return `end`, or the end of the recording if it is earlier; reads up to it."""
        self._read_to(end)
        return min(end, self._frames.end)

    def window(
        self, start: int, end: int | None = None, *, n_frames: int = WINDOW_FRAMES, fill: Fill = "zero"
    ) -> Features:
        """Return frames [start, end) as one encoder window (1, n_mels, n_frames) float32.

        end: at most and by default start + n_frames. fill: openai-whisper decodes with zeros as padding, and
        detects the language of a short recording with silence. Raises: OptionError for a window that is
        empty, was dropped, or begins after the end.
        """
        frames = self._slice("window", start, start + n_frames if end is None else min(end, start + n_frames))
        n_content = frames.shape[1]
        if fill == "silence":
            is_end = start + n_content == self._frames.end
            tail = self._tail if is_end and self._tail is not None else frames[:, :0]
            silence = np.full((len(frames), n_frames), SILENCE_LOG_MEL, np.float32)
            frames = np.concatenate([frames, tail, silence], axis=1)[:, :n_frames]
        maximum = None if self._normalization == "window" else self._maximum
        return Features(window_features([frames], n_frames, maximum=maximum).mel, (n_content,))

    def log_mel(self, start: int, end: int) -> Floats:
        """Return un-normalised frames [start, end), clipped to the recording: (n_mels, n) float32."""
        return self._slice("log_mel", start, end)

    def clamped(self, start: int, end: int) -> Floats:
        """Return frames as `log_mel`, clamped so that `normalize` makes them those of `window`."""
        frames = self._slice("clamped", start, end)
        if self._normalization == "window" or self._maximum is None:
            return frames
        return np.maximum(frames, np.float32(self._maximum - DYNAMIC_RANGE))

    def _slice(self, name: str, start: int, end: int) -> Floats:
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
        loudest = float(self._frames.slice(start, min(end, self._frames.end)).max())
        maximum = loudest if self._normalization == "window" or self._maximum is None else self._maximum
        return loudest <= SILENCE_LOG_MEL or loudest <= maximum - DYNAMIC_RANGE

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
        self._incoming.close()
        self._reader.close()

    def __enter__(self) -> RecordingFeatures:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Generator[Floats, None, None]:
        observer, self._observer = self._observer, None  # only the first reading is observed
        with ThreadPoolExecutor(1) as pool:
            for chunk in self._reader:
                observed = observer and pool.submit(observer.push, chunk.samples)
                frames = self._seen(self._mel.push(chunk.samples))
                if observed:
                    observed.result()
                yield frames
        if observer is not None:
            observer.finish()
        self._n_frames = self._mel.n_samples // HOP_SAMPLES
        self._n_samples = self._mel.n_samples
        last = self._seen(self._mel.finish(n_padding_frames=_N_TAIL_FRAMES))
        n_content = last.shape[1] - _N_TAIL_FRAMES
        self._tail = last[:, n_content:]
        yield last[:, :n_content]
        self._reader.close()

    def _seen(self, frames: Floats) -> Floats:
        if frames.size:
            maximum = float(frames.max())
            self._maximum = maximum if self._maximum is None else max(self._maximum, maximum)
        return frames

    def _scan(self) -> None:
        if self._is_scanned:
            return
        self._is_scanned = True
        is_held = self._normalization == "recording"
        for frames in self._incoming:
            is_held = is_held and self._mel.n_frames <= self._held_frames
            if is_held:
                self._frames.append(frames)
            else:
                self._frames = _FrameQueue()
        self.silences = self._reader.silences()
        if not is_held:
            self._reader = self._recording.open()
            self._mel.reset()
            self._incoming = self._read()
        if self._normalization != "recording":
            self._maximum = None

    def _read_to(self, frame: int) -> None:
        self._scan()
        while self._frames.end < frame:
            frames = next(self._incoming, None)
            if frames is None:
                return
            self._frames.append(frames)


class _FrameQueue:
    def __init__(self) -> None:
        self._blocks: deque[tuple[int, Floats]] = deque()
        """Each with its first frame."""
        self.start = 0
        self.end = 0

    def append(self, frames: Floats) -> None:
        if frames.shape[1]:
            self._blocks.append((self.end, frames))
            self.end += frames.shape[1]
            self.drop_before(self.start)

    def drop_before(self, frame: int) -> None:
        self.start = max(frame, self.start)
        while self._blocks and self._blocks[0][0] + self._blocks[0][1].shape[1] <= self.start:
            self._blocks.popleft()

    def slice(self, start: int, end: int) -> Floats:
        first = bisect_right(self._blocks, start, key=lambda block: block[0]) - 1
        last = bisect_left(self._blocks, end, key=lambda block: block[0])
        blocks = islice(self._blocks, first, last)
        return np.concatenate([block[:, max(0, start - at) : end - at] for at, block in blocks], axis=1)
