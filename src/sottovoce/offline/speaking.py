"""Speakers in a transcription: who speaks when is found first, then segments get speakers as they come."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from sottovoce.audio.recording import Recording
from sottovoce.offline.engine import Progress
from sottovoce.offline.work import Listen, Steps
from sottovoce.speakers.base import Diarizer
from sottovoce.speakers.diarize import Heard, OwnDiarizer
from sottovoce.speakers.words import SpeakerLabels
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Segment, Turn, Word

Result = TypeVar("Result")


def with_speakers(steps: Steps, diarizer: Diarizer, recording: Recording, progress: Progress) -> Steps:
    """The steps of a transcription with segments cut where the speaker changes; their ids count on."""
    try:
        progress.turns = tuple((yield from _listening(diarizer, recording)))
        labels = SpeakerLabels(progress.turns)
        n_segments = 0
        for step in steps:
            if not isinstance(step, Segment):
                yield step
                continue
            for part in labels.split(step):
                yield replace(part, id=n_segments)
                n_segments += 1
    finally:
        steps.close()


def _listening(diarizer: Diarizer, recording: Recording) -> Generator[Listen, None, list[Turn]]:
    """Our own networks hear a few seconds at a time, so that others have their turn in between."""
    if not isinstance(diarizer, OwnDiarizer):
        found: list[Turn] = []
        yield Listen(_filling(found, partial(diarizer.turns, recording)))
        return found
    heard: list[Heard] = []
    with recording.open() as reader:
        for windows in diarizer.batches(reader):
            yield Listen(_filling(heard, partial(diarizer.hear, windows)))
    return diarizer.told_apart(heard)


def _filling(found: list[Result], find: Callable[[], list[Result]]) -> Callable[[], None]:
    return lambda: found.extend(find())


def by_turn_tokens(steps: Steps, tokenizer: Tokenizer, progress: Progress) -> Steps:
    """The steps of a transcription with segments cut where the model wrote that somebody else speaks.

    It does not say who: turns are counted ("turn 1", "turn 2", …).
    Source: tinydiarize (A. Rana, 2023), and whisper.cpp's `tdrz_enable`.
    """
    n_turns = 1
    n_segments = 0
    try:
        for step in steps:
            if not isinstance(step, Segment):
                yield step
                continue
            groups = turn_groups(step, tokenizer)
            for index, words in enumerate(groups):
                n_turns += index > 0
                if not words:
                    continue
                spoken = tuple(replace(word, speaker=f"turn {n_turns}") for word in words)
                part = replace(part_of(step, spoken, groups, index), id=n_segments)
                n_segments += 1
                progress.turns = (*progress.turns, Turn(part.start, part.end, f"turn {n_turns}"))
                yield part
    finally:
        steps.close()


def turn_groups(segment: Segment, tokenizer: Tokenizer) -> list[list[Word]]:
    """The words of a segment between tokens of turns; empty where one begins or ends it."""
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


def part_of(
    segment: Segment, words: tuple[Word, ...], groups: Sequence[Sequence[Word]], index: int
) -> Segment:
    """A segment with only these words, which are one group of its own."""
    return replace(
        segment,
        start=words[0].start if any(groups[:index]) else segment.start,
        end=words[-1].end if any(groups[index + 1 :]) else segment.end,
        text="".join(word.word for word in words),
        tokens=tuple(token.id for word in words for token in word.tokens),
        words=words,
        speaker=words[0].speaker,
    )
