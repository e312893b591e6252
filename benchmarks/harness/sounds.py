"""Sounds in which nobody speaks, to count the words that a program invents: made ones and recorded ones.

The recorded ones are those of kind "noise" in a manifest, the first 30 s of each that is no mere click.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.audio.io import load_audio
from sottovoce.types import SAMPLE_RATE, Samples

LENGTH_S = 30.0
SHORTEST_S = 5.0
LEVELS_DB = (-60, -40, -20)
"""Of the noises' root mean square, against full scale."""


@dataclass(frozen=True, slots=True)
class Sound:
    """A name, and samples at 16 kHz. kind: what it is counted under."""

    name: str
    kind: str
    samples: Samples


def sounds(data: Path) -> list[Sound]:
    """All of them. data: the folder of `manifest.jsonl`."""
    return [*_made(), *_recorded(data)]


def _made() -> Iterator[Sound]:
    n_samples = int(LENGTH_S * SAMPLE_RATE)
    rng = np.random.default_rng(0)
    yield Sound("silence", "silence", np.zeros(n_samples, np.float32))
    white = rng.standard_normal(n_samples)
    for level in LEVELS_DB:
        yield Sound(f"white noise {level} dB", "white noise", _at_level(white, level))
    for level in LEVELS_DB:
        yield Sound(f"pink noise {level} dB", "pink noise", _at_level(_pink(white), level))
    seconds = np.arange(n_samples) / SAMPLE_RATE
    hum = sum(np.sin(2 * np.pi * 50 * n * seconds) / n for n in (1, 2, 3, 5, 7))
    yield Sound("mains hum 50 Hz", "hum, tones", _at_level(np.asarray(hum), -30))
    for frequency in (440, 1000):
        tone = np.sin(2 * np.pi * frequency * seconds)
        yield Sound(f"tone {frequency} Hz", "hum, tones", _at_level(tone, -20))


def noise_files(data: Path) -> dict[str, Path]:
    """Recordings of noise that are long enough, by name."""
    rows = map(json.loads, (data / "manifest.jsonl").read_text(encoding="utf-8").splitlines())
    return {
        row["id"].split("/")[1]: data / row["file"]
        for row in rows
        if row.get("kind") == "noise" and (row.get("duration") or 0.0) >= SHORTEST_S
    }


def _recorded(data: Path) -> Iterator[Sound]:
    for name, file in noise_files(data).items():
        yield Sound(name, "recorded noise", load_audio(file, duration_s=LENGTH_S))


def _pink(white: Samples) -> Samples:
    """Noise whose power falls by half with every octave, from white noise (n,)."""
    spectrum = np.fft.rfft(white)
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    return np.fft.irfft(spectrum, len(white))


def _at_level(samples: Samples, level_db: float) -> Samples:
    scale = 10 ** (level_db / 20) / np.sqrt(np.mean(samples**2))
    return np.clip(samples * scale, -1.0, 1.0).astype(np.float32)
