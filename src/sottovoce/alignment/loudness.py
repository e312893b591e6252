"""Where speech begins and ends to be loud: nearer than a detector of speech tells, which hears 32 ms at a
time and holds on over pauses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sottovoce.audio.vad import SpeechSegment
from sottovoce.decoding.word_alignment import TimedWord
from sottovoce.types import SAMPLE_RATE, AudioChunk, Samples

STEP_SAMPLES = SAMPLE_RATE // 100
STEP_S = 0.01
LEVEL_DB, REACH_S = 35.0, 0.2
"""Speech, or a word, begins where it is first so near to its loudest 10 ms, at most so far from where it was
found."""
REACH = round(REACH_S / STEP_S)
Levels = npt.NDArray[np.float32]
NO_LEVELS: Levels = np.zeros(0, np.float32)


class LevelMeter:
    """Lets audio through and keeps its level: the root mean square of every whole 10 ms."""

    def __init__(self) -> None:
        self._found: list[Levels] = []
        self._rest: Samples = np.zeros(0, np.float32)

    def through(self, chunks: Iterable[AudioChunk]) -> Iterator[AudioChunk]:
        """Yield the chunks."""
        for chunk in chunks:
            samples = np.concatenate([self._rest, chunk.samples])
            n_whole = len(samples) // STEP_SAMPLES * STEP_SAMPLES
            self._rest = samples[n_whole:]
            steps = samples[:n_whole].reshape(-1, STEP_SAMPLES)
            self._found.append(np.sqrt(np.mean(steps**2, axis=1)))
            yield chunk

    @property
    def levels(self) -> Levels:
        """Of every 10 ms so far: (n,)."""
        return np.concatenate(self._found) if self._found else NO_LEVELS


def at_loud_bounds(speech: Sequence[SpeechSegment], levels: Levels) -> list[SpeechSegment]:
    """Return speech that begins and ends where it is loud; segments keep their order and do not overlap.

    levels: (n,) of every 10 ms of the recording.
    """
    reach = round(REACH_S * SAMPLE_RATE)
    found = []
    for i, one in enumerate(speech):
        first = _middle(speech[i - 1], one) if i else 0
        last = _middle(one, speech[i + 1]) if i + 1 < len(speech) else len(levels) * STEP_SAMPLES
        first, last = max(first, one.start_sample - reach), min(last, one.end_sample + reach)
        found.append(_loud_part(one, first // STEP_SAMPLES, last // STEP_SAMPLES, levels))
    return found


def at_quiet_bounds(words: Sequence[TimedWord], levels: Levels) -> list[TimedWord]:
    """Return words that begin where the sound before them does, and end where that behind them does: "f" and
    "s" are soft. Where it is not quiet within `REACH_S` and before the next word, a bound stays.

    levels: (n,) of every 10 ms, in the time of the words.
    """
    found: list[TimedWord] = []
    for i, word in enumerate(words):
        first, last = _step(word.start), _step(word.end)
        inside = levels[first : max(last, first + 1)]
        if not len(inside) or not inside.max():
            found.append(word)
            continue
        is_quiet = levels <= inside.max() * 10 ** (-LEVEL_DB / 20)
        floor = _step(found[-1].end) if i else 0
        ceiling = _step(words[i + 1].start) if i + 1 < len(words) else len(levels)
        before = np.flatnonzero(is_quiet[max(floor, first - REACH) : first])
        after = np.flatnonzero(is_quiet[last : min(ceiling, last + REACH)])
        start, end = word.start, word.end
        if len(before) and not is_quiet[first]:
            start = min(start, (max(floor, first - REACH) + int(before[-1]) + 1) * STEP_S)
        if len(after) and last > first and not is_quiet[last - 1]:
            end = max(end, (last + int(after[0])) * STEP_S)
        found.append(replace(word, start=start, end=end))
    return found


def _step(seconds: float) -> int:
    return round(seconds / STEP_S)


def _middle(one: SpeechSegment, after: SpeechSegment) -> int:
    return (one.end_sample + after.start_sample) // 2


def _loud_part(one: SpeechSegment, first: int, last: int, levels: Levels) -> SpeechSegment:
    """The part of the levels [first, last) that is loud; the segment as it is where none is."""
    inside = levels[first:last]
    if not len(inside) or not inside.max():
        return one
    loud = np.flatnonzero(inside > inside.max() * 10 ** (-LEVEL_DB / 20))
    return SpeechSegment((first + int(loud[0])) * STEP_SAMPLES, (first + int(loud[-1]) + 1) * STEP_SAMPLES)
