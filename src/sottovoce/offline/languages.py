"""Languages of a recording: of its first windows, and of each window.

openai-whisper 20250625 detects on the first window only; more windows and a prior are more robust
(docs/research/files.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import NamedTuple, TypeAlias

from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.vad import SpeechFinder
from sottovoce.decoding.detect import LanguageDetection
from sottovoce.offline.follow import LanguageFollower
from sottovoce.offline.pieces import Piece, Window, speech_pieces
from sottovoce.offline.resume import FollowerState
from sottovoce.offline.segments import FRAMES_PER_TIMESTAMP
from sottovoce.offline.transcriber import Transcriber, TranscriptionState
from sottovoce.types import EncoderOutput, Features

FARTHEST_WINDOWS = 12
"""Windows searched for speech at the beginning; audio that is read ahead stays in memory."""


LEAST_WINDOWS = 2
SURE = 0.6
"""Mean probability over at least LEAST_WINDOWS at which no more windows are read."""
SURE_ALONE = 0.9
"""Probability at which the first window suffices if changes are followed: a second one costs a tenth of
transcribing 90 s.
"""


Heard: TypeAlias = tuple[LanguageDetection, float]
"""The language of a window, and its weight in frames of audio."""


class FoundLanguage(NamedTuple):
    detection: LanguageDetection
    features: Features
    encoded: EncoderOutput


def find_language(transcriber: Transcriber, windows: Iterable[Features]) -> FoundLanguage | None:
    """Detect the language over the first windows with speech, weighted by length; None without windows.

    windows: in order, padded with silence; taken as needed. Windows without speech only count if there are
    no others.
    """
    threshold = transcriber.options.fallback.no_speech_threshold
    heard: list[Heard] = []
    silent: list[Heard] = []
    first: tuple[Features, EncoderOutput] | None = None
    for features in islice(windows, FARTHEST_WINDOWS):
        encoded = transcriber.runtime.encode(features)
        first = first or (features, encoded)
        (detection,) = transcriber.detect(encoded)
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


LOOK_AHEAD_FRAMES = 100
"""Log-mel frames behind a window that speech detection needs to finish its last segment."""


class WindowLanguages:
    """Detects the languages of windows, front to back, and divides windows where they change.

    speech: detects in what `features` reads. follower: None for a recording in one language.
    """

    def __init__(
        self,
        transcriber: Transcriber,
        features: RecordingFeatures,
        speech: SpeechFinder,
        state: TranscriptionState,
    ) -> None:
        self._transcriber = transcriber
        self._features = features
        self._speech = speech
        self._state = state
        may_follow = transcriber.may_follow
        self.follower = LanguageFollower(transcriber, features, state) if may_follow else None

    @property
    def expects_several(self) -> bool:
        return self.follower is not None and self.follower.is_several

    def state(self, frame: int) -> FollowerState | None:
        """Return the follower's state that windows from a frame on depend on."""
        return None if self.follower is None else self.follower.state(frame)

    def restore(self, state: FollowerState | None) -> None:
        if self.follower is not None and state is not None:
            self.follower.restore(state)

    def detect_first(self, windows: Iterable[Features]) -> FoundLanguage | None:
        """Detect the language of a recording over its first windows.

        None: there are no windows, or the language is given or detected for each window.
        """
        if self._state.language is not None or self.expects_several:
            return None
        found = find_language(self._transcriber, windows)
        if found is not None:
            self._state.language, self._state.detection = found.detection.language, found.detection
        return found

    def divided(self, window: Window, encoded: EncoderOutput) -> list[Window]:
        """Return the parts of a window, each in one language; encoded: the window, a batch of 1."""
        state, follower = self._state, self.follower
        if follower is None:
            assert state.language is not None, "it was given or detected"
            return [replace(window, language=state.language)]
        if state.detection is None:
            (state.detection,) = self._transcriber.detect(encoded)
        pieces = self.speech_in(window)
        if not pieces:
            return [replace(window, language=state.language or state.detection.language)]
        spans = [_span(window, piece) for piece in pieces]
        runs = follower.runs(encoded, pieces, spans, state.language)
        parts, rest = [], window
        for run, after in pairwise(runs):
            head, rest = rest.split(rest.window_frame(follower.border(run, after)))
            parts.append(replace(head, language=run.language, probability=run.probability, is_cut=True))
        last = runs[-1]
        return [
            *parts,
            replace(rest, language=last.language, probability=last.probability, is_cut=bool(parts)),
        ]

    def speech_in(self, window: Window) -> list[Piece]:
        return [piece for part in window.pieces for piece in self.speech_between(part.start, part.end)]

    def speech_between(self, start: int, end: int) -> list[Piece]:
        self._features.has(end + LOOK_AHEAD_FRAMES)  # detected speech ends a little late
        return speech_pieces(self._features, self._speech, start, end)


def _span(window: Window, piece: Piece) -> tuple[int, int]:
    start = window.window_frame(piece.start) // FRAMES_PER_TIMESTAMP
    return start, max(start + 1, window.window_frame(piece.end) // FRAMES_PER_TIMESTAMP)
