"""Channels transcribed apart, each a speaker: what is said comes in the order of its beginning.

Every channel is a transcription of its own, with its own text before it, of what is not another's speech that
comes through the room. They are read side by side, the one that is furthest behind first, so nothing but one
segment of each waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sottovoce.audio.recording import Recording
from sottovoce.errors import AudioError
from sottovoce.offline.segment_generator import SegmentGenerator, next_segment
from sottovoce.offline.transcriber import TranscriptionState
from sottovoce.speakers.channel_diarizer import leaks
from sottovoce.speakers.labels import letter
from sottovoce.types import Segment, Turn


@dataclass(slots=True)
class _Channel:
    """A transcription of one channel; waiting: its next segment, None when it has ended."""

    speaker: str
    segments: SegmentGenerator
    state: TranscriptionState
    waiting: Segment | None = None


def channels_apart(
    recording: Recording,
    state: TranscriptionState,
    begin: Callable[[Recording, TranscriptionState], SegmentGenerator],
) -> SegmentGenerator:
    """Yield the segments of all channels of a recording; begin: makes those of one.

    Raises: AudioError for a recording of one channel.
    """
    others = leaks(recording)
    if len(others) < 2:
        raise AudioError(f"{recording.name}: expected a channel for each speaker, got 1 channel")
    recordings = recording.channels(others)
    channels = []
    for index, one in enumerate(recordings):
        own = TranscriptionState(language=state.language)
        channels.append(_Channel(letter(index), begin(one, own), own))
    try:
        for channel in channels:
            channel.waiting = yield from next_segment(channel.segments)
        while waiting := [channel for channel in channels if channel.waiting is not None]:
            channel = min(waiting, key=_start)
            _note(state, channels)
            segment = channel.waiting
            assert segment is not None
            yield _with_speaker(segment, channel.speaker, state)
            channel.waiting = yield from next_segment(channel.segments)
        _note(state, channels)
    finally:
        for channel in channels:
            channel.segments.close()
        for one in recordings:
            one.close()


def _start(channel: _Channel) -> float:
    assert channel.waiting is not None
    return channel.waiting.start


def _note(state: TranscriptionState, channels: Sequence[_Channel]) -> None:
    """What is known of the recording from its channels."""
    state.position = min(channel.state.position for channel in channels)
    state.second_s = sum(channel.state.second_s for channel in channels)
    state.unread = sorted(span for channel in channels for span in channel.state.unread)
    durations = [channel.state.duration for channel in channels]
    state.duration = max((one for one in durations if one is not None), default=None)
    first = next((one.state for one in channels if one.state.language is not None), None)
    if first is not None:
        state.language = first.language
        state.detection = state.detection or first.detection


def _with_speaker(segment: Segment, speaker: str, state: TranscriptionState) -> Segment:
    number = state.n_segments
    state.n_segments += 1
    state.turns = (*state.turns, Turn(segment.start, segment.end, speaker))
    words = segment.words and tuple(replace(word, speaker=speaker) for word in segment.words)
    return replace(segment, id=number, speaker=speaker, words=words)
