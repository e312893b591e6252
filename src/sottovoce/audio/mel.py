"""Whisper's log-mel spectrogram, for whole recordings and for streams that arrive in pieces.

Whisper normalises with the maximum of its whole input, so a stream keeps un-normalised frames (`log_mel`,
`MelStream`) and normalises each encoder window by itself (`normalize`). Windows are padded with zero samples
before the transform (`padding_samples`), or with 0.0 after normalisation (`pad_or_trim`), which is not the
value of silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sottovoce.errors import AudioError, OptionError, SessionClosedError
from sottovoce.types import HOP_SAMPLES, SAMPLE_RATE, Features, Samples

N_FFT = 400
MEL_FRAMES_PER_SECOND = SAMPLE_RATE // HOP_SAMPLES
WINDOW_FRAMES = 3000
FLOOR = 1e-10
SILENCE_LOG_MEL = -10.0
"""Un-normalised log-mel of digital silence: log10 of the floor."""
DYNAMIC_RANGE = 8.0
"""log10 units kept below the maximum (80 dB)."""

_HALF = N_FFT // 2
_BLOCK_FRAMES = 3000
# Matrix products with few columns take another kernel, which rounds differently: never fewer than this.
_MIN_COLUMNS = 64


def hz_to_mel(hz: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Convert Hz, of any shape, to mels: linear (200/3 Hz a mel) below 1 kHz, logarithmic above.

    Source: Slaney, Auditory Toolbox (1998).
    """
    logarithmic = 15.0 + 27.0 * np.log(np.maximum(hz, 1000.0) / 1000.0) / np.log(6.4)
    return np.where(hz < 1000.0, hz * 3.0 / 200.0, logarithmic)


def mel_to_hz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    logarithmic = 1000.0 * np.exp(np.log(6.4) * (mels - 15.0) / 27.0)
    return np.where(mels < 15.0, mels * 200.0 / 3.0, logarithmic)


@lru_cache(maxsize=8)
def mel_filters(n_mels: int) -> npt.NDArray[np.float32]:
    """Build triangular filters of equal area from 0 to 8 kHz: (n_mels, 201) float32, read-only.

    Raises: OptionError for fewer than 1. Source: `librosa.filters.mel(sr=16000, n_fft=400, n_mels=n_mels)`.
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


@lru_cache(maxsize=8)
def _filters_on(n_mels: int, device: torch.device) -> Tensor:
    return torch.tensor(mel_filters(n_mels), device=device)


class MelStream:
    """Computes log-mel frames of audio that comes in pieces; the frames do not depend on the cuts.

    Frame t is centred on sample 160 t and complete with sample 160 t + 199 (12.5 ms later).
    """

    def __init__(self, n_mels: int = 80, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._filters = _filters_on(n_mels, self._device)
        self._window = torch.hann_window(N_FFT, device=self._device)
        self.reset()

    def reset(self) -> None:
        self._pending = torch.zeros(0, device=self._device)
        self.n_samples = 0
        self.n_frames = 0
        self._finished = False

    @property
    def n_mels(self) -> int:
        return int(self._filters.shape[0])

    def push(self, samples: Samples | Tensor) -> Tensor:
        """Append samples (n,) float32; return the completed frames (n_mels, n_new) float32.

        Raises: SessionClosedError after `finish`.
        """
        if self._finished:
            raise SessionClosedError("MelStream.push: expected no audio after finish(); call reset() first")
        received = torch.as_tensor(samples, dtype=torch.float32, device=self._device)
        self.n_samples += len(received)
        return self._advance(received)

    def finish(self, *, n_padding_frames: int = 0) -> Tensor:
        """Return the remaining frames (n_mels, n), with silence after the end, and n_padding_frames more.

        They equal the content frames of `log_mel(audio, padding_samples=480000)`.
        """
        self._finished = True
        n_due = self.n_samples // HOP_SAMPLES + n_padding_frames - self.n_frames
        silence = torch.zeros(N_FFT + (1 + n_padding_frames) * HOP_SAMPLES, device=self._device)
        return self._advance(silence)[:, : max(0, n_due)]

    def _advance(self, received: Tensor) -> Tensor:
        signal = torch.cat((self._pending, received))
        if self.n_frames == 0:
            if len(signal) <= _HALF:  # the mirror needs samples 1 to 200
                self._pending = signal
                return self._filters.new_zeros(self.n_mels, 0)
            signal = torch.cat((signal[1 : _HALF + 1].flip(0), signal))
        n_new = max(0, (len(signal) - N_FFT) // HOP_SAMPLES + 1)
        frames = self._transform(signal, n_new)
        self._pending = signal[n_new * HOP_SAMPLES :].clone()
        self.n_frames += n_new
        return frames

    def _transform(self, signal: Tensor, n_frames: int) -> Tensor:
        log_mels = self._filters.new_empty(self.n_mels, n_frames)
        for first in range(0, n_frames, _BLOCK_FRAMES):
            n_block = min(_BLOCK_FRAMES, n_frames - first)
            start = first * HOP_SAMPLES
            block = signal[start : start + (n_block - 1) * HOP_SAMPLES + N_FFT]
            spectrum = torch.stft(
                block, N_FFT, HOP_SAMPLES, window=self._window, center=False, return_complex=True
            )
            power = pad_or_trim(spectrum.abs() ** 2, max(n_block, _MIN_COLUMNS))
            mel = (self._filters @ power)[:, :n_block]
            log_mels[:, first : first + n_block] = mel.clamp_(min=FLOOR).log10_()
        return log_mels


def log_mel(
    samples: Samples | Tensor,
    n_mels: int = 80,
    device: torch.device | str = "cpu",
    *,
    padding_samples: int = 0,
) -> Tensor:
    """Compute the un-normalised log10 mel power of 16 kHz audio: (n_mels, n_frames) float32.

    samples: (n,) float32 in [-1, 1]; n_frames is (n + padding_samples) // 160. padding_samples: appended
    zeros (openai-whisper: 480000 for a file); both ends are mirrored. Raises: AudioError for another shape,
    or fewer than 201 samples with padding. Source: openai-whisper `log_mel_spectrogram` (n_fft 400, hop 160,
    periodic Hann, power, clamp 1e-10).
    """
    signal = torch.as_tensor(samples, dtype=torch.float32, device=device)
    if signal.ndim != 1:
        raise AudioError(f"log-mel: expected samples of shape (n,), got {tuple(signal.shape)}")
    if len(signal) + padding_samples <= _HALF:
        raise AudioError(f"log-mel: expected at least {_HALF + 1} samples, got {len(signal)}")
    mirrored = torch.cat((signal, signal.new_zeros(padding_samples)))
    n_frames = len(mirrored) // HOP_SAMPLES
    mirrored = torch.cat((mirrored, mirrored[-_HALF - 1 : -1].flip(0)))
    return MelStream(n_mels, device).push(mirrored)[:, :n_frames]


def normalize(log_mel: Tensor, maximum: Tensor | float | None = None) -> Tensor:
    """Clamp to 8 below the maximum and scale to about [-1, 1.5], as Whisper's encoder expects.

    log_mel: (..., n_mels, n_frames). maximum: None: each window's own; openai-whisper's is the recording's.
    """
    if maximum is None:
        maximum = log_mel.amax(dim=(-2, -1), keepdim=True)
    floor = torch.as_tensor(maximum, dtype=log_mel.dtype, device=log_mel.device) - DYNAMIC_RANGE
    return (torch.maximum(log_mel, floor) + 4.0) / 4.0


def pad_or_trim(mel: Tensor, n_frames: int = WINDOW_FRAMES) -> Tensor:
    """Cut normalised mel (..., n) to n_frames, or fill it up with 0.0 (not the value of silence).

    Source: openai-whisper `pad_or_trim`.
    """
    missing = n_frames - mel.shape[-1]
    return torch.nn.functional.pad(mel, (0, missing)) if missing > 0 else mel[..., :n_frames]


def window_features(
    log_mels: Sequence[Tensor],
    n_frames: int = WINDOW_FRAMES,
    *,
    maximum: Tensor | float | None = None,
) -> Features:
    """Normalise windows (n_mels, n_i) and stack them to (B, n_mels, n_frames).

    n_frames: even, at least 2; windows are cut to it or padded with 0.0 after normalisation. maximum: see
    `normalize`. Raises: OptionError for another n_frames, or no windows.
    """
    if n_frames < 2 or n_frames % 2:
        raise OptionError(f"window_features: expected an even number of frames, got {n_frames}")
    if not log_mels:
        raise OptionError("window_features: expected at least one window, got none")
    windows = [_normalized_window(window, n_frames, maximum) for window in log_mels]
    return Features(torch.stack(windows), tuple(min(window.shape[-1], n_frames) for window in log_mels))


def _normalized_window(log_mel: Tensor, n_frames: int, maximum: Tensor | float | None) -> Tensor:
    if log_mel.shape[-1] == 0:
        return log_mel.new_zeros(log_mel.shape[0], n_frames)
    return pad_or_trim(normalize(log_mel, maximum), n_frames)
