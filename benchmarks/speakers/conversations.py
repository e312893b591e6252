"""Conversations made of recordings of people: who speaks when is known, since it was put there.

Voices that choose settings never report. Turns are phrases of clips, cut where the speaker pauses; between
them are pauses, or the next speaker begins before the last has ended. Where somebody speaks is taken from
the level of the clean clip, so no detector of speech says what is true.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.clips import Clip, Part, clips
from sottovoce.audio.io import load_audio
from sottovoce.types import SAMPLE_RATE, Samples, Turn

SETS = ("librispeech-mini", "nemo-pl")
LONG = ("dona-es", "hindi-hsc", "kathleen-en", "kerstin-de", "ljspeech-mini")
"""Sets of few voices with much speech, which choose settings too: LibriSpeech's there have 15 s each."""
FRAME = SAMPLE_RATE // 50
BELOW_LOUD_DB = 28.0
"""Frames of 20 ms this far below the loud ones of a clip are a pause."""
LONGEST_PAUSE_S = 0.3
"""A shorter pause is part of the speech, as in the references of the field."""
LEVEL_DB = -26.0
LONGEST_TURN_S = 7.0
LEAK_DB = 20.0
"""This much quieter a microphone hears those who have one of their own."""
MOST_CLIPS = 30
LENGTH_S = 60.0


@dataclass(frozen=True, slots=True)
class Phrase:
    """What somebody says without a break: samples at 16 kHz, and where in them speech is (samples)."""

    speaker: str
    samples: Samples
    speech: tuple[tuple[int, int], ...]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A recording, its true turns, and its words with their speakers, in order, where they are known.

    channels: (n_speakers, n_samples), a microphone for each, which hears the others `LEAK_DB` quieter.
    """

    samples: Samples
    turns: tuple[Turn, ...]
    channels: Samples
    words: tuple[tuple[str, str], ...] = ()


def voices(data: Path, part: Part) -> dict[str, list[Clip]]:
    """Clips by speaker. Of LibriSpeech, `train-clean` chooses and `test-other` reports; of the Polish
    commands, every second speaker; voices of LONG choose. No speaker does both."""
    chosen: dict[str, list[Clip]] = {}
    result = [*clips(data, "dev", sets=(*SETS, *LONG)), *clips(data, "test", sets=SETS)]
    for clip in result:
        if clip.speaker is not None:
            chosen.setdefault(f"{clip.group}/{clip.speaker}", []).append(clip)
    reports = {name for name in chosen if name.startswith("nemo-pl/")}
    reports = set(sorted(reports)[1::2])
    test = {clip.speaker for clip in clips(data, "test", sets=("librispeech-mini",))}
    reports |= {name for name in chosen if name.split("/")[1] in test and name.startswith("libri")}
    return {name: result for name, result in chosen.items() if (name in reports) == (part == "test")}


def phrases(name: str, result: Sequence[Clip], *, whole: bool = False) -> list[Phrase]:
    """What a speaker says, in phrases of at most `LONGEST_TURN_S`; or in whole clips, with their texts."""
    created = []
    for clip in result:
        samples = load_audio(clip.file)
        speech = spoken(samples)
        if not speech:
            continue
        first, last = speech[0][0], speech[-1][1]
        samples = samples * (10 ** (LEVEL_DB / 20) / max(1e-6, float(np.sqrt(np.mean(samples**2)))))
        groups = [(first, last)] if whole else grouped(speech)
        for start, end in groups:
            inside = tuple((a - start, b - start) for a, b in speech if start <= a and b <= end)
            created.append(Phrase(name, samples[start:end], inside, clip.text if whole else None))
    return created


def spoken(samples: Samples) -> list[tuple[int, int]]:
    """Where a clean clip holds speech: samples [start, end), pauses of up to 0.3 s included."""
    n_frames = len(samples) // FRAME
    power = np.mean(samples[: n_frames * FRAME].reshape(n_frames, FRAME) ** 2, axis=1)
    level = 10 * np.log10(np.maximum(power, 1e-12))
    is_loud = level > np.percentile(level, 95) - BELOW_LOUD_DB
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_loud, [False])).astype(int))).reshape(-1, 2)
    joined: list[tuple[int, int]] = []
    for start, end in edges * FRAME:
        if joined and start - joined[-1][1] <= LONGEST_PAUSE_S * SAMPLE_RATE:
            joined[-1] = (joined[-1][0], int(end))
        else:
            joined.append((int(start), int(end)))
    return [(start, end) for start, end in joined if end - start > 0.1 * SAMPLE_RATE]


def grouped(speech: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretches of speech put together up to the longest turn."""
    groups = [speech[0]]
    for start, end in speech[1:]:
        if end - groups[-1][0] <= LONGEST_TURN_S * SAMPLE_RATE:
            groups[-1] = (groups[-1][0], end)
        else:
            groups.append((start, end))
    return groups


def conversation(
    said: Sequence[Sequence[Phrase]], seconds: float, rng: random.Random, *, overlaps: bool = True
) -> Conversation:
    """A conversation of these speakers, of about so many seconds; each speaker has a level of their own."""
    stacks = [rng.sample(list(item), len(item)) for item in said]
    gains = [10 ** (rng.uniform(-4, 4) / 20) for _ in said]
    each = np.zeros((len(said), int((seconds + 40) * SAMPLE_RATE)), np.float32)
    turns: list[Turn] = []
    words: list[tuple[str, str]] = []
    at, last, last_length = int(0.3 * SAMPLE_RATE), -1, 0
    while at < seconds * SAMPLE_RATE:
        others = [i for i, stack in enumerate(stacks) if stack and (i != last or len(stacks) == 1)]
        if not others:
            break
        # Whoever has most left to say speaks rather, so that nobody falls silent early.
        who = max(others, key=lambda i: len(stacks[i]) + 2 * rng.random())
        phrase = stacks[who].pop()
        length = len(phrase.samples)
        if overlaps and last not in (-1, who) and rng.random() < 0.25:
            at -= int(min(rng.uniform(0.3, 1.2) * SAMPLE_RATE, 0.5 * length, 0.5 * last_length))
        elif last >= 0:
            at += int(rng.uniform(0.1, 1.2) * SAMPLE_RATE)
        each[who, at : at + length] += gains[who] * phrase.samples
        turns += [
            Turn((at + a) / SAMPLE_RATE, (at + b) / SAMPLE_RATE, phrase.speaker) for a, b in phrase.speech
        ]
        words += [(word, phrase.speaker) for word in (phrase.text or "").split()]
        at, last, last_length = at + length, who, length
    each = each[:, : at + SAMPLE_RATE // 2]
    noises = np.random.default_rng(rng.randrange(2**32)).standard_normal((1 + len(each), each.shape[1]))
    faint = 10 ** ((LEVEL_DB - 35.0) / 20) * noises.astype(np.float32)
    mix = each.sum(axis=0) + faint[0]
    leaks = 10 ** (-LEAK_DB / 20) * (each.sum(axis=0) - each)
    channels = each + leaks + faint[1:]
    return Conversation(
        within_range(mix),
        tuple(sorted(turns, key=lambda turn: (turn.start, turn.end))),
        within_range(channels),
        tuple(words),
    )


def within_range(samples: Samples) -> Samples:
    return samples / np.float32(max(1.0, float(np.abs(samples).max(initial=0))))


def made(data: Path, part: Part, n_speakers: int, n_made: int, *, whole: bool = False) -> list[Conversation]:
    """The same conversations of a part of the voices in every call; speakers of one are of one set."""
    result = voices(data, part)
    rng = random.Random(f"{part}-{n_speakers}-0-{whole}")
    conversations = []
    for number in range(n_made):
        # Every fourth is Polish, and every other of those that choose is long.
        groups: tuple[str, ...] = SETS[1:] if number % 4 == 3 and not whole else SETS[:1]
        if part == "dev" and number % 4 in (0, 2):
            groups = LONG
        names = sorted(name for name in result if name.split("/")[0] in groups)
        if whole:
            names = [name for name in names if all(clip.text for clip in result[name])]
        chosen = rng.sample(names, min(n_speakers, len(names)))
        said = [phrases(name, result[name][:MOST_CLIPS], whole=whole) for name in chosen]
        conversations.append(conversation(said, LENGTH_S, rng, overlaps=not whole))
    return conversations
