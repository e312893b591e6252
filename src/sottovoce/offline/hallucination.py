"""Invented text: improbable words of implausible lengths with silence around them, and text where no
voice is.

Source of the first rule: openai-whisper 20250625, transcribe.py (`hallucination_silence_threshold`);
faster-whisper 1.2.1 has the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sottovoce.audio.vad import SpeechFinder
from sottovoce.offline.cut import MEL_FRAMES_PER_SECOND, WindowCut
from sottovoce.options.transcribe import APPENDED, PREPENDED
from sottovoce.options.vad import VadOptions
from sottovoce.types import SAMPLE_RATE, Segment, Word

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


logger = logging.getLogger(__name__)

VOICE_VAD = VadOptions(threshold=0.3, min_silence_ms=100.0, speech_pad_ms=0.0)
"""A voice, however faint: somewhere in a segment of people's speech the detector is sure by 0.9 and more."""
SURE_VOICE_VAD = VadOptions(threshold=0.9, min_silence_ms=100.0, speech_pad_ms=0.0)
"""What an improbable text needs. Of 43 such segments of development speech, clean, soft, over a telephone and
in noise at 10 and 0 dB, all have a probability of 0.99 somewhere but one, in noise as loud as the speech."""
MOST_SIGNS_S = 30.0
"""Letters that people say in a second at most, where the same text was written before."""
MARGIN_S = 0.3
"""Around a segment, whose times may be so far off."""


class VoiceFinder:
    """Tells whether anybody speaks during a segment, by the probabilities of a finder of speech.

    speech: before its first samples.
    """

    def __init__(self, speech: SpeechFinder) -> None:
        self._voices, self._sure = speech.beside(VOICE_VAD), speech.beside(SURE_VOICE_VAD)

    def is_in(self, segment: Segment, *, is_guess: bool = False) -> bool:
        """Tell whether there is a voice in a segment, whose samples were read; log where there is none.

        is_guess: its text is improbable, so that the voice has to be clear.
        """
        is_spoken = _seconds_in(self._sure if is_guess else self._voices, segment) > 0.0
        if not is_spoken:
            span = f"{segment.start:.1f} to {segment.end:.1f} s"
            logger.info("nobody speaks from %s: '%s' is left out", span, segment.text.strip())
        return is_spoken

    def is_too_short_for(self, segment: Segment) -> bool:
        """Return whether a segment has more letters than its seconds of voice allow, and log it."""
        n_signs = sum(sign.isalnum() for sign in segment.text)
        is_short = n_signs > MOST_SIGNS_S * _seconds_in(self._voices, segment)
        if is_short:
            logger.info("%.1f s: '%s' once more is left out", segment.start, segment.text.strip())
        return is_short


def _seconds_in(voices: SpeechFinder, segment: Segment) -> float:
    """Seconds of voice in a segment and a little around it."""
    start = max(0, round((segment.start - MARGIN_S) * SAMPLE_RATE))
    found = voices.segments(start, round((segment.end + MARGIN_S) * SAMPLE_RATE))
    return sum(one.end_sample - one.start_sample for one in found) / SAMPLE_RATE
