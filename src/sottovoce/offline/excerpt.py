"""A part of a recording, transcribed as if it were all there is, with the times of the whole."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial

from sottovoce.audio.recording import Recording
from sottovoce.offline.segment_generator import SegmentGenerator, next_segment
from sottovoce.offline.transcriber import TranscriptionState
from sottovoce.types import Segment, Turn


def moved(
    segments: SegmentGenerator,
    start_s: float,
    *,
    part: Recording,
    own: TranscriptionState,
    state: TranscriptionState,
) -> SegmentGenerator:
    """Yield the segments of a part that begins at start_s, with their times in the recording.

    own: how far the part is; state: how far the recording is, filled in here.
    """
    state.position = start_s
    note = partial(_note, state, own, part, start_s)
    with closing(segments):
        while (segment := (yield from next_segment(segments, note))) is not None:
            yield segment_moved(segment, start_s)


def _note(state: TranscriptionState, own: TranscriptionState, part: Recording, start_s: float) -> None:
    state.take(own, start_s)
    state.resume_point = own.resume_point
    state.turns = tuple(Turn(one.start + start_s, one.end + start_s, one.speaker) for one in own.turns)
    end_s = None if own.duration is None else start_s + own.duration
    state.duration = end_s if part.declared_s is None else max(part.declared_s, end_s or 0.0)


def segment_moved(segment: Segment, seconds: float) -> Segment:
    """Move a segment and its words so many seconds later."""
    words = segment.words and tuple(
        replace(word, start=round(word.start + seconds, 3), end=round(word.end + seconds, 3))
        for word in segment.words
    )
    start, end = round(segment.start + seconds, 3), round(segment.end + seconds, 3)
    return replace(segment, start=start, end=end, words=words)
