"""Recordings joined from people's clips: several languages one after another, and long ones of one language.

The clips of a part (`harness.clips`) make recordings of that part alone. Everything is drawn with a fixed
seed: the same data give the same recordings. Not known here: models, and what is asked of the
recordings."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from benchmarks.harness.clips import PAUSES_S, Clip, Part, clips
from sottovoce.audio.io import load_audio
from sottovoce.audio.vad import VadStream
from sottovoce.evaluation.manifest import read_manifest
from sottovoce.options.vad import VadStreamOptions
from sottovoce.types import SAMPLE_RATE, Samples

Kind: TypeAlias = Literal["known", "mixed", "concat", "single"]
Spans: TypeAlias = tuple[tuple[float, float, str], ...]
KNOWN = ("en", "de", "es", "fr", "it", "pt", "pl")
"""Languages that Whisper base transcribes well."""
ALIKE = (
    frozenset({"hr", "sr", "sl", "bs", "mk"}),
    frozenset({"no", "nn", "da", "sv"}),
    frozenset({"ur", "hi"}),
)
"""Languages that take one another's place in few words: no recording changes between two of a group."""
LONGEST_PART_S, SHORTEST_PART_S = 7.0, 2.0
PAUSE_S = (0.2, 1.0)
CONCAT, NOISE, VOXLINGUA = "codeswitch-concat", "noise-rir", "voxlingua107-dev"
MOST_OF_A_SET = 50
SINGLE_S = 90.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A clip within a recording: `seconds` of it, from `from_s` on, lie at `start_s`."""

    clip: Clip
    from_s: float
    start_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Joined:
    """A recording. kind: "known" changes among KNOWN, "mixed" among all languages, "concat" is a recording of
    that set, "single" has one language. spans: (start, end, language) in seconds, in order."""

    name: str
    kind: Kind
    pieces: tuple[Piece, ...]
    spans: Spans
    file: Path | None = None

    @property
    def languages(self) -> tuple[str, ...]:
        """Those spoken, each once, in order."""
        return tuple(dict.fromkeys(language for _, _, language in self.spans))

    @property
    def duration_s(self) -> float:
        return self.spans[-1][1] + 1.0

    def audio(self) -> Samples:
        """The samples; a joined recording ends with a second of silence."""
        if self.file is not None:
            return load_audio(self.file)
        whole = np.zeros(round(self.duration_s * SAMPLE_RATE), np.float32)
        for piece in self.pieces:
            at = round(piece.start_s * SAMPLE_RATE)
            sound = load_audio(piece.clip.file, start_s=piece.from_s, duration_s=piece.seconds)
            whole[at : at + len(sound)] = sound[: len(whole) - at]
        return whole


def recordings(data: Path, part: Part, *, known: int, mixed: int, singles: int) -> list[Joined]:
    """So many of each kind, and all of the set of joined recordings; singles: a language, of those with
    enough.

    data: the folder of `manifest.jsonl`.
    """
    pool = _pool(data, part)
    of_known = [clip for clip in pool if clip.language in KNOWN]
    made = [
        _several(f"known-{i}", "known", of_known, random.Random(f"{part} known {i}")) for i in range(known)
    ]
    made += [_several(f"mixed-{i}", "mixed", pool, random.Random(f"{part} mixed {i}")) for i in range(mixed)]
    return [*made, *_concat(data, part), *_singles(pool, singles)]


def _pool(data: Path, part: Part) -> list[Clip]:
    """Clips of one language, some of every set: the large ones have one speaker."""
    by_set: dict[str, list[Clip]] = {}
    for clip in clips(data, part):
        if len(clip.languages) == 1 and clip.group != NOISE:
            by_set.setdefault(clip.group, []).append(clip)
    limit = {group: MOST_OF_A_SET if group != VOXLINGUA else len(found) for group, found in by_set.items()}
    return [clip for group, found in by_set.items() for clip in found[:: -(-len(found) // limit[group])]]


def _several(name: str, kind: Kind, pool: Sequence[Clip], rng: random.Random) -> Joined:
    """Three to five parts, each in another language than the one before, cut to where speech is."""
    chosen: list[Clip] = []
    for _ in range(rng.randint(3, 5)):
        before = chosen[-1].language if chosen else ""
        languages = sorted({clip.language for clip in pool if not _alike(clip.language, before)})
        language = rng.choice(languages)
        candidates = [clip for clip in pool if clip.language == language]
        rng.shuffle(candidates)
        chosen += [
            next((clip for clip in candidates if _seconds(clip.file) >= SHORTEST_PART_S), candidates[0])
        ]
    return _laid_out(name, kind, chosen, [rng.uniform(*PAUSE_S) for _ in chosen], LONGEST_PART_S)


def _alike(one: str, other: str) -> bool:
    return one == other or any({one, other} <= group for group in ALIKE)


def _laid_out(
    name: str, kind: Kind, chosen: Sequence[Clip], pauses: Sequence[float], longest_s: float
) -> Joined:
    pieces: list[Piece] = []
    at = 0.5
    for clip, pause in zip(chosen, pauses, strict=True):
        first_s, last_s = _speech(clip.file)
        seconds = min(last_s - first_s, longest_s)
        pieces.append(Piece(clip, first_s, round(at, 3), seconds))
        at += seconds + pause
    spans = tuple((p.start_s, p.start_s + p.seconds, p.clip.language) for p in pieces)
    return Joined(name, kind, tuple(pieces), spans)


def _concat(data: Path, part: Part) -> Iterator[Joined]:
    spans = {
        entry.id: entry.spans
        for entry in read_manifest(data / "manifest.jsonl")
        if entry.id.startswith(CONCAT)
    }
    for clip in clips(data, part, sets=[CONCAT]):
        found = tuple((span.start_s, span.end_s, span.language) for span in spans[clip.name])
        yield Joined(clip.name, "concat", (), found, clip.file)


def _singles(pool: Sequence[Clip], n_each: int) -> Iterator[Joined]:
    """Up to n_each recordings of SINGLE_S a language, no clip in two of them."""
    for language in sorted({clip.language for clip in pool}):
        left = [clip for clip in pool if clip.language == language]
        random.Random(language).shuffle(left)
        for number in range(n_each):
            taken: list[Clip] = []
            while left and sum(_seconds(clip.file) for clip in taken) < SINGLE_S:
                taken.append(left.pop())
            if sum(_seconds(clip.file) for clip in taken) < SINGLE_S / 2:
                break
            pauses = [PAUSES_S[i % len(PAUSES_S)] for i in range(len(taken))]
            yield _laid_out(f"single-{language}-{number}", "single", taken, pauses, 30.0)


def _seconds(file: Path) -> float:
    first_s, last_s = _speech(file)
    return last_s - first_s


@cache
def _speech(file: Path) -> tuple[float, float]:
    """From the first speech of a clip to the last, in seconds: what is around it is no pause of ours."""
    audio = load_audio(file)
    vad = VadStream(VadStreamOptions(pre_roll_ms=100.0))
    edges = [*vad.push(audio), *vad.close()]
    if not edges:
        return 0.0, 0.0
    return edges[0].sample / SAMPLE_RATE, edges[-1].sample / SAMPLE_RATE
