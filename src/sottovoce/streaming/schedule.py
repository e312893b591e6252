"""Stage 1: received samples, the edges of speech among them, and the points at which something is due.

Time is samples received, and updates are due at fixed samples, so nothing depends on how audio is cut into
pushes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sottovoce.audio.samples import AudioBuffer
from sottovoce.audio.vad import SpeechEdge, VadStream
from sottovoce.types import SAMPLE_RATE, Samples

IDLE_S, ONSET_S = 5.0, 2.0
"""Seconds of audio kept in a pause: the next utterance begins in it; a resumed one needs all of it too."""


@dataclass(frozen=True, slots=True)
class SchedulePoint:
    """An update is due at a sample, or speech starts or ends there."""

    kind: Literal["update", "start", "end"]
    sample: int


class UpdateSchedule:
    """Buffer samples and iterate over the points in them.

    vad: finds speech; None: all is speech, from the first sample to `stop`. chunk_s: seconds between two
    updates. held_over_s: longest pause that an utterance is resumed after.
    """

    def __init__(self, vad: VadStream | None, chunk_s: float, held_over_s: float) -> None:
        self._vad = vad
        self._buffer = AudioBuffer()
        self._edges: deque[SpeechEdge] = deque()
        self._is_all_speech = False
        self._chunk = round(chunk_s * SAMPLE_RATE)
        self._next_update = self._chunk
        self._held_over = round(held_over_s * SAMPLE_RATE)
        self.now = 0
        """Sample of the current point."""

    @property
    def now_s(self) -> float:
        return self.now / SAMPLE_RATE

    @property
    def has_vad(self) -> bool:
        return self._vad is not None

    @property
    def start(self) -> int:
        """First sample in the buffer."""
        return self._buffer.start

    @property
    def end(self) -> int:
        """Number of samples received."""
        return self._buffer.end

    def view(self, start: int, end: int) -> Samples:
        """Return samples [start, end) of the buffer without a copy."""
        return self._buffer.view(start, end)

    def append(self, pcm: Samples) -> None:
        """Take samples (n,) float32.

        Raises: AudioError for what `Session.push` refuses.
        """
        self._buffer.append(pcm)
        if self._vad is not None:
            self._edges += self._vad.push(pcm)
        elif not self._is_all_speech and len(pcm):
            self._edges.append(SpeechEdge("start", 0, 0))
            self._is_all_speech = True

    def stop(self) -> None:
        """Take the end of the audio: speech that is going on ends there."""
        if self._vad is not None:
            self._edges += self._vad.close()
        elif self._is_all_speech:
            self._edges.append(SpeechEdge("end", self.end, self.end))

    def points(self, *, newest_only: bool = False) -> Iterator[SchedulePoint]:
        """Advance `now` to the last sample received; edges come at the sample where they were detected.

        newest_only: of the updates between two edges, only the last one.
        """
        while self._edges:
            edge = self._edges.popleft()
            yield from self._updates(edge.detected_sample, newest_only=newest_only)
            yield SchedulePoint(edge.kind, edge.sample)
        yield from self._updates(self.end, newest_only=newest_only)

    def _updates(self, until: int, *, newest_only: bool) -> Iterator[SchedulePoint]:
        if newest_only and self._next_update + self._chunk <= until:
            self._next_update += (until - self._next_update) // self._chunk * self._chunk
        while self._next_update <= until:
            self.now = self._next_update
            self._next_update += self._chunk
            yield SchedulePoint("update", self.now)
        self.now = until

    def resumes(self, end: int, start: int) -> bool:
        """Return whether speech from sample `start` continues an utterance that ended at sample `end`."""
        return start - end <= self._held_over

    def discard(self, taken: int, *, is_open: bool) -> None:
        """Drop samples from the buffer that are not needed again.

        taken: the last utterance has copied everything before this sample. is_open: that utterance goes on.
        """
        idle = max(round(IDLE_S * SAMPLE_RATE), self._held_over + round(ONSET_S * SAMPLE_RATE))
        first = taken if is_open else max(taken, self.end - idle)
        self._buffer.drop_before(min(first, self.end))
