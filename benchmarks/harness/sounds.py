"""Sounds that make a program invent words: silence, noises and music, and speech made hard.

Recorded noises are those of kind "noise" in a manifest, the first 30 s of each that is no mere click.
Speech is clips of people with silence around it, repeated, broken off or in noise. Everything is drawn
with a fixed seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness.clips import Clip
from sottovoce.audio.io import load_audio
from sottovoce.cli.evaluate import mixed_with
from sottovoce.evaluation.scores import split_units
from sottovoce.text.normalize import plain
from sottovoce.types import SAMPLE_RATE, Samples

LENGTH_S = 30.0
SHORTEST_S = 5.0
LEVELS_DB = (-60, -40, -20)
"""Of the noises' root mean square, against full scale."""


@dataclass(frozen=True, slots=True)
class Sound:
    """A name, and samples at 16 kHz. kind: what it is counted under. text: what is said in it."""

    name: str
    kind: str
    samples: Samples
    text: str = ""


def sounds(data: Path) -> list[Sound]:
    """All of them. data: the folder of `manifest.jsonl`."""
    return [*_made(), *_recorded(data)]


def _made() -> Iterator[Sound]:
    n_samples = int(LENGTH_S * SAMPLE_RATE)
    rng = np.random.default_rng(0)
    yield Sound("silence", "silence", np.zeros(n_samples, np.float32))
    white = rng.standard_normal(n_samples)
    for level in LEVELS_DB:
        yield Sound(f"white noise {level} dB", "white noise", at_level(white, level))
    for level in LEVELS_DB:
        yield Sound(f"pink noise {level} dB", "pink noise", at_level(_pink(white), level))
    seconds = np.arange(n_samples) / SAMPLE_RATE
    hum = sum(np.sin(2 * np.pi * 50 * n * seconds) / n for n in (1, 2, 3, 5, 7))
    yield Sound("mains hum 50 Hz", "hum, tones", at_level(np.asarray(hum), -30))
    for frequency in (440, 1000):
        tone = np.sin(2 * np.pi * frequency * seconds)
        yield Sound(f"tone {frequency} Hz", "hum, tones", at_level(tone, -20))


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


def _pink(white: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Noise whose power falls by half with every octave, from white noise (n,)."""
    spectrum = np.fft.rfft(white)
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    return np.fft.irfft(spectrum, len(white))


def at_level(samples: npt.NDArray[np.floating[Any]], level_db: float) -> Samples:
    """Samples with this root mean square, in dB of full scale."""
    scale = 10 ** (level_db / 20) / np.sqrt(np.mean(samples**2))
    return np.clip(samples * scale, -1.0, 1.0).astype(np.float32)


SILENCE_S = 25.0
N_REPEATS = 6
LOUDEST = 0.95
CUT_AT = 0.6
"""Of the clip, where it breaks off."""


def music() -> Iterator[Sound]:
    """Half a minute each of a melody, chords that are held, and beats of noise."""
    rng = np.random.default_rng(0)
    notes = 220 * 2 ** (rng.choice([0, 2, 4, 5, 7, 9, 11, 12], 120) / 12)
    yield _music("melody", np.concatenate([_tone(hz, 0.25, 6) for hz in notes]))
    roots = 110 * 2 ** (rng.choice([0, 3, 5, 7], 15) / 12)
    chords = [sum(_tone(hz * step, 2.0, 4) for step in (1, 1.26, 1.5)) for hz in roots]
    yield _music("chords", np.concatenate(chords))
    beat = rng.standard_normal(SAMPLE_RATE // 4) * np.exp(-np.arange(SAMPLE_RATE // 4) / 400)
    yield _music("beats", np.tile(beat, int(LENGTH_S * 4)))


def around_speech(clips: Sequence[Clip]) -> Iterator[Sound]:
    rng = np.random.default_rng(1)
    quiet = np.zeros(int(SILENCE_S * SAMPLE_RATE), np.float32)
    noise = (0.001 * rng.standard_normal(len(quiet))).astype(np.float32)
    for clip in clips:
        samples, text = load_audio(clip.file), clip.text or ""
        for name, kind, pieces in (
            (f"{clip.name}, then silence", "silence after speech", [samples, quiet]),
            (f"{clip.name}, then noise", "silence after speech", [samples, noise]),
            (f"noise, then {clip.name}", "silence before speech", [noise, samples]),
        ):
            yield Sound(name, kind, np.concatenate(pieces), text)


def repeated(clips: Sequence[Clip]) -> Iterator[Sound]:
    """Clips repeated, whose text is to be written as often."""
    pause = np.zeros(int(0.4 * SAMPLE_RATE), np.float32)
    for clip in clips:
        samples = np.tile(np.concatenate([load_audio(clip.file), pause]), N_REPEATS)
        text = " ".join([clip.text or ""] * N_REPEATS)
        yield Sound(f"{clip.name}, {N_REPEATS} times", "repeated phrase", samples, text)


def cut_off(clips: Sequence[Clip]) -> Iterator[Sound]:
    """Clips that break off, most of them within a word: of their text, what was not said is missing."""
    for clip in clips:
        samples = load_audio(clip.file)
        samples = samples[: int(len(samples) * CUT_AT)]
        yield Sound(f"{clip.name}, cut off", "cut off", samples, clip.text or "")


def n_units(texts: Iterable[str]) -> int:
    """Words of texts, and characters of scripts without spaces."""
    return sum(len(split_units(plain(text), "mixed")) for text in texts)


def in_noise(speech: Samples, noise: Samples, ratio_db: float) -> Samples:
    """Speech (n,) with noise so many dB below it; softer where it would clip."""
    mixed = mixed_with(speech, noise, ratio_db)
    return mixed * np.float32(min(1.0, LOUDEST / np.abs(mixed).max()))


def _music(name: str, samples: Samples) -> Sound:
    return Sound(name, "music", at_level(samples, -20.0)[: int(LENGTH_S * SAMPLE_RATE)])


def _tone(hz: float, seconds: float, n_harmonics: int) -> Samples:
    at = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    phase = 2 * np.pi * hz * at + 0.3 * np.sin(2 * np.pi * 5.5 * at)
    wave = sum(np.sin(n * phase) / n for n in range(1, n_harmonics + 1))
    envelope = np.minimum(1.0, at / 0.02) * np.exp(-1.5 * at / seconds)
    return np.asarray(wave * envelope, np.float32)
