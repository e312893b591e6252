"""Augmentation on log-mel: tempo, vocal tract, colour, level, reverberation, noise, masks.

Everything works on un-normalised log10 power (n_frames, 80), where mixing is an addition of powers; so a
clip costs microseconds and no resampling. `normalized` ends in what the encoder sees.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sottovoce.audio.mel import log_mel, normalize
from sottovoce.types import SAMPLE_RATE

Mel = npt.NDArray[np.float32]
SILENCE = -10.0
"""log10 power of digital silence."""
FRAMES_PER_SECOND = 100


@dataclass(frozen=True, slots=True)
class Strengths:
    """Probability of each change, and the range of signal-to-noise ratios in dB.

    Little of each: while the model does not know its training clips, changing them only slows it.
    """

    tempo: float = 0.1
    vocal_tract: float = 0.1
    colour: float = 0.1
    reverberation: float = 0.02
    noise: float = 0.15
    mask: float = 0.03
    snr_db: tuple[float, float] = (6.0, 25.0)


def silence(n_frames: int) -> Mel:
    """(n_frames, 80) of digital silence."""
    return np.full((n_frames, 80), SILENCE, dtype=np.float32)


def stretched(mel: Mel, factor: float, axis: int) -> Mel:
    """Resampled by linear interpolation: axis 0 changes the tempo, axis 1 the length of the vocal tract.

    Along the bands the number stays: what moves out at the top is dropped.
    """
    size = mel.shape[axis]
    n_out = max(20, int(size * factor)) if axis == 0 else size
    places = np.linspace(0, size - 1, n_out) if axis == 0 else np.clip(np.arange(size) * factor, 0, size - 1)
    low = places.astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    weight = (places - low).astype(np.float32)
    weight = weight[:, None] if axis == 0 else weight
    mixed: Mel = mel.take(low, axis) * (1 - weight) + mel.take(high, axis) * weight
    return mixed


def coloured(mel: Mel, rng: random.Random) -> Mel:
    """Another microphone: a smooth random curve over the bands, at most about 10 dB."""
    bands = np.arange(mel.shape[1], dtype=np.float32)
    curve = np.zeros_like(bands)
    for ripple in range(1, 5):
        phase = rng.uniform(0, 2 * np.pi)
        curve += rng.uniform(-0.28, 0.28) * np.cos(np.pi * ripple * bands / len(bands) + phase)
    return mel + curve


def reverberated(mel: Mel, rng: random.Random) -> Mel:
    """A room's decaying tail on every band, 0.12 to 0.5 s long, beside the direct sound."""
    decay = 10 ** (-6 / (FRAMES_PER_SECOND * rng.uniform(0.12, 0.5)))
    power = 10.0**mel
    tail = np.zeros_like(power)
    state = np.zeros(mel.shape[1], dtype=np.float32)
    for frame in range(len(power)):
        state = state * decay + power[frame]
        tail[frame] = state
    share = rng.uniform(0.15, 0.6)
    mixed: Mel = np.log10(np.maximum((1 - share) * power + 0.5 * (1 - decay) * tail, 1e-10))
    return mixed.astype(np.float32)


def noisy(mel: Mel, noise: Mel, snr_db: float) -> Mel:
    """Speech and noise added at a ratio of their powers; the speech's is taken where there is speech."""
    power, added = 10.0**mel, 10.0**noise
    frame_power = power.mean(axis=1)
    active = frame_power[frame_power > frame_power.max() * 1e-3].mean()
    gain = active / (added.mean() + 1e-12) * 10 ** (-snr_db / 10)
    mixed: Mel = np.log10(np.maximum(power + gain * added, 1e-10)).astype(np.float32)
    return mixed


def masked(mel: Mel, rng: random.Random) -> Mel:
    """Two bands and two stretches of time set to the mean (SpecAugment, Park et al. 2019)."""
    mel = mel.copy()
    mean = mel.mean()
    for _ in range(2):
        width, length = rng.randint(0, 9), rng.randint(0, min(18, len(mel) // 8))
        band, start = rng.randint(0, mel.shape[1] - width), rng.randint(0, len(mel) - length)
        mel[:, band : band + width] = mean
        mel[start : start + length] = mean
    return mel


def normalized(mel: Mel) -> tuple[Mel, float]:
    """What the encoder sees, and the value that silence has in it."""
    clamped = np.maximum(mel, SILENCE)
    scaled: Mel = normalize(clamped)
    floor = (max(SILENCE, float(clamped.max()) - 8.0) + 4.0) / 4.0
    return scaled, floor


class NoiseBank:
    """Stretches of noise to mix in: stationary, hum, clicks, and babble made of other clips."""

    def __init__(self, babble: Sequence[Mel], rng: random.Random) -> None:
        self._rng = rng
        generator = np.random.default_rng(rng.randrange(2**32))
        n_samples = 40 * SAMPLE_RATE
        self._stretches = [_coloured_noise(n_samples, power, generator) for power in (0.0, 0.5, 1.0)]
        self._stretches.append(_hum(n_samples, generator))
        self._stretches.append(_babble(babble, rng))

    def draw(self, n_frames: int) -> Mel:
        """(n_frames, 80) from a random place, repeated where a stretch is too short."""
        stretch = self._rng.choice(self._stretches)
        start = self._rng.randrange(max(1, len(stretch) - n_frames))
        repeats = 1 + n_frames // len(stretch)
        drawn: Mel = np.concatenate([stretch[start:], *[stretch] * repeats])[:n_frames]
        return drawn


class Augmenter:
    """Draws every change with its probability; the noise bank may be missing."""

    def __init__(self, strengths: Strengths, noises: NoiseBank | None, rng: random.Random) -> None:
        self._strengths = strengths
        self._noises = noises
        self._rng = rng

    def clip(self, mel: Mel) -> Mel:
        """Changes of the speaker: tempo and vocal tract."""
        if self._rng.random() < self._strengths.tempo:
            mel = stretched(mel, self._rng.uniform(0.86, 1.16), axis=0)
        if self._rng.random() < self._strengths.vocal_tract:
            mel = stretched(mel, self._rng.uniform(0.92, 1.09), axis=1)
        return mel

    def window(self, mel: Mel) -> tuple[Mel, float]:
        """Changes of the room and the microphone, then normalised; and the value of silence."""
        strengths, rng = self._strengths, self._rng
        if rng.random() < strengths.reverberation:
            mel = reverberated(mel, rng)
        if rng.random() < strengths.colour:
            mel = coloured(mel, rng)
        mel = mel + rng.uniform(-1.8, 0.5)
        if self._noises is not None and rng.random() < strengths.noise:
            mel = noisy(mel, self._noises.draw(len(mel)), rng.uniform(*strengths.snr_db))
        mel, floor = normalized(mel)
        if rng.random() < strengths.mask:
            mel = masked(mel, rng)
        return mel, floor

    def no_speech(self, n_frames: int) -> tuple[Mel, float]:
        """A window without speech: noise at any level, or silence."""
        mel = silence(n_frames)
        if self._noises is not None and self._rng.random() < 0.75:
            mel = np.maximum(self._noises.draw(n_frames) + self._rng.uniform(-3.0, 0.5), SILENCE)
        return normalized(mel)


def _log_mel(samples: npt.NDArray[np.float64]) -> Mel:
    scaled = (0.05 * samples / samples.std()).astype(np.float32)
    frames: Mel = log_mel(scaled).T
    return frames


def _coloured_noise(n_samples: int, slope: float, generator: np.random.Generator) -> Mel:
    """Noise whose amplitude falls with the frequency to the power of `slope`: white 0, pink 0.5, brown 1."""
    spectrum = np.fft.rfft(generator.standard_normal(n_samples))
    frequencies = np.maximum(np.fft.rfftfreq(n_samples, 1 / SAMPLE_RATE), 20)
    return _log_mel(np.fft.irfft(spectrum / frequencies**slope, n_samples))


def _hum(n_samples: int, generator: np.random.Generator) -> Mel:
    time = np.arange(n_samples) / SAMPLE_RATE
    harmonics = sum(np.sin(2 * np.pi * 50 * k * time + k) / k for k in range(1, 12))
    return _log_mel(0.05 * generator.standard_normal(n_samples) + harmonics)


def _babble(clips: Sequence[Mel], rng: random.Random) -> Mel:
    power = np.zeros((3000, 80), dtype=np.float32)
    for _ in range(4):
        talk = np.concatenate([rng.choice(clips) for _ in range(14)])[: len(power)]
        power[: len(talk)] += 10.0**talk
    mixed: Mel = np.log10(np.maximum(power, 1e-10))
    return mixed
