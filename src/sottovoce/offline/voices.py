"""Text where nobody speaks: Whisper makes words up in noise and music, at times that no voice is heard at."""

from __future__ import annotations

import logging

from sottovoce.audio.vad import SpeechFinder
from sottovoce.options.vad import VadOptions
from sottovoce.types import SAMPLE_RATE, Segment

logger = logging.getLogger(__name__)

VOICE_VAD = VadOptions(threshold=0.3, min_silence_ms=100.0, speech_pad_ms=0.0)
"""A voice, however faint: somewhere in a segment of people's speech the detector is sure by 0.9 and more."""
MARGIN_S = 0.3
"""Around a segment, whose times may be so far off."""


class VoiceFinder:
    """Tells whether anybody speaks during a segment, by the probabilities of a finder of speech.

    speech: before its first samples.
    """

    def __init__(self, speech: SpeechFinder) -> None:
        self._voices = speech.beside(VOICE_VAD)

    def is_in(self, segment: Segment) -> bool:
        """Tell whether there is a voice in a segment, whose samples were read; log where there is none."""
        start = max(0, round((segment.start - MARGIN_S) * SAMPLE_RATE))
        is_spoken = bool(self._voices.segments(start, round((segment.end + MARGIN_S) * SAMPLE_RATE)))
        if not is_spoken:
            span = f"{segment.start:.1f} to {segment.end:.1f} s"
            logger.info("nobody speaks from %s: '%s' is left out", span, segment.text.strip())
        return is_spoken
