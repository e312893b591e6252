"""Text where nobody speaks: Whisper makes words up in noise and music, at times that no voice is heard at."""

from __future__ import annotations

import logging

from sottovoce.audio.vad import SpeechFinder
from sottovoce.options.vad import VadOptions
from sottovoce.types import SAMPLE_RATE, Segment

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
        """Tell whether nobody can have said the text of a segment while there is a voice in it; log it."""
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
