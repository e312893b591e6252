"""Speakers of a transcription, by diarization before it, or one per channel.

Channels are transcribed separately, each without speech that leaks in from another. The channel that is
furthest behind goes on first, so that one segment of each waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sottovoce.audio.recording import Recording
from sottovoce.errors import AudioError
from sottovoce.offline.regroup import part_of
from sottovoce.offline.resume import TranscriptionState
from sottovoce.offline.transcriber import Segments
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
    n_segments = 0
    for segment in segments:
        for part in labels.split(segment):
            yield replace(part, id=n_segments)
            n_segments += 1


def _turns(runtime: Runtime, diarizer: Diarizer, recording: Recording) -> list[Turn]:
    if not isinstance(diarizer, ClusteringDiarizer):
        return runtime.run_on_host(partial(diarizer.turns, recording))
    diarized: list[DiarizedWindow] = []
    with recording.open() as reader:
        for windows in diarizer.batches(reader):
            diarized += runtime.run_on_host(partial(diarizer.diarize_windows, windows))
    return diarizer.cluster(diarized)


def by_turn_tokens(segments: Iterator[Segment], tokenizer: Tokenizer, state: TranscriptionState) -> Segments:
    """Yield segments, split where the model wrote a token for a change of speaker.

    The tokens do not identify speakers: turns are numbered ("turn 1", "turn 2", …).

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


@dataclass(slots=True)
class _Channel:
    speaker: str
    segments: Segments
    state: TranscriptionState
    waiting: Segment | None = None


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
    channels = []
    for index, one in enumerate(recordings):
        own = TranscriptionState(language=state.language)
        channels.append(_Channel(letter(index), begin(one, own), own))
    try:
        for channel in channels:
            channel.waiting = next(channel.segments, None)
        while waiting := [channel for channel in channels if channel.waiting is not None]:
            channel = min(waiting, key=_start)
            _note_channels(state, channels)
            segment = channel.waiting
            assert segment is not None
            yield _with_speaker(segment, channel.speaker, state)
            channel.waiting = next(channel.segments, None)
        _note_channels(state, channels)
    finally:
        for channel in channels:
            channel.segments.close()
        for one in recordings:
            one.close()


def _start(channel: _Channel) -> float:
    assert channel.waiting is not None
    return channel.waiting.start


def _note_channels(state: TranscriptionState, channels: Sequence[_Channel]) -> None:
    state.position = min(channel.state.position for channel in channels)
    state.second_s = sum(channel.state.second_s for channel in channels)
    state.unread = tuple(sorted(span for channel in channels for span in channel.state.unread))
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
