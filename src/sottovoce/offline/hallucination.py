"""Text where nobody spoke: improbable words of implausible lengths, with silence around them.

Source: openai-whisper 20250625, transcribe.py (`hallucination_silence_threshold`); faster-whisper 1.2.1
has the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sottovoce.offline.cut import MEL_FRAMES_PER_SECOND, WindowCut
from sottovoce.options.recording_defaults import APPENDED, PREPENDED
from sottovoce.types import Segment, Word

IMPROBABLE = 0.15
SHORTEST_S, LONGEST_S = 0.133, 2.0
_N_WORDS = 8
"""Words at the beginning of a segment that are looked at."""
_EDGE_S = 2.0
"""This close to the ends of a window a segment counts as having silence beside it."""


def anomaly_score(word: Word) -> float:
    """0 for an ordinary word; 1 for an improbable one; more the shorter or longer it is."""
    duration = word.end - word.start
    score = 1.0 if word.probability < IMPROBABLE else 0.0
    if duration < SHORTEST_S:
        score += (SHORTEST_S - duration) * 15
    if duration > LONGEST_S:
        score += duration - LONGEST_S
    return score


def is_anomaly(words: Sequence[Word]) -> bool:
    """Tell whether a segment of these words is probably made up; False without words."""
    if not words:
        return False
    spoken = [word for word in words if word.word not in PREPENDED + APPENDED][:_N_WORDS]
    score = sum(map(anomaly_score, spoken))
    return score >= 3 or score + 0.01 >= len(spoken)


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """Seconds of the recording: a window of audio, where a full window would end, speech before it.

    end: of the audio in the window. full_end: start plus the model's 30 s.
    """

    start: float
    end: float
    full_end: float
    last_speech: float


def skip_hallucinations(
    cut: WindowCut, span: WindowSpan, threshold: float, *, end_by: Callable[[float], int | None]
) -> WindowCut:
    """Drop improbable segments that have more than `threshold` seconds of silence around them.

    cut: with words. When the first of them is improbable after a long silence, nothing is kept and the
    window begins again after that silence. end_by: the frame (10 ms) at which the recording ends, if it does
    by a time in seconds.
    """
    spoken = [segment for segment in cut.segments if segment.words]
    if spoken and is_anomaly(spoken[0].words or ()):
        gap = spoken[0].start - span.start
        if gap > threshold:
            start = round(span.start * MEL_FRAMES_PER_SECOND)
            return WindowCut((), start + round(gap * MEL_FRAMES_PER_SECOND), restarts=True)
    last_end = span.last_speech
    for index, segment in enumerate(cut.segments):
        if not segment.words:
            continue
        following = next((later for later in cut.segments[index + 1 :] if later.words), None)
        if is_anomaly(segment.words) and _is_isolated(segment, following, last_end, span, threshold):
            seek = round(max(span.start + 1, segment.start) * MEL_FRAMES_PER_SECOND)
            last_frame = end_by(segment.end + threshold)  # then nothing but silence is left
            return WindowCut(cut.segments[:index], seek if last_frame is None else last_frame)
        last_end = segment.end
    return cut


def _is_isolated(
    segment: Segment, following: Segment | None, last_end: float, span: WindowSpan, threshold: float
) -> bool:
    """Whether silence, the window's edge or another improbable segment lies on both sides."""
    silence_before = (
        segment.start - last_end > threshold
        or segment.start < threshold
        or segment.start - span.start < _EDGE_S
    )
    next_start = following.words[0].start if following and following.words else span.end
    silence_after = (
        next_start - segment.end > threshold
        or (following is not None and is_anomaly(following.words or ()))
        or span.full_end - segment.end < _EDGE_S
    )
    return silence_before and silence_after
