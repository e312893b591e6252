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
from sottovoce.offline.engine import Progress
from sottovoce.offline.work import Steps
from sottovoce.speakers.channels import leaks
from sottovoce.speakers.names import letter
from sottovoce.types import Segment, Turn


@dataclass(slots=True)
class _Channel:
    """A transcription of one channel; waiting: its next segment, None when it has ended."""

    speaker: str
    steps: Steps
    progress: Progress
    waiting: Segment | None = None


def channels_apart(
    recording: Recording, progress: Progress, begin: Callable[[Recording, Progress], Steps]
) -> Steps:
    """Steps over all channels of a recording; begin: the steps of a transcription of one.

    Raises: AudioError for a recording of one channel.
    """
    others = leaks(recording)
    if len(others) < 2:
        raise AudioError(f"{recording.name}: expected a channel for each speaker, got 1 channel")
    recordings = recording.channels(others)
    channels = []
    for index, one in enumerate(recordings):
        own = Progress(language=progress.language)
        channels.append(_Channel(letter(index), begin(one, own), own))
    try:
        for channel in channels:
            yield from _advance(channel)
        while waiting := [channel for channel in channels if channel.waiting is not None]:
            channel = min(waiting, key=_start)
            _note(progress, channels)
            segment = channel.waiting
            assert segment is not None
            yield _said_by(segment, channel.speaker, progress)
            yield from _advance(channel)
        _note(progress, channels)
    finally:
        for channel in channels:
            channel.steps.close()
        for one in recordings:
            one.close()


def _start(channel: _Channel) -> float:
    assert channel.waiting is not None
    return channel.waiting.start


def _advance(channel: _Channel) -> Steps:
    """Work until the next segment of a channel waits, or its end."""
    channel.waiting = None
    for step in channel.steps:
        if isinstance(step, Segment):
            channel.waiting = step
            return
        yield step


def _note(progress: Progress, channels: Sequence[_Channel]) -> None:
    """What is known of the recording from its channels."""
    progress.position = min(channel.progress.position for channel in channels)
    durations = [channel.progress.duration for channel in channels]
    progress.duration = max((one for one in durations if one is not None), default=None)
    first = next((one.progress for one in channels if one.progress.language is not None), None)
    if first is not None:
        progress.language = first.language
        progress.detection = progress.detection or first.detection


def _said_by(segment: Segment, speaker: str, progress: Progress) -> Segment:
    number = progress.n_segments
    progress.n_segments += 1
    progress.turns = (*progress.turns, Turn(segment.start, segment.end, speaker))
    words = segment.words and tuple(replace(word, speaker=speaker) for word in segment.words)
    return replace(segment, id=number, speaker=speaker, words=words)
