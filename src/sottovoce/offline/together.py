"""Recordings of one meeting, a speaker each, as one transcription."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sottovoce.offline.regroup import segment_moved
from sottovoce.offline.transcription import FileTranscription, spoken_most, turns_of
from sottovoce.speakers.labels import spoken_by
from sottovoce.types import Segment, Span, Transcript, Turn


@dataclass(slots=True)
class TogetherTranscription(Iterator[Segment]):
    """The segments of several recordings in the order of their starts.

    parts: start in the meeting (s) and transcription, by speaker. Language probabilities are not computed.
    """

    parts: Mapping[str, tuple[float, FileTranscription]]
    model: str = ""
    language_probability: float | None = None
    language_probabilities: Mapping[str, float] = field(default_factory=dict)
    _merged: Iterator[Segment] = field(init=False)
    _segments: list[Segment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._merged = heapq.merge(
            *(_of_speaker(speaker, *part) for speaker, part in self.parts.items()),
            key=lambda segment: segment.start,
        )

    def __next__(self) -> Segment:
        segment = replace(next(self._merged), id=len(self._segments))
        self._segments.append(segment)
        return segment

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    @property
    def language(self) -> str | None:
        return spoken_most(self._segments)

    @property
    def turns(self) -> tuple[Turn, ...]:
        return turns_of(self._segments)

    @property
    def position(self) -> float:
        return min(start_s + part.position for start_s, part in self.parts.values())

    @property
    def duration(self) -> float | None:
        ends = [(start_s, part.duration) for start_s, part in self.parts.values()]
        return max((start_s + length for start_s, length in ends if length is not None), default=None)

    @property
    def unread(self) -> tuple[Span, ...] | None:
        spans = [
            (start_s + start, start_s + end)
            for start_s, part in self.parts.values()
            for start, end in part.unread or ()
        ]
        return (
            tuple(sorted(spans)) if any(part.unread is not None for _, part in self.parts.values()) else None
        )

    @property
    def second_s(self) -> float:
        return sum(part.second_s for _, part in self.parts.values())

    @property
    def outside_languages(self) -> Mapping[str, float]:
        seconds: dict[str, float] = {}
        for _, part in self.parts.values():
            for code, more_s in part.outside_languages.items():
                seconds[code] = seconds.get(code, 0.0) + more_s
        return seconds

    def collect(self) -> Transcript:
        """Transcribe the rest, and return the whole. Raises: AudioError, OptionError."""
        for _ in self:
            pass
        return Transcript(
            segments=self.segments,
            language=self.language or "",
            duration=self.duration or self.position,
            model=self.model,
            turns=self.turns,
            unread=self.unread,
        )

    def close(self) -> None:
        for _, part in self.parts.values():
            part.close()


def _of_speaker(speaker: str, start_s: float, part: Iterator[Segment]) -> Iterator[Segment]:
    return (spoken_by(segment_moved(segment, start_s), speaker) for segment in part)
