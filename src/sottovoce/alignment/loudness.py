"""Where speech begins and ends to be loud: nearer than a detector of speech tells, which hears 32 ms at a
time and holds on over pauses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sottovoce.audio.vad import SpeechSegment
from sottovoce.types import SAMPLE_RATE, AudioChunk, Samples

STEP_SAMPLES = SAMPLE_RATE // 100
LEVEL_DB, REACH_S = 35.0, 0.2
"""Speech begins where it is first so near to its loudest 10 ms, at most so far from where it was detected."""
Levels = npt.NDArray[np.float32]


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
        return np.concatenate(self._found) if self._found else np.zeros(0, np.float32)


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


def _middle(one: SpeechSegment, after: SpeechSegment) -> int:
    return (one.end_sample + after.start_sample) // 2


def _loud_part(one: SpeechSegment, first: int, last: int, levels: Levels) -> SpeechSegment:
    """The part of the levels [first, last) that is loud; the segment as it is where none is."""
    inside = levels[first:last]
    if not len(inside) or not inside.max():
        return one
    loud = np.flatnonzero(inside > inside.max() * 10 ** (-LEVEL_DB / 20))
    return SpeechSegment((first + int(loud[0])) * STEP_SAMPLES, (first + int(loud[-1]) + 1) * STEP_SAMPLES)
