"""Where words begin and end, after they were aligned (`decoding.alignment`).

Punctuation joins its words, and implausibly long words are cut. Source of the rules: openai-whisper 20250625,
timing.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from sottovoce.decoding.alignment import TimedWord
from sottovoce.types import Segment, Word

SENTENCE_ENDS = ".。!！?？"
LONGEST_MEDIAN_S = 0.7
"""Of the usual word: slower speech does not make longer pauses part of words."""


def usual_duration(words: Sequence[TimedWord]) -> float:
    """Median duration in seconds of the words that have one, at most 0.7; 0 for none."""
    durations = [word.duration for word in words if word.duration != 0.0]
    return min(LONGEST_MEDIAN_S, statistics.median(durations)) if durations else 0.0


def cut_at_sentence_ends(words: Sequence[TimedWord], longest: float) -> list[TimedWord]:
    """Shorten sentence ends longer than `longest` seconds, and the words that follow sentence ends.

    The pause between two sentences belongs to neither.
    """
    cut = list(words)
    if longest == 0.0:
        return cut
    for index in range(1, len(cut)):
        word, before = cut[index], cut[index - 1]
        if word.duration <= longest:
            continue
        if word.word in SENTENCE_ENDS:
            cut[index] = replace(word, end=word.start + longest)
        elif before.word in SENTENCE_ENDS:
            cut[index] = replace(word, start=word.end - longest)
    return cut


def interpolate_improbable(words: Sequence[TimedWord], threshold: float) -> list[TimedWord]:
    """Let words less probable than `threshold` begin where the words around them say, by letters.

    words: of one segment, each beginning where the last one ends. The first keeps its start and the last its
    end; signs keep theirs, which tell of pauses.
    Source: the rule of whisper.cpp's `thold_pt`, which asks the probability of a timestamp.
    """
    anchors = [i for i, word in enumerate(words) if i == 0 or _is_anchor(word, threshold)] + [len(words)]
    starts = [word.start for word in words] + [word.end for word in words[-1:]]
    for left, right in pairwise(anchors):
        letters = list(accumulate(len(word.word.strip()) for word in words[left:right]))
        span = starts[right] - starts[left]
        for i, before in enumerate(letters[:-1], start=left + 1):
            starts[i] = starts[left] + span * before / letters[-1]
    return [replace(word, start=starts[i], end=starts[i + 1]) for i, word in enumerate(words)]


def _is_anchor(word: TimedWord, threshold: float) -> bool:
    return word.probability >= threshold or not any(map(str.isalnum, word.word))


def merge_punctuation(words: Sequence[TimedWord], prepended: str, appended: str) -> list[TimedWord]:
    """Join opening signs with the word after them and closing signs with the word before.

    A joined word keeps its own times and probability.
    """
    return _append_signs(_prepend_signs(words, prepended), appended)


def _prepend_signs(words: Sequence[TimedWord], signs: str) -> list[TimedWord]:
    joined: list[TimedWord] = []  # last word first
    for word in reversed(words):
        if joined and word.word.startswith(" ") and word.word.strip() in signs:
            joined[-1] = _joined(joined[-1], word, joined[-1])
        else:
            joined.append(word)
    return joined[::-1]


def _append_signs(words: Sequence[TimedWord], signs: str) -> list[TimedWord]:
    joined: list[TimedWord] = []
    for word in words:
        if joined and not joined[-1].word.endswith(" ") and word.word in signs:
            joined[-1] = _joined(joined[-1], joined[-1], word)
        else:
            joined.append(word)
    return joined


def _joined(anchor: TimedWord, first: TimedWord, second: TimedWord) -> TimedWord:
    return replace(
        anchor,
        word=first.word + second.word,
        tokens=first.tokens + second.tokens,
        pieces=first.pieces + second.pieces,
    )


@dataclass(frozen=True, slots=True)
class WordRules:
    """What joins words. prepended, appended: signs that belong to the next or the last word.

    threshold: probability below which words take their times from those around them; 0: none does.
    """

    prepended: str
    appended: str
    threshold: float = 0.0


def place_words(
    segments: Sequence[Segment],
    words: Sequence[TimedWord],
    rules: WordRules,
    *,
    eot: int,
    window_start: float = 0.0,
    last_speech: float = 0.0,
) -> tuple[Segment, ...]:
    """Return the segments of a window with their words, and the times that follow from these.


    words: of all segments, in order. eot: first id that is no text. window_start, last_speech:
    seconds of the recording where the window begins, and where speech ended before it.
    """
    if rules.threshold:
        of_segments = _by_segment(segments, words, eot)
        words = [word for own in of_segments for word in interpolate_improbable(own, rules.threshold)]
    usual = usual_duration(words)
    merged = merge_punctuation(cut_at_sentence_ends(words, 2 * usual), rules.prepended, rules.appended)
    placed = []
    for segment, of_segment in zip(segments, _by_segment(segments, merged, eot), strict=True):
        own = [_placed(word, window_start) for word in of_segment]
        if own:
            _cut_after_pause(own, usual, last_speech)
            segment = _agree(segment, own, usual)
            last_speech = segment.end
        placed.append(replace(segment, words=tuple(own)))
    return tuple(placed)


def _by_segment(segments: Sequence[Segment], words: Sequence[TimedWord], eot: int) -> list[list[TimedWord]]:
    """The words of each segment: as many as have its text tokens."""
    waiting = iter(words)
    found: list[list[TimedWord]] = []
    for segment in segments:
        n_missing = sum(token < eot for token in segment.tokens)
        own: list[TimedWord] = []
        while n_missing > 0 and (word := next(waiting, None)) is not None:
            n_missing -= len(word.tokens)
            own.append(word)
        found.append(own)
    return found


def _placed(word: TimedWord, window_start: float) -> Word:
    return Word(
        word=word.word,
        start=round(window_start + word.start, 2),
        end=round(window_start + word.end, 2),
        probability=word.probability,
        tokens=tuple(
            replace(piece, start=window_start + piece.start, end=window_start + piece.end)
            for piece in word.pieces
        ),
    )


def _cut_after_pause(words: list[Word], usual: float, last_speech: float) -> None:
    """Shorten the first two words after a pause of four usual words when they are too long."""
    longest = 2 * usual
    first, second = words[0], words[1] if len(words) > 1 else None
    if first.end - last_speech <= 4 * usual:
        return
    long_pair = second is not None and second.end - first.start > 2 * longest
    if first.end - first.start <= longest and not long_pair:
        return
    if second is not None and second.end - second.start > longest:
        boundary = max(second.end / 2, second.end - longest)
        first = replace(first, end=boundary)
        words[1] = replace(second, start=boundary)
    words[0] = replace(first, start=max(0.0, first.end - longest))


def _agree(segment: Segment, words: list[Word], usual: float) -> Segment:
    """Take the segment's times from its words, unless the outer words reach far beyond the segment."""
    start, end = segment.start, segment.end
    first = words[0]
    if start < first.end and start - 0.5 > first.start:
        words[0] = replace(first, start=max(0.0, min(first.end - usual, start)))
    else:
        start = first.start
    last = words[-1]
    if end > last.start and end + 0.5 < last.end:
        words[-1] = replace(last, end=max(last.start + usual, end))
    else:
        end = last.end
    return replace(segment, start=start, end=end)
