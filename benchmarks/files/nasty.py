"""Recordings that make a program invent words: music, silence around speech, loops, cut-off words.

Made by rule, beside the sounds of `harness.sounds`, in which nobody speaks: music, and clips of people made
hard. Everything is drawn with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.harness.clips import Clip
from benchmarks.harness.sounds import LENGTH_S, Sound
from sottovoce.audio.io import load_audio
from sottovoce.types import SAMPLE_RATE, Samples

SILENCE_S = 25.0
N_REPEATS = 6
CUT_AT = 0.6
"""Of the clip, where it breaks off."""


@dataclass(frozen=True, slots=True)
class Nasty:
    """A recording with speech, under the kind it is counted as. text: all that may be written."""

    name: str
    kind: str
    samples: Samples
    text: str


def music() -> Iterator[Sound]:
    """Half a minute each of a melody, chords that are held, and beats of noise."""
    rng = np.random.default_rng(0)
    notes = 220 * 2 ** (rng.choice([0, 2, 4, 5, 7, 9, 11, 12], 120) / 12)
    yield Sound("melody", "music", _loud(np.concatenate([_tone(hz, 0.25, 6) for hz in notes])))
    roots = 110 * 2 ** (rng.choice([0, 3, 5, 7], 15) / 12)
    chords = [sum(_tone(hz * step, 2.0, 4) for step in (1, 1.26, 1.5)) for hz in roots]
    yield Sound("chords", "music", _loud(np.concatenate(chords)))
    beat = rng.standard_normal(SAMPLE_RATE // 4) * np.exp(-np.arange(SAMPLE_RATE // 4) / 400)
    yield Sound("beats", "music", _loud(np.tile(beat, int(LENGTH_S * 4))))


def around_speech(clips: Sequence[Clip]) -> Iterator[Nasty]:
    """Silence and faint noise after speech and before it."""
    rng = np.random.default_rng(1)
    quiet = np.zeros(int(SILENCE_S * SAMPLE_RATE), np.float32)
    noise = (0.001 * rng.standard_normal(len(quiet))).astype(np.float32)
    for clip in clips:
        samples, text = load_audio(clip.file), clip.text or ""
        yield Nasty(
            f"{clip.name}, then silence", "silence after speech", np.concatenate([samples, quiet]), text
        )
        yield Nasty(
            f"{clip.name}, then noise", "silence after speech", np.concatenate([samples, noise]), text
        )
        yield Nasty(
            f"noise, then {clip.name}", "silence before speech", np.concatenate([noise, samples]), text
        )


def repeated(clips: Sequence[Clip]) -> Iterator[Nasty]:
    """What is said again and again, by a person and so to be written as often."""
    pause = np.zeros(int(0.4 * SAMPLE_RATE), np.float32)
    for clip in clips:
        samples = np.tile(np.concatenate([load_audio(clip.file), pause]), N_REPEATS)
        yield Nasty(
            f"{clip.name}, {N_REPEATS} times",
            "repeated phrase",
            samples,
            " ".join([clip.text or ""] * N_REPEATS),
        )


def cut_off(clips: Sequence[Clip]) -> Iterator[Nasty]:
    """Clips that break off, most of them within a word: of their text, what was not said is missing."""
    for clip in clips:
        samples = load_audio(clip.file)
        yield Nasty(
            f"{clip.name}, cut off", "cut off", samples[: int(len(samples) * CUT_AT)], clip.text or ""
        )


def _tone(hz: float, seconds: float, n_harmonics: int) -> Samples:
    """A note with an attack, a decay and some vibrato."""
    at = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    phase = 2 * np.pi * hz * at + 0.3 * np.sin(2 * np.pi * 5.5 * at)
    wave = sum(np.sin(n * phase) / n for n in range(1, n_harmonics + 1))
    envelope = np.minimum(1.0, at / 0.02) * np.exp(-1.5 * at / seconds)
    return np.asarray(wave * envelope, np.float32)


def _loud(samples: Samples, level_db: float = -20.0) -> Samples:
    scale = 10 ** (level_db / 20) / np.sqrt(np.mean(samples**2))
    return np.clip(samples[: int(LENGTH_S * SAMPLE_RATE)] * scale, -1.0, 1.0).astype(np.float32)
