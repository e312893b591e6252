"""Speakers in a transcription: who speaks when is found first, then segments get speakers as they come."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from sottovoce.audio.recording import Recording
from sottovoce.engine.calls import CallGenerator, HostCall
from sottovoce.offline.parts import part_of
from sottovoce.offline.segment_generator import SegmentGenerator, next_segment
from sottovoce.offline.transcriber import TranscriptionState
from sottovoce.options.speakers import Diarizer
from sottovoce.speakers.diarize import ClusteringDiarizer, DiarizedWindow
from sottovoce.speakers.labels import SpeakerLabels, replace_letter
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Segment, Turn, Word


def with_speakers(
    segments: SegmentGenerator, diarizer: Diarizer, recording: Recording, state: TranscriptionState
) -> SegmentGenerator:
    """Yield segments cut where the speaker changes; their ids count on."""
    with closing(segments):
        state.turns = tuple((yield from _turns(diarizer, recording)))
        labels = SpeakerLabels(state.turns)
        n_segments = 0
        while (segment := (yield from next_segment(segments))) is not None:
            for part in labels.split(segment):
                yield replace(part, id=n_segments)
                n_segments += 1


def _turns(diarizer: Diarizer, recording: Recording) -> CallGenerator[list[Turn]]:
    """Our own networks hear a few seconds in a call, so that others have their turn in between."""
    if not isinstance(diarizer, ClusteringDiarizer):
        turns: list[Turn] = yield HostCall(partial(diarizer.turns, recording))
        return turns
    diarized: list[DiarizedWindow] = []
    with recording.open() as reader:
        for windows in diarizer.batches(reader):
            diarized += yield HostCall(partial(diarizer.diarize_windows, windows))
    return diarizer.cluster(diarized)


def with_names(
    segments: SegmentGenerator, names: Sequence[str], own: TranscriptionState, state: TranscriptionState
) -> SegmentGenerator:
    """Yield segments with names of people for the letters of speakers.

    own: how far they are; state: the same with names, filled in here.
    """
    note = partial(_note, own, state, names)
    with closing(segments):
        while (segment := (yield from next_segment(segments, note))) is not None:
            yield _named(segment, names)


def _note(own: TranscriptionState, state: TranscriptionState, names: Sequence[str]) -> None:
    state.take(own)
    state.duration = own.duration
    state.turns = tuple(replace(one, speaker=replace_letter(one.speaker, names) or "") for one in own.turns)


def _named(segment: Segment, names: Sequence[str]) -> Segment:
    words = segment.words and tuple(
        replace(word, speaker=replace_letter(word.speaker, names)) for word in segment.words
    )
    return replace(segment, speaker=replace_letter(segment.speaker, names), words=words)


def by_turn_tokens(
    segments: SegmentGenerator, tokenizer: Tokenizer, state: TranscriptionState
) -> SegmentGenerator:
    """Yield segments cut where the model wrote that somebody else speaks.

    It does not say who: turns are counted ("turn 1", "turn 2", …).
    Source: tinydiarize (A. Rana, 2023), and whisper.cpp's `tdrz_enable`.
    """
    n_turns = 1
    n_segments = 0
    with closing(segments):
        while (segment := (yield from next_segment(segments))) is not None:
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
    """Group the words of a segment between tokens of turns; empty where one begins or ends it."""
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
