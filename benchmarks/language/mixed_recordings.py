"""Recordings of several languages, joined from people's clips as a table of files needs them.

Four to eight parts of 1.5 to 15 seconds, pauses of 0.2 to 1 second, eight languages that Whisper base
knows; neighbours may share a language; conditions change the order of parts, their pauses or the sound.
Parts of sets with texts stand whole, so that their words can be counted; of the others a stretch is cut
out. Everything is drawn with a fixed seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.harness.clips import NOISE, VOXLINGUA, Clip, Part, clips
from benchmarks.harness.sounds import in_noise, noise_files
from sottovoce.audio.io import load_audio
from sottovoce.audio.vad import speech_segments
from sottovoce.options.decoding import VadOptions
from sottovoce.types import SAMPLE_RATE, Samples

NOISE_DB, FAINT_DB = 15.0, -60.0
"""How far recorded noise lies below the speech; level of the noise in long pauses, against full scale."""
TELEPHONE_HZ = (300.0, 3400.0)

Sound: TypeAlias = Callable[[Samples, random.Random, Path], Samples]
"""Alters samples (n,); the folder is that of the recorded noises."""


@dataclass(frozen=True, slots=True)
class Block:
    """Parts in one language, one at least, until they are `seconds` long; most_s: the longest part."""

    language: str
    seconds: float
    most_s: float


DrawLanguage: TypeAlias = Callable[[], str]
Order: TypeAlias = Callable[[random.Random, DrawLanguage], Iterator[Block]]


@dataclass(frozen=True, slots=True)
class Condition:
    """order: of the languages; None: four to eight parts, drawn one by one. pause_s: least and most."""

    pause_s: tuple[float, float] = (0.2, 1.0)
    order: Order | None = None
    sound: Sound | None = None


def _others(draw: DrawLanguage, n: int) -> list[str]:
    """n languages, neighbours different."""
    result = [draw()]
    while len(result) < n:
        item = draw()
        result += [item] if item != result[-1] else []
    return result


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
    pair = _others(draw, 2)
    for turn in range(rng.randint(10, 16)):
        yield Block(pair[turn % 2], 0.0, 3.5)


def noisy(whole: Samples, rng: random.Random, data: Path) -> Samples:
    noise = load_audio(rng.choice(sorted(noise_files(data).values())))
    return in_noise(whole, np.resize(noise, len(whole)), NOISE_DB)


def telephone(whole: Samples, rng: random.Random, data: Path) -> Samples:
    spectrum = np.fft.rfft(whole)
    frequencies = np.fft.rfftfreq(len(whole), 1 / SAMPLE_RATE)
    spectrum[(frequencies < TELEPHONE_HZ[0]) | (frequencies > TELEPHONE_HZ[1])] = 0.0
    return np.fft.irfft(spectrum, len(whole)).astype(np.float32)


def faint_noise(whole: Samples, rng: random.Random, data: Path) -> Samples:
    noise = np.random.default_rng(rng.randrange(2**32)).standard_normal(len(whole))
    return (whole + 10 ** (FAINT_DB / 20) * noise).astype(np.float32)


CONDITIONS = {
    "clean": Condition(),
    "no-pauses": Condition(pause_s=(0.0, 0.05)),
    "noise": Condition(sound=noisy),
    "telephone": Condition(sound=telephone),
    "one-short": Condition(order=one_short),
    "ends": Condition(order=ends),
    "turns": Condition((0.05, 0.3), turns),
    "long-pauses-noise": Condition((5.0, 40.0), sound=faint_noise),
}
LANGUAGES = ("en", "de", "es", "fr", "it", "pt", "pl", "nl")
WITH_TEXT = 0.75
"""Share of the parts whose text is known, in languages that have such clips."""
LEAST_S, MOST_S = 1.5, 15.0
MOST_OF_A_SET = 40
COMMON = 12
"""A language with fewer clips is drawn less often."""


@dataclass(frozen=True, slots=True)
class MixedPart:
    """One clip in a recording: `duration_s` of it, from `from_s` on, lie at `start_s`; text: None if
    unknown."""

    clip: Clip
    from_s: float
    start_s: float
    duration_s: float
    text: str | None

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s

    @property
    def language(self) -> str:
        return self.clip.language

    def audio(self) -> Samples:
        return load_audio(self.clip.file, start_s=self.from_s, duration_s=self.duration_s)


@dataclass(frozen=True, slots=True)
class MixedRecording:
    """Parts in order, with half a second of silence before the first and a second after the last.

    sound: how it was altered. data: the folder of the recorded noises.
    """

    name: str
    parts: tuple[MixedPart, ...]
    sound: Sound | None = None
    data: Path = Path()

    @property
    def duration_s(self) -> float:
        return self.parts[-1].end_s + 1.0

    @property
    def spans(self) -> list[tuple[float, float, str]]:
        return [(part.start_s, part.end_s, part.language) for part in self.parts]

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.language for part in self.parts))

    def audio(self) -> Samples:
        whole = np.zeros(round(self.duration_s * SAMPLE_RATE), np.float32)
        for part in self.parts:
            at = round(part.start_s * SAMPLE_RATE)
            sound = part.audio()
            whole[at : at + len(sound)] = sound[: len(whole) - at]
        if self.sound is None:
            return whole
        return self.sound(whole, random.Random(self.name), self.data)

    def audio_of(self, part: MixedPart, whole: Samples) -> Samples:
        """The samples of one part; of a recording that was altered those of `whole`, its own."""
        if self.sound is None:
            return part.audio()
        return whole[round(part.start_s * SAMPLE_RATE) : round(part.end_s * SAMPLE_RATE)]


def mixed_recordings(
    data: Path, part: Part, n_recordings: int, *, with_text: bool = False, condition: str = "clean"
) -> list[MixedRecording]:
    """So many recordings from the clips of a part; no clip stands in two of them while others are left.

    data: the folder of `manifest.jsonl`. with_text: only of clips whose text is known, in languages with at
        least COMMON of them. condition: one of CONDITIONS.
    """
    drawer = _Drawer(data, part, condition, with_text=with_text)
    kind = "text" if with_text else "all"
    suffix = "" if condition == "clean" else f"-{condition}"
    return [drawer.recording(f"{kind}-{part}-{index:02d}{suffix}") for index in range(n_recordings)]


class _Drawer:
    """Draws clips without putting them back until a pile is empty."""

    def __init__(self, data: Path, part: Part, condition: str, *, with_text: bool) -> None:
        self._condition, self._data = CONDITIONS[condition], data
        self._rng = random.Random(f"mixed recordings {part} {with_text}")
        pools = _pools(data, part, with_text=with_text)
        self._clips = {key: item for key, item in pools.items() if not with_text or len(item) >= COMMON}
        self._piles: dict[tuple[str, bool, float], list[Clip]] = {}
        sizes = [
            sum(len(self._clips.get((code, known), ())) for known in (True, False)) for code in LANGUAGES
        ]
        self._weights = [min(1.0, size / COMMON) for size in sizes]

    def recording(self, name: str) -> MixedRecording:
        rng, condition = self._rng, self._condition
        parts: list[MixedPart] = []
        at = 0.5
        for block in (condition.order or _one_by_one)(rng, self._language):
            began_s = at
            while at == began_s or at - began_s < block.seconds:
                parts.append(self._part(block.language, round(at, 3), block.most_s))
                at = parts[-1].end_s + rng.uniform(*condition.pause_s)
        return MixedRecording(name, tuple(parts), condition.sound, self._data)

    def _language(self) -> str:
        return self._rng.choices(LANGUAGES, self._weights)[0]

    def _part(self, language: str, start_s: float, most_s: float) -> MixedPart:
        rng = self._rng
        texts, others = (len(self._clips.get((language, known), ())) for known in (True, False))
        share = WITH_TEXT if texts >= COMMON else texts / (texts + others)
        has_text = rng.random() < share or not others
        clip = self._take((language, has_text, most_s if has_text else MOST_S))
        first_s, last_s = _speech(clip.file)
        if has_text:
            return MixedPart(clip, first_s, start_s, last_s - first_s, clip.text)
        duration_s = rng.uniform(LEAST_S, min(most_s, last_s - first_s))
        from_s = rng.uniform(first_s, last_s - duration_s)
        return MixedPart(clip, from_s, start_s, duration_s, None)

    def _take(self, key: tuple[str, bool, float]) -> Clip:
        """A clip in a language, with text or without, that is no longer than that."""
        pile = self._piles.setdefault(key, [])
        if not pile:
            pile.extend(item for item in self._clips[key[:2]] if key[2] == MOST_S or _length(item) <= key[2])
            self._rng.shuffle(pile)
        return pile.pop()


def _one_by_one(rng: random.Random, draw: DrawLanguage) -> Iterator[Block]:
    """Four to eight parts, whose neighbours may share a language."""
    for _ in range(rng.randint(4, 8)):
        yield Block(draw(), 0.0, MOST_S)


def _pools(data: Path, part: Part, *, with_text: bool) -> dict[tuple[str, bool], list[Clip]]:
    """Clips by language and whether their text is known; of a large set some, spread evenly."""
    by_set: dict[tuple[str, bool], list[Clip]] = {}
    for clip in clips(data, part, with_text=with_text):
        if not clip.languages[1:] and clip.language in LANGUAGES and clip.group != NOISE:
            by_set.setdefault((clip.group, clip.text is not None), []).append(clip)
    pools: dict[tuple[str, bool], list[Clip]] = {}
    for (group, has_text), result in by_set.items():
        step = 1 if group == VOXLINGUA else -(-len(result) // MOST_OF_A_SET)
        for clip in result[::step]:
            if _length(clip) >= LEAST_S and not (has_text and _length(clip) > MOST_S):
                pools.setdefault((clip.language, has_text), []).append(clip)
    return pools


def _length(clip: Clip) -> float:
    first_s, last_s = _speech(clip.file)
    return last_s - first_s


@cache
def _speech(file: Path) -> tuple[float, float]:
    """From the first speech of a clip to the last, in seconds: what is around it is no pause of ours."""
    result = speech_segments(load_audio(file), VadOptions(min_silence_ms=160.0, speech_pad_ms=100.0))
    return (result[0].start_s, result[-1].end_s) if result else (0.0, 0.0)


def described(recordings: Sequence[MixedRecording]) -> str:
    parts = [part for item in recordings for part in item.parts]
    seconds = sum(item.duration_s for item in recordings)
    n_words = sum(len(part.text.split()) for part in parts if part.text)
    return f"{len(recordings)} recordings, {seconds:.0f} s, {len(parts)} parts, {n_words} words with text"
