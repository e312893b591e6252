"""What a recording of several languages is like: the order of its parts, their pauses, and what was done to
its sound. Everything is drawn by the caller's generator. Not known here: clips, models.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from benchmarks.files.nasty import music
from benchmarks.files.noise import in_noise
from benchmarks.harness.sounds import noise_files
from sottovoce.audio.io import load_audio
from sottovoce.types import SAMPLE_RATE, Samples

NOISE_DB, MUSIC_DB = 15.0, 15.0
"""How far recorded noise, or music, lies below the speech; both fill the pauses too."""
JINGLE_DB, FAINT_DB = -26.0, -60.0
"""Level of music in pauses, and of the noise in long ones, against full scale."""
SOFT, CLIPPED = 0.1, 8.0
"""Every second part is so much softer; speech is so much louder than full scale, and cut off there."""
SHORT_S = 4.0
TELEPHONE_HZ = (300.0, 3400.0)

Spans: TypeAlias = Sequence[tuple[float, float]]
Sound: TypeAlias = Callable[[Samples, Spans, random.Random, Path], Samples]
"""What is done to samples (n,) with parts at `spans` (seconds); the folder has rooms and noises."""


@dataclass(frozen=True, slots=True)
class Block:
    """Parts in one language, one at least, until they are `seconds` long; most_s: the longest part."""

    language: str
    seconds: float
    most_s: float


class DrawLanguage(Protocol):
    """Draws a language, any but one."""

    def __call__(self, but: str = "") -> str: ...


Order: TypeAlias = Callable[[random.Random, DrawLanguage], Iterator[Block]]


@dataclass(frozen=True, slots=True)
class Condition:
    """order: of the languages; None: four to eight parts, drawn one by one. pause_s: least and most.

    languages: None: those that Whisper base knows well.
    """

    pause_s: tuple[float, float] = (0.2, 1.0)
    order: Order | None = None
    sound: Sound | None = None
    languages: tuple[str, ...] | None = None


def _others(draw: DrawLanguage, n: int) -> list[str]:
    """n languages, neighbours different."""
    found = [draw()]
    while len(found) < n:
        one = draw()
        found += [one] if one != found[-1] else []
    return found


def blocks(rng: random.Random, draw: DrawLanguage) -> Iterator[Block]:
    """A minute or more of one language, then of another."""
    for language in _others(draw, 2):
        yield Block(language, rng.uniform(60.0, 90.0), 15.0)


def one_short(rng: random.Random, draw: DrawLanguage) -> Iterator[Block]:
    """One sentence of 2 to 5 s between minutes of another language."""
    main, other = _others(draw, 2)
    yield Block(main, rng.uniform(40.0, 80.0), 15.0)
    yield Block(other, 0.0, 5.0)
    yield Block(main, rng.uniform(40.0, 80.0), 15.0)


def ends(rng: random.Random, draw: DrawLanguage) -> Iterator[Block]:
    """A short beginning and a short end in other languages."""
    first, main, last = _others(draw, 3)
    yield Block(first, 0.0, 3.5)
    yield Block(main, rng.uniform(45.0, 75.0), 15.0)
    yield Block(last, 0.0, 5.0)


def turns(rng: random.Random, draw: DrawLanguage) -> Iterator[Block]:
    """Two languages in turn, short sentences."""
    pair = _others(draw, 2)
    for turn in range(rng.randint(10, 16)):
        yield Block(pair[turn % 2], 0.0, 3.5)


def short_turns(rng: random.Random, draw: DrawLanguage) -> Iterator[Block]:
    """Short sentences in languages of any order."""
    for _ in range(rng.randint(8, 12)):
        yield Block(draw(), 0.0, SHORT_S)


def inserted(rng: random.Random, draw: DrawLanguage) -> Iterator[Block]:
    """Short sentences of other languages between those of one."""
    main = draw()
    for is_inserted in (False, False, True, False, True, False):
        yield Block(draw(main), 0.0, SHORT_S) if is_inserted else Block(main, 0.0, 15.0)


def english_between(rng: random.Random, draw: DrawLanguage) -> Iterator[Block]:
    """English between languages of other scripts."""
    for turn in range(rng.randint(4, 8)):
        yield Block("en" if turn % 2 else draw(), 0.0, 12.0)


def noisy(whole: Samples, spans: Spans, rng: random.Random, data: Path) -> Samples:
    noise = load_audio(rng.choice(sorted(noise_files(data).values())))
    return in_noise(whole, np.resize(noise, len(whole)), NOISE_DB)


def telephone(whole: Samples, spans: Spans, rng: random.Random, data: Path) -> Samples:
    """What a telephone carries."""
    spectrum = np.fft.rfft(whole)
    frequencies = np.fft.rfftfreq(len(whole), 1 / SAMPLE_RATE)
    spectrum[(frequencies < TELEPHONE_HZ[0]) | (frequencies > TELEPHONE_HZ[1])] = 0.0
    return np.fft.irfft(spectrum, len(whole)).astype(np.float32)


def music_under(whole: Samples, spans: Spans, rng: random.Random, data: Path) -> Samples:
    return in_noise(whole, np.resize(rng.choice(list(music())).samples, len(whole)), MUSIC_DB)


def music_between(whole: Samples, spans: Spans, rng: random.Random, data: Path) -> Samples:
    """Jingles in the pauses."""
    level = 10 ** (JINGLE_DB / 20)
    jingle = np.resize(rng.choice(list(music())).samples, len(whole))
    return whole + np.where(_is_pause(whole, spans), jingle * level / np.std(jingle), 0.0).astype(np.float32)


def faint_noise(whole: Samples, spans: Spans, rng: random.Random, data: Path) -> Samples:
    """Room noise, all the time."""
    noise = np.random.default_rng(rng.randrange(2**32)).standard_normal(len(whole))
    return (whole + 10 ** (FAINT_DB / 20) * noise).astype(np.float32)


def reverberant(whole: Samples, spans: Spans, rng: random.Random, data: Path) -> Samples:
    """In a room, at the level it had."""
    room = load_audio(data / "noise-rir/am_rir48000.flac")
    wet = np.fft.irfft(np.fft.rfft(whole, 2 * len(whole)) * np.fft.rfft(room, 2 * len(whole)))[: len(whole)]
    return (wet * np.std(whole) / np.std(wet)).astype(np.float32)


def uneven(whole: Samples, spans: Spans, rng: random.Random, data: Path) -> Samples:
    """Every second part 20 dB softer."""
    whole = whole.copy()
    for start, end in spans[1::2]:
        whole[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] *= SOFT
    return whole


def clipped(whole: Samples, spans: Spans, rng: random.Random, data: Path) -> Samples:
    return np.clip(whole * np.float32(CLIPPED / np.abs(whole).max()), -1.0, 1.0)


def mp3(whole: Samples, spans: Spans, rng: random.Random, data: Path) -> Samples:
    """Through MP3 of 32 kbit/s."""
    raw = ["-f", "f32le", "-ar", str(SAMPLE_RATE), "-ac", "1"]
    write = ["ffmpeg", "-v", "error", *raw, "-i", "-", "-b:a", "32k", "-f", "mp3", "-"]
    coded = subprocess.run(write, input=whole.tobytes(), capture_output=True, check=True).stdout
    found = load_audio(coded)[: len(whole)]
    return np.pad(found, (0, len(whole) - len(found)))


def _is_pause(whole: Samples, spans: Spans) -> np.ndarray:
    is_pause = np.ones(len(whole), bool)
    for start, end in spans:
        is_pause[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] = False
    return is_pause


CONDITIONS = {
    "clean": Condition(),
    "no-pauses": Condition(pause_s=(0.0, 0.05)),
    "noise": Condition(sound=noisy),
    "telephone": Condition(sound=telephone),
    "blocks": Condition(order=blocks),
    "one-short": Condition(order=one_short),
    "ends": Condition(order=ends),
    "turns": Condition((0.05, 0.3), turns),
    "short-turns": Condition(order=short_turns),
    "inserted": Condition(order=inserted),
    "long-pauses": Condition((5.0, 40.0)),
    "long-pauses-noise": Condition((5.0, 40.0), sound=faint_noise),
    "music-between": Condition((3.0, 8.0), sound=music_between),
    "music-under": Condition(sound=music_under),
    "room": Condition(sound=reverberant),
    "uneven": Condition(sound=uneven),
    "clipped": Condition(sound=clipped),
    "mp3": Condition(sound=mp3),
    "scripts": Condition(order=english_between, languages=("zh", "ja", "ko", "ru", "hi", "ar", "en")),
}
