"""The one language of a recording: found from its first windows that hold speech, and kept.

Source: openai-whisper 20250625 looks at the first window alone; more windows and what is common guard
against an odd beginning (how much: docs/benchmarks.md). Changes within a recording are `turns`' business.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

from sottovoce.decoding.detect import LanguageDetection
from sottovoce.offline.engine import Engine
from sottovoce.offline.work import Encode
from sottovoce.types import Features

FARTHEST_WINDOWS = 12
"""Speech is looked for in so many windows from the beginning: what is read ahead stays in memory."""


LEAST_WINDOWS = 2
SURE = 0.6
"""Mean probability of a language, over at least LEAST_WINDOWS, with which no more windows are heard."""


Heard: TypeAlias = tuple[LanguageDetection, float]
"""What was heard in a window, and what it counts: its frames of audio."""


class FoundLanguage(NamedTuple):
    """What was found, and the first window, as it was encoded for that."""

    detection: LanguageDetection
    first: Encode


def find_language(
    engine: Engine, windows: Iterable[Features]
) -> Generator[Encode, None, FoundLanguage | None]:
    """Detect the language over the first windows with speech, each for as long as it is; None for no window.

    windows: in order, each going on in silence where the audio ends; no more are taken than are needed.
        What the model calls no speech is passed over, unless there is nothing else.
    """
    threshold = engine.options.fallback.no_speech_threshold
    heard: list[Heard] = []
    silent: list[Heard] = []
    first: Encode | None = None
    for features in islice(windows, FARTHEST_WINDOWS):
        work = Encode(features)
        yield work
        first = first or work
        detection = engine.detect(work.encoded)[0]
        is_silent = threshold is not None and detection.no_speech_prob > threshold
        (silent if is_silent else heard).append((detection, float(features.n_content_frames[0])))
        if _is_enough(engine, heard):
            break
    if first is None:
        return None
    return FoundLanguage(_combined(engine, heard or silent), first)


def _is_enough(engine: Engine, heard: Sequence[Heard]) -> bool:
    if len(heard) >= engine.options.language_windows:
        return True
    return len(heard) >= LEAST_WINDOWS and _combined(engine, heard).probability >= SURE


def _combined(engine: Engine, heard: Sequence[Heard]) -> LanguageDetection:
    detections, seconds = zip(*heard, strict=True)
    return engine.combine(detections, seconds)
