"""A window's transcript on its way to segments: cut at the timestamps that the model wrote.

Source of the rules: openai-whisper 20250625, transcribe.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from sottovoce.text.tokenizer import SECONDS_PER_TIMESTAMP, Tokenizer
from sottovoce.types import Word

FRAMES_PER_TIMESTAMP = 2
"""Log-mel frames (10 ms) in a timestamp's step (20 ms)."""
MEL_FRAMES_PER_SECOND = 100


@dataclass(slots=True)
class Draft:
    """A segment in the making: seconds, tokens with timestamps, words once they are aligned.

    Its times may still change when words are known.
    """

    start: float
    end: float
    tokens: tuple[int, ...]
    words: list[Word] = field(default_factory=list)


class WindowCut(NamedTuple):
    """How a window's tokens fall into segments.

    n_frames: log-mel frames that are done with; the next window begins after them.
    ends_closed: the last timestamp stands alone, so that nothing is said after it in this window.
    """

    drafts: list[Draft]
    n_frames: int
    ends_closed: bool


def end_of_speech(drafts: Sequence[Draft]) -> float | None:
    """End of the last word, of the last segment where no words are known; None without segments."""
    for draft in reversed(drafts):
        if draft.words:
            return draft.words[-1].end
    return drafts[-1].end if drafts else None


def cut_window(
    tokens: Sequence[int], tokenizer: Tokenizer, *, start_s: float, n_frames: int, keep_open: bool = False
) -> WindowCut:
    """Cut at pairs of timestamps; without a pair the window is one segment.

    start_s: where the window begins in the recording. n_frames: log-mel frames of audio in it.
    keep_open: also keep what follows the last pair, up to the end of the audio. Otherwise it is left to
        the next window, which begins there.
    """
    is_time = [tokenizer.is_timestamp(token) for token in tokens]
    ends_closed = is_time[-2:] == [False, True]
    cuts = [at for at in range(1, len(tokens)) if is_time[at - 1] and is_time[at]]
    if not cuts:
        return WindowCut([_whole_window(tokens, tokenizer, start_s, n_frames)], n_frames, ends_closed)
    bounds = [0, *cuts, len(tokens)] if ends_closed else [0, *cuts]
    drafts = [
        Draft(
            start=round(start_s + _seconds(tokens[first], tokenizer), 3),
            end=round(start_s + _seconds(tokens[last - 1], tokenizer), 3),
            tokens=tuple(tokens[first:last]),
        )
        for first, last in pairwise(bounds)
    ]
    if ends_closed:
        return WindowCut(drafts, n_frames, ends_closed)
    rest = tuple(tokens[bounds[-1] :])
    if keep_open and rest:
        start = round(start_s + _seconds(rest[0], tokenizer), 3)
        end = max(start, round(start_s + n_frames / MEL_FRAMES_PER_SECOND, 3))
        return WindowCut([*drafts, Draft(start, end, rest)], n_frames, ends_closed)
    done = (tokens[bounds[-1] - 1] - tokenizer.timestamp_begin) * FRAMES_PER_TIMESTAMP
    return WindowCut(drafts, done, ends_closed)


def _whole_window(tokens: Sequence[int], tokenizer: Tokenizer, start_s: float, n_frames: int) -> Draft:
    """One segment up to the last timestamp, where there is one after 0, else to the window's end."""
    times = [token for token in tokens if tokenizer.is_timestamp(token)]
    length_s = n_frames / MEL_FRAMES_PER_SECOND
    if times and times[-1] != tokenizer.timestamp_begin:
        length_s = _seconds(times[-1], tokenizer)
    return Draft(round(start_s, 3), round(start_s + length_s, 3), tuple(tokens))


def _seconds(token: int, tokenizer: Tokenizer) -> float:
    """Seconds of a timestamp; a window that begins with text (a prefix) begins at 0."""
    return max(0, token - tokenizer.timestamp_begin) * SECONDS_PER_TIMESTAMP
