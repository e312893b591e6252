"""Join segments to sentences, which are translated together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from sottovoce.text.punctuation import SENTENCE_ENDS
from sottovoce.types import Segment

CLOSING = "\"'”’»)]}」』"
LONGEST_S, LONGEST_PAUSE_S, MOST_LETTERS = 12.0, 1.0, 300


def sentences(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Join segments that end within a sentence with those after them; yields them numbered anew.

    Not over a pause, a change of speaker or language, or beyond 12 s: a subtitle has to be read, too.
    """
    waiting: Segment | None = None
    number = 0
    for segment in segments:
        if waiting is not None and _goes_on(waiting, segment):
            waiting = _joined(waiting, segment)
            continue
        if waiting is not None:
            yield replace(waiting, id=number)
            number += 1
        waiting = segment
    if waiting is not None:
        yield replace(waiting, id=number)


def with_translation(segment: Segment, translation: str | None) -> Segment:
    """Add its translation to a sentence, unless that is empty or the same text once more."""
    text = (translation or "").strip()
    is_same = text.split() == segment.text.split()
    return replace(segment, translation=None if is_same or not text else text)


def _goes_on(first: Segment, second: Segment) -> bool:
    text = first.text.rstrip().rstrip(CLOSING)
    return (
        not text.endswith(SENTENCE_ENDS)
        and first.language == second.language
        and first.speaker == second.speaker
        and second.start - first.end <= LONGEST_PAUSE_S
        and second.end - first.start <= LONGEST_S
        and len(first.text) + len(second.text) <= MOST_LETTERS
    )


def _joined(first: Segment, second: Segment) -> Segment:
    words = None if first.words is None or second.words is None else (*first.words, *second.words)
    n_first, n_second = max(1, len(first.tokens)), max(1, len(second.tokens))
    total = n_first + n_second
    return replace(
        first,
        end=max(first.end, second.end),
        text=first.text + second.text,
        tokens=(*first.tokens, *second.tokens),
        avg_logprob=(first.avg_logprob * n_first + second.avg_logprob * n_second) / total,
        temperature=max(first.temperature, second.temperature),
        compression_ratio=max(first.compression_ratio, second.compression_ratio),
        no_speech_prob=max(first.no_speech_prob, second.no_speech_prob),
        words=words,
    )
