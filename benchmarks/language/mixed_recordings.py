"""Recordings of several languages, joined from people's clips as a table of files needs them.

Four to eight parts of 1.5 to 15 seconds, pauses of 0.2 to 1 second, eight languages that Whisper base knows;
neighbours may share a language. Parts of sets with texts stand whole, so that their words can be counted; of
the others a stretch is cut out. "short-turns" have eight to twelve parts of SHORT_S at most; in "inserted"
one language is spoken, but for two short parts in others. Everything is drawn with a fixed seed. Not known
here: models.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.files.noise import in_noise
from benchmarks.harness.clips import Clip, Part, clips
from benchmarks.harness.joined_languages import NOISE, VOXLINGUA
from benchmarks.harness.sounds import noise_files
from sottovoce.audio.io import load_audio
from sottovoce.audio.vad import speech_segments
from sottovoce.options.vad import VadOptions
from sottovoce.types import SAMPLE_RATE, Samples

LANGUAGES = ("en", "de", "es", "fr", "it", "pt", "pl", "nl")
WITH_TEXT = 0.75
"""Share of the parts whose text is known, in languages that have such clips."""
LEAST_S, MOST_S = 1.5, 15.0
SHORT_S = 4.0
INSERTED = (False, False, True, False, True, False)
"""Which parts of a recording are short ones in another language, where they are inserted."""
PAUSE_S = {
    "clean": (0.2, 1.0),
    "no-pauses": (0.0, 0.05),
    "noise": (0.2, 1.0),
    "telephone": (0.2, 1.0),
    "short-turns": (0.2, 1.0),
    "inserted": (0.2, 1.0),
}
NOISE_DB = 15.0
"""How far recorded noise, which fills the pauses too, lies below the speech."""
TELEPHONE_HZ = (300.0, 3400.0)
MOST_OF_A_SET = 40
COMMON = 12
"""A language with fewer clips is drawn less often."""


Condition = Literal["clean", "no-pauses", "noise", "telephone", "short-turns", "inserted"]


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
        """Its samples alone."""
        return load_audio(self.clip.file, start_s=self.from_s, duration_s=self.duration_s)


@dataclass(frozen=True, slots=True)
class MixedRecording:
    """Parts in order, with half a second of silence before the first and a second after the last.

    condition: what was done to them. noises: recordings of noise, of which "noise" takes one.
    """

    name: str
    parts: tuple[MixedPart, ...]
    condition: Condition = "clean"
    noises: tuple[Path, ...] = ()

    @property
    def kind(self) -> str:
        """What a table counts it under."""
        return self.condition

    @property
    def duration_s(self) -> float:
        return self.parts[-1].end_s + 1.0

    @property
    def spans(self) -> list[tuple[float, float, str]]:
        """Seconds and language of every part."""
        return [(part.start_s, part.end_s, part.language) for part in self.parts]

    @property
    def languages(self) -> tuple[str, ...]:
        """Those spoken, each once, in order."""
        return tuple(dict.fromkeys(part.language for part in self.parts))

    def audio(self) -> Samples:
        whole = np.zeros(round(self.duration_s * SAMPLE_RATE), np.float32)
        for part in self.parts:
            at = round(part.start_s * SAMPLE_RATE)
            sound = part.audio()
            whole[at : at + len(sound)] = sound[: len(whole) - at]
        if self.condition == "noise":
            return in_noise(whole, self._noise(len(whole)), NOISE_DB)
        return band_passed(whole) if self.condition == "telephone" else whole

    def audio_of(self, part: MixedPart, whole: Samples) -> Samples:
        """The samples of one part; of a recording that was altered those of `whole`, its own."""
        if self.condition not in ("noise", "telephone"):
            return part.audio()
        return whole[round(part.start_s * SAMPLE_RATE) : round(part.end_s * SAMPLE_RATE)]

    def _noise(self, n_samples: int) -> Samples:
        noise = load_audio(random.Random(self.name).choice(self.noises))
        return np.tile(noise, -(-n_samples // len(noise)))[:n_samples]


def band_passed(samples: Samples) -> Samples:
    """Leave of samples (n,) what a telephone carries."""
    spectrum = np.fft.rfft(samples)
    frequencies = np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE)
    spectrum[(frequencies < TELEPHONE_HZ[0]) | (frequencies > TELEPHONE_HZ[1])] = 0.0
    return np.fft.irfft(spectrum, len(samples)).astype(np.float32)


def mixed_recordings(
    data: Path, part: Part, n_recordings: int, *, with_text: bool = False, condition: Condition = "clean"
) -> list[MixedRecording]:
    """So many recordings from the clips of a part; no clip stands in two of them while others are left.

    data: the folder of `manifest.jsonl`. with_text: only of clips whose text is known, in languages with at
        least COMMON of them.
    """
    drawer = _Drawer(data, part, condition, with_text=with_text)
    kind = "text" if with_text else "all"
    suffix = "" if condition == "clean" else f"-{condition}"
    return [drawer.recording(f"{kind}-{part}-{index:02d}{suffix}") for index in range(n_recordings)]


class _Drawer:
    """Draws clips without putting them back until a pile is empty."""

    def __init__(self, data: Path, part: Part, condition: Condition, *, with_text: bool) -> None:
        self._condition = condition
        self._noises = tuple(sorted(noise_files(data).values()))
        self._rng = random.Random(f"mixed recordings {part} {with_text}")
        pools = _pools(data, part)
        self._clips = {
            key: found for key, found in pools.items() if not with_text or (key[1] and len(found) >= COMMON)
        }
        self._piles: dict[tuple[str, bool, float], list[Clip]] = {}
        sizes = [
            sum(len(self._clips.get((code, known), ())) for known in (True, False)) for code in LANGUAGES
        ]
        self._weights = [min(1.0, size / COMMON) for size in sizes]

    def recording(self, name: str) -> MixedRecording:
        rng = self._rng
        parts: list[MixedPart] = []
        at = 0.5
        for language, most_s in self._turns():
            parts.append(self._part(language, round(at, 3), most_s))
            at = parts[-1].end_s + rng.uniform(*PAUSE_S[self._condition])
        return MixedRecording(name, tuple(parts), self._condition, self._noises)

    def _turns(self) -> Iterator[tuple[str, float]]:
        """Yield the language of each part, and the seconds that it has at most."""
        if self._condition != "inserted":
            is_short = self._condition == "short-turns"
            for _ in range(self._rng.randint(8, 12) if is_short else self._rng.randint(4, 8)):
                yield self._language(), SHORT_S if is_short else MOST_S
            return
        most = self._language()
        for is_inserted in INSERTED:
            yield (self._language(but=most), SHORT_S) if is_inserted else (most, MOST_S)

    def _language(self, but: str = "") -> str:
        weights = [0.0 if code == but else one for code, one in zip(LANGUAGES, self._weights, strict=True)]
        return self._rng.choices(LANGUAGES, weights)[0]

    def _part(self, language: str, start_s: float, most_s: float) -> MixedPart:
        rng = self._rng
        texts, others = (len(self._clips.get((language, known), ())) for known in (True, False))
        share = WITH_TEXT if texts >= COMMON else texts / (texts + others)
        has_text = rng.random() < share or not others
        clip = self._take(language, most_s, has_text=has_text)
        first_s, last_s = _speech(clip.file)
        if has_text:
            return MixedPart(clip, first_s, start_s, last_s - first_s, clip.text)
        duration_s = rng.uniform(LEAST_S, min(most_s, last_s - first_s))
        from_s = rng.uniform(first_s, last_s - duration_s)
        return MixedPart(clip, from_s, start_s, duration_s, None)

    def _take(self, language: str, most_s: float, *, has_text: bool) -> Clip:
        pile = self._piles.setdefault((language, has_text, most_s), [])
        if not pile:
            found = self._clips[language, has_text]
            fitting = [clip for clip in found if _length(clip) <= most_s] if has_text else []
            pile.extend(fitting or found)
            self._rng.shuffle(pile)
        return pile.pop()


def _pools(data: Path, part: Part) -> dict[tuple[str, bool], list[Clip]]:
    """Clips by language and whether their text is known; of a large set some, spread evenly."""
    by_set: dict[tuple[str, bool], list[Clip]] = {}
    for clip in clips(data, part):
        if not clip.languages[1:] and clip.language in LANGUAGES and clip.group != NOISE:
            by_set.setdefault((clip.group, clip.text is not None), []).append(clip)
    pools: dict[tuple[str, bool], list[Clip]] = {}
    for (group, has_text), found in by_set.items():
        step = 1 if group == VOXLINGUA else -(-len(found) // MOST_OF_A_SET)
        for clip in found[::step]:
            if _length(clip) >= LEAST_S and not (has_text and _length(clip) > MOST_S):
                pools.setdefault((clip.language, has_text), []).append(clip)
    return pools


def _length(clip: Clip) -> float:
    first_s, last_s = _speech(clip.file)
    return last_s - first_s


@cache
def _speech(file: Path) -> tuple[float, float]:
    """From the first speech of a clip to the last, in seconds: what is around it is no pause of ours."""
    found = speech_segments(load_audio(file), VadOptions(min_silence_ms=160.0, speech_pad_ms=100.0))
    return (found[0].start_s, found[-1].end_s) if found else (0.0, 0.0)


def described(recordings: Sequence[MixedRecording]) -> str:
    """What there is, in a line."""
    parts = [part for one in recordings for part in one.parts]
    seconds = sum(one.duration_s for one in recordings)
    n_words = sum(len(part.text.split()) for part in parts if part.text)
    return f"{len(recordings)} recordings, {seconds:.0f} s, {len(parts)} parts, {n_words} words with text"
