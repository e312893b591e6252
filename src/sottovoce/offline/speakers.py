"""Speakers of a transcription, by diarization before it, or one per channel.

Channels are transcribed separately, each without speech that leaks in from another; the one furthest behind
goes on first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from sottovoce.audio.recording import Recording
from sottovoce.errors import AudioError
from sottovoce.offline.regroup import part_of
from sottovoce.offline.resume import TranscriptionState
from sottovoce.offline.transcriber import Segments, numbered
from sottovoce.options.transcribe import Diarizer
from sottovoce.runtime.calls import Runtime
from sottovoce.speakers.channel_diarizer import leaks
from sottovoce.speakers.diarize import ClusteringDiarizer, DiarizedWindow
from sottovoce.speakers.labels import SpeakerLabels, letter
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Segment, Turn, Word


def with_speakers(
    runtime: Runtime,
    segments: Iterator[Segment],
    diarizer: Diarizer,
    recording: Recording,
    state: TranscriptionState,
) -> Segments:
    """Yield segments, split and renumbered where the speaker changes."""
    state.turns = tuple(_turns(runtime, diarizer, recording))
    labels = SpeakerLabels(state.turns)
    for number, part in enumerate(part for segment in segments for part in labels.split(segment)):
        yield replace(part, id=number)


def _turns(runtime: Runtime, diarizer: Diarizer, recording: Recording) -> list[Turn]:
    if not isinstance(diarizer, ClusteringDiarizer):
        return runtime.run_on_host(partial(diarizer.turns, recording))
    diarized: list[DiarizedWindow] = []
    with recording.open() as reader:
        for windows in diarizer.batches(reader):
            diarized += runtime.run_on_host(partial(diarizer.diarize_windows, windows))
    return diarizer.cluster(diarized)


def by_turn_tokens(segments: Iterator[Segment], tokenizer: Tokenizer, state: TranscriptionState) -> Segments:
    """Yield segments, split where the model wrote a token for a change of speaker: "turn 1", "turn 2", …

    Source: tinydiarize (A. Rana, 2023).
    """
    n_turns = 1
    n_segments = 0
    for segment in segments:
        groups = turn_groups(segment, tokenizer)
        for index, words in enumerate(groups):
            n_turns += index > 0
            if not words:
                continue
            spoken = tuple(replace(word, speaker=f"turn {n_turns}") for word in words)
            part = replace(part_of(segment, spoken, groups, index), id=n_segments)
            n_segments += 1
            state.turns = (*state.turns, Turn(part.start, part.end, f"turn {n_turns}"))
            yield part


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
    begin: Callable[[Recording, TranscriptionState], Segments],
) -> Segments:
    """Yield the segments of all channels of a recording; begin: transcribes one channel.

    Raises:
        AudioError: the recording has one channel.
    """
    others = leaks(recording)
    if len(others) < 2:
        raise AudioError(f"{recording.name}: expected a channel for each speaker, got 1 channel")
    recordings = recording.channels(others)
    states = [TranscriptionState(language=state.language) for _ in recordings]
    channels = [begin(one, own) for one, own in zip(recordings, states, strict=True)]
    spoken = [_labelled(segments, letter(index)) for index, segments in enumerate(channels)]
    try:
        for segment in numbered(heapq.merge(*spoken, key=lambda segment: segment.start), state):
            _note_channels(state, states)
            state.turns = (*state.turns, Turn(segment.start, segment.end, segment.speaker or ""))
            yield segment
        _note_channels(state, states)
    finally:
        for segments in channels:
            segments.close()
        for one in recordings:
            one.close()


def _labelled(segments: Iterator[Segment], speaker: str) -> Iterator[Segment]:
    for segment in segments:
        words = segment.words and tuple(replace(word, speaker=speaker) for word in segment.words)
        yield replace(segment, speaker=speaker, words=words)


def _note_channels(state: TranscriptionState, channels: Sequence[TranscriptionState]) -> None:
    state.position = min(one.position for one in channels)
    state.second_s = sum(one.second_s for one in channels)
    state.unread = tuple(sorted(span for one in channels for span in one.unread))
    state.duration = max((one.duration for one in channels if one.duration is not None), default=None)
    first = next((one for one in channels if one.language is not None), None)
    if first is not None:
        state.language = first.language
        state.detection = state.detection or first.detection
