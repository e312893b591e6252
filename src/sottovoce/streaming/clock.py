"""What was heard when: samples under their index, edges of speech among them, and when updates are due.

Time is samples received, and updates are due at fixed ones. Not known here: what is said, in which language,
and what is done at a moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sottovoce.audio.buffer import AudioBuffer
from sottovoce.audio.vad_stream import SpeechEdge, VadStream
from sottovoce.types import SAMPLE_RATE, Samples

IDLE_KEPT_S, ONSET_S = 5.0, 2.0
"""Audio kept in a pause: the next utterance begins in it; one held over needs all of the pause too."""


@dataclass(frozen=True, slots=True)
class Moment:
    """An update is due at a sample, or speech starts or ends there."""

    kind: Literal["update", "start", "end"]
    sample: int


class Clock:
    """Takes samples, and goes through the moments in them.

    vad: finds speech; without it everything is speech, from the first sample to `stop`. chunk_s: audio
        between two updates. held_over_s: the longest pause that an utterance is held over.
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
        """The sample that time has come to."""

    @property
    def now_s(self) -> float:
        return self.now / SAMPLE_RATE

    @property
    def finds_speech(self) -> bool:
        """Whether speech is told from silence."""
        return self._vad is not None

    @property
    def start(self) -> int:
        """The first sample held."""
        return self._buffer.start

    @property
    def end(self) -> int:
        """Samples received."""
        return self._buffer.end

    def view(self, start: int, end: int) -> Samples:
        """Samples that are held; the caller copies what it keeps."""
        return self._buffer.view(start, end)

    def hear(self, pcm: Samples) -> None:
        """Take samples; see `Session.push` for what is refused."""
        self._buffer.append(pcm)
        if self._vad is not None:
            self._edges += self._vad.push(pcm)
        elif not self._is_all_speech and len(pcm):
            self._edges.append(SpeechEdge("start", 0, 0))
            self._is_all_speech = True

    def stop(self) -> None:
        """No more samples come: what is being said ends."""
        if self._vad is not None:
            self._edges += self._vad.close()
        elif self._is_all_speech:
            self._edges.append(SpeechEdge("end", self.end, self.end))

    def moments(self, *, newest_only: bool = False) -> Iterator[Moment]:
        """Go through time up to all that was received; edges come where they were found.

        newest_only: of the updates between two edges, the last one alone.
        """
        while self._edges:
            edge = self._edges.popleft()
            yield from self._updates(edge.detected_sample, newest_only=newest_only)
            yield Moment(edge.kind, edge.sample)
        yield from self._updates(self.end, newest_only=newest_only)

    def _updates(self, until: int, *, newest_only: bool) -> Iterator[Moment]:
        if newest_only and self._next_update + self._chunk <= until:
            self._next_update += (until - self._next_update) // self._chunk * self._chunk
        while self._next_update <= until:
            self.now = self._next_update
            self._next_update += self._chunk
            yield Moment("update", self.now)
        self.now = until

    def is_held_over(self, end: int, start: int) -> bool:
        """Whether speech that starts at a sample goes on with an utterance that ended at another."""
        return start - end <= self._held_over

    def forget(self, taken: int, *, is_open: bool) -> None:
        """Let go of audio that nobody will need.

        taken: the last utterance holds what lies before this sample itself. is_open: it goes on.
        """
        idle = max(round(IDLE_KEPT_S * SAMPLE_RATE), self._held_over + round(ONSET_S * SAMPLE_RATE))
        kept = taken if is_open else max(taken, self.end - idle)
        self._buffer.drop_before(min(kept, self.end))
