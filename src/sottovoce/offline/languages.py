"""The one language of a recording: found from its first windows that hold speech, and kept.

Source: openai-whisper 20250625 looks at the first window alone; more windows and what is common guard
against an odd beginning (how much: docs/benchmarks.md). Changes within a recording are `turns`' business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

from sottovoce.decoding.detect import LanguageDetection
from sottovoce.engine.calls import CallGenerator, EncodeCall
from sottovoce.offline.transcriber import Transcriber
from sottovoce.types import EncoderOutput, Features

FARTHEST_WINDOWS = 12
"""Speech is looked for in so many windows from the beginning: what is read ahead stays in memory."""


LEAST_WINDOWS = 2
SURE = 0.6
"""Mean probability of a language, over at least LEAST_WINDOWS, with which no more windows are heard."""
SURE_ALONE = 0.9
"""Probability with which the first window is enough where changes are followed: what comes later is heard for
itself, and a second window costs a tenth of reading a recording of 90 s."""


Heard: TypeAlias = tuple[LanguageDetection, float]
"""What was heard in a window, and what it counts: its frames of audio."""


class FoundLanguage(NamedTuple):
    """What was found, and the first window, as it was encoded for that."""

    detection: LanguageDetection
    features: Features
    encoded: EncoderOutput


def find_language(
    transcriber: Transcriber, windows: Iterable[Features]
) -> CallGenerator[FoundLanguage | None]:
    """Detect the language over the first windows with speech, each for as long as it is; None for no window.

    windows: in order, each going on in silence where the audio ends; no more are taken than are needed.
        What the model calls no speech is passed over, unless there is nothing else.
    """
    threshold = transcriber.options.fallback.no_speech_threshold
    heard: list[Heard] = []
    silent: list[Heard] = []
    first: tuple[Features, EncoderOutput] | None = None
    for features in islice(windows, FARTHEST_WINDOWS):
        encoded: EncoderOutput = yield EncodeCall(features)
        first = first or (features, encoded)
        (detection,) = yield from transcriber.detect(encoded)
        is_silent = threshold is not None and detection.no_speech_prob > threshold
        (silent if is_silent else heard).append((detection, float(features.n_content_frames[0])))
        if _is_enough(transcriber, heard):
            break
    if first is None:
        return None
    return FoundLanguage(_combined(transcriber, heard or silent), *first)


def _is_enough(transcriber: Transcriber, heard: Sequence[Heard]) -> bool:
    if len(heard) >= transcriber.options.language_windows:
        return True
    if not heard:
        return False
    may_stop = len(heard) >= LEAST_WINDOWS
    least = SURE if may_stop else SURE_ALONE
    return (may_stop or transcriber.may_follow) and _combined(transcriber, heard).probability >= least


def _combined(transcriber: Transcriber, heard: Sequence[Heard]) -> LanguageDetection:
    detections, seconds = zip(*heard, strict=True)
    return transcriber.combine(detections, seconds)
