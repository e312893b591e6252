"""Speakers of a transcription, by diarization before it, or one per channel.

Channels are transcribed separately, each without speech that leaks in from another; the one furthest behind
goes on first. A resumed transcription finds the turns again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from sottovoce.audio.io import Recording
from sottovoce.errors import AudioError
from sottovoce.offline.resume import ChannelPoint, ChannelsPlace, ResumePoint, TranscriptionState, state_at
from sottovoce.offline.transcriber import Segments
from sottovoce.options.transcribe import Diarizer
from sottovoce.runtime.calls import RunOnHost, Runtime
from sottovoce.speakers.diarize import ClusteringDiarizer, DiarizedWindow, leaks
from sottovoce.speakers.labels import SpeakerLabels, letter, part_of, spoken_by
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Segment, Turn, Word


def with_speakers(
    runtime: Runtime,
    segments: Iterator[Segment],
    diarizer: Diarizer,
    recording: Recording,
    state: TranscriptionState,
) -> Segments:
    """Yield segments, split where the speaker changes."""
    state.turns = tuple(_turns(runtime, diarizer, recording))
    labels = SpeakerLabels(state.turns, state.speaker)
    for part in (part for segment in segments for part in labels.split(segment)):
        state.speaker = part.speaker
        yield part


def _turns(runtime: Runtime, diarizer: Diarizer, recording: Recording) -> list[Turn]:
    if not isinstance(diarizer, ClusteringDiarizer):
        return runtime.run(RunOnHost(partial(diarizer.turns, recording)))
    diarized: list[DiarizedWindow] = []
    with recording.open() as reader:
        for windows in diarizer.batches(reader):
            diarized += runtime.run(RunOnHost(partial(diarizer.diarize_windows, windows)))
    return diarizer.cluster(diarized)


def by_turn_tokens(segments: Iterator[Segment], tokenizer: Tokenizer, state: TranscriptionState) -> Segments:
    """Yield segments, split where the model wrote a token for a change of speaker: "turn 1", "turn 2", …

    Source: tinydiarize (A. Rana, 2023).
    """
    for segment in segments:
        groups = turn_groups(segment, tokenizer)
        for index, words in enumerate(groups):
            state.n_changes += index > 0
            if not words:
                continue
            spoken = tuple(replace(word, speaker=f"turn {state.n_changes + 1}") for word in words)
            yield part_of(segment, spoken, groups, index)


def turn_groups(segment: Segment, tokenizer: Tokenizer) -> list[list[Word]]:
    groups: list[list[Word]] = [[]]
    words = list(segment.words or ())
    n_text, n_placed = 0, 0
    for token in segment.tokens:
        if token < tokenizer.eot:
            n_text += 1
        elif token == tokenizer.sot_lm:
            while words and n_placed < n_text:
                word = words.pop(0)
                n_placed += len(word.tokens)
                groups[-1].append(word)
            groups.append([])
    groups[-1] += words
    return groups


def channels_apart(
    recording: Recording,
    state: TranscriptionState,
    begin: Callable[[Recording, TranscriptionState, ResumePoint | None], Segments],
    language: str | None,
    resume: ResumePoint | None = None,
) -> Segments:
    """Yield the segments of all channels of a recording, from `resume` on if given.

    begin: transcribes one channel. language: None detects that of each.

    Raises:
        AudioError: the recording has one channel.
    """
    others = leaks(recording)
    if len(others) < 2:
        raise AudioError(f"{recording.name}: expected a channel for each speaker, got 1 channel")
    recordings = recording.channels(others)
    places: Sequence[ChannelPoint] = [ChannelPoint(None, 0)] * len(recordings)
    if resume is not None and isinstance(resume.place, ChannelsPlace):
        places = resume.place.channels
    channels = [
        _Channel(letter(index), each, place, begin, language)
        for index, (each, place) in enumerate(zip(recordings, places, strict=True))
    ]
    labelled = (channel.labelled() for channel in channels)
    try:
        for segment in heapq.merge(*labelled, key=lambda segment: segment.start):
            _note_channels(state, channels)
            yield segment
        _note_channels(state, channels)
    finally:
        for channel in channels:
            channel.segments.close()
        for each in recordings:
            each.close()


class _Channel:
    def __init__(
        self,
        speaker: str,
        recording: Recording,
        place: ChannelPoint,
        begin: Callable[[Recording, TranscriptionState, ResumePoint | None], Segments],
        language: str | None,
    ) -> None:
        self.place = place
        self.state = state_at(place.point, language)
        self.segments = begin(recording, self.state, place.point)
        self._speaker = speaker

    def labelled(self) -> Iterator[Segment]:
        for segment in islice(self.segments, self.place.n_since, None):
            point = self.state.resume_point
            if point is not self.place.point:
                self.place = ChannelPoint(point, 0)
            yield spoken_by(segment, self._speaker)
            self.place = ChannelPoint(point, self.place.n_since + 1)


def _note_channels(state: TranscriptionState, separate: Sequence[_Channel]) -> None:
    channels = [each.state for each in separate]
    state.position = min(each.position for each in channels)
    state.second_s = sum(each.second_s for each in channels)
    state.skipped = tuple(sorted(span for each in channels for span in each.skipped))
    state.duration = max((each.duration for each in channels if each.duration is not None), default=None)
    first = next((each for each in channels if each.language is not None), None)
    if first is not None:
        state.language = first.language
        state.detection = state.detection or first.detection
    places = tuple(each.place for each in separate)
    if any(each.point is not None for each in places):
        state.resume_point = ResumePoint(state.to_resume(), (), False, None, ChannelsPlace(places))
