"""Languages of a recording: of its first windows, of each window, or of all spans without text.

openai-whisper 20250625 detects on the first window only; more windows and a prior are more robust
(docs/benchmarks.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.recording import Recording
from sottovoce.audio.vad import SpeechFinder
from sottovoce.decoding.detect import LanguageDetection
from sottovoce.offline.follow import LanguageFollower, follower_of
from sottovoce.offline.pieces import PIECE_VAD, Piece, speech_pieces
from sottovoce.offline.resume import FollowerState, WaitingRun
from sottovoce.offline.segments import FRAMES_PER_TIMESTAMP, seconds_of
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


SHORTEST_RUN_FRAMES = 50
"""A shorter rest before a change of language holds no word, and would cost a window."""
LOOK_AHEAD_FRAMES = 100
"""Log-mel frames behind a window that speech detection needs to finish its last segment."""


class LocatedWindow(NamedTuple):
    """Log-mel frames [seek, end) of a recording in one language.

    encoded: a batch of 1; None if another language follows, so that this part is encoded separately.
    probability: of the language among those allowed.
    """

    seek: int
    end: int
    language: str
    encoded: EncoderOutput | None
    probability: float = 1.0

    @classmethod
    def of(cls, run: WaitingRun) -> LocatedWindow:
        return cls(run.seek, run.end, run.language, None, run.probability)


class WindowLocator:
    """Finds windows and their languages, front to back.

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
        self._runs: deque[WaitingRun] = deque()
        self._first: tuple[int, Features, EncoderOutput] | None = None
        self.follower = follower_of(transcriber, features, state)

    @property
    def expects_several(self) -> bool:
        return self.follower is not None and self.follower.is_several

    @property
    def waiting(self) -> tuple[WaitingRun, ...]:
        return tuple(self._runs)

    def restore(self, follower: FollowerState | None, waiting: Sequence[WaitingRun]) -> None:
        self._runs.extend(waiting)
        if self.follower is not None and follower is not None:
            self.follower.restore(follower)

    def find_language(self, start: int, end: int | None) -> None:
        found = find_language(self._transcriber, self._windows_in_silence(start, end))
        if found is None:
            return
        self._state.language, self._state.detection = found.detection.language, found.detection
        full = self._transcriber.window_frames
        if found.features.n_content_frames[0] == full == self._transcriber.content_frames:
            self._first = start, found.features, found.encoded  # the last window, which is transcribed next

    def locate(self, seek: int, end: int | None) -> LocatedWindow:
        """Return the window that begins at a frame, or the next part of the last one, up to `end`."""
        while self._runs and self._runs[0].end - seek < SHORTEST_RUN_FRAMES:
            seek = max(seek, self._runs.popleft().end)
        if self._runs:
            return LocatedWindow.of(replace(self._runs[0], seek=seek))
        first, self._first = self._first, None
        if first is not None and first[0] == seek:
            _, features, encoded = first
        else:
            last = seek + self._transcriber.content_frames
            last = last if end is None else min(end, last)
            features = self._features.window(seek, last, n_frames=self._transcriber.window_frames)
            encoded = self._transcriber.runtime.encode(features)
        end = seek + features.n_content_frames[0]
        return self._in_one_language(seek, end, encoded)

    def hand_over(self, seek: int, text_end: int) -> int:
        """Return where to go on, leaving skipped speech before a change to the language that follows.

        A short piece next to a change may be assigned to the wrong language, and that text ends before it.

        seek: frame from which to go on otherwise. text_end: frame where the text of the part ends.
        """
        if self.follower is None or len(self._runs) < 2 or self._runs[0].end - seek >= SHORTEST_RUN_FRAMES:
            return seek
        run, after = self._runs[0], self._runs[1]
        at = run.end
        for piece in reversed(self.follower.probed_pieces(run.seek, run.end)):
            if piece.start < text_end or not self.follower.may_change(piece, run.language, after.language):
                break
            at = piece.start
        if at == run.end:
            return seek
        self._runs[0] = replace(run, end=at)
        return at

    def pieces(self, start: int, end: int) -> list[Piece]:
        self._features.has(end + LOOK_AHEAD_FRAMES)  # detected speech ends a little late
        return speech_pieces(self._features, self._speech, start, end)

    def _in_one_language(self, seek: int, end: int, encoded: EncoderOutput) -> LocatedWindow:
        state, follower = self._state, self.follower
        if follower is None:
            assert state.language is not None
            return LocatedWindow(seek, end, state.language, encoded)
        if state.detection is None:
            (state.detection,) = self._transcriber.detect(encoded)
        pieces = self.pieces(seek, end)
        if not pieces:
            language = state.language or state.detection.language
            return LocatedWindow(seek, end, language, encoded)
        return self._followed(follower, seek, end, encoded, pieces)

    def _followed(
        self,
        follower: LanguageFollower,
        seek: int,
        end: int,
        encoded: EncoderOutput,
        pieces: list[Piece],
    ) -> LocatedWindow:
        spans = [_span(seek, one) for one in pieces]
        runs = follower.runs(encoded, pieces, spans, self._state.language)
        if len(runs) == 1:
            return LocatedWindow(seek, end, runs[0].language, encoded, runs[0].probability)
        # The last run is detected again together with what follows it.
        for run, after in pairwise(runs):
            at = follower.border(run, after)
            self._runs.append(WaitingRun(seek, at, run.language, run.probability))
            seek = at
        return LocatedWindow.of(self._runs[0])

    def _windows_in_silence(self, start: int, end: int | None) -> Iterator[Features]:
        n_frames = self._transcriber.window_frames
        seek = start
        while (end is None or seek < end) and self._features.has(seek):
            yield self._features.window(seek, end, n_frames=n_frames, fill="silence")
            seek += n_frames


def _span(seek: int, piece: Piece) -> tuple[int, int]:
    start = (piece.start - seek) // FRAMES_PER_TIMESTAMP
    return start, max(start + 1, (piece.end - seek) // FRAMES_PER_TIMESTAMP)


@dataclass(frozen=True, slots=True)
class LanguageSpan:
    """A stretch of a recording in one language, in seconds.

    probability: mean over its pieces.
    """

    start: float
    end: float
    language: str
    probability: float


def language_spans(transcriber: Transcriber, recording: Recording) -> Iterator[LanguageSpan]:
    """Return the languages of a recording in order, without gaps; neighbours differ.

    Raises:
        AudioError: the recording cannot be read.
    """
    state, speech = TranscriptionState(language=transcriber.fixed_language), SpeechFinder(PIECE_VAD)
    with transcriber.features(recording, speech) as features:
        locator = WindowLocator(transcriber, features, speech, state)
        if state.language is None and not locator.expects_several:
            locator.find_language(0, None)
        last: LanguageSpan | None = None
        seek = 0
        while features.has(seek):
            features.drop_before(seek)
            window = locator.locate(seek, None)
            state.language, seek = window.language, window.end
            if last is not None and last.language != window.language:
                yield last
                last = None
            last = _span_of(window) if last is None else _joined(last, window)
        if last is not None:
            yield replace(last, end=features.duration_s or last.end)


def recording_language(transcriber: Transcriber, recording: Recording) -> LanguageDetection | None:
    """Detect the language of a recording over its first windows with speech; None without audio.

    Raises:
        AudioError: the recording cannot be read.
    """
    transcriber = replace(transcriber, options=replace(transcriber.options, follow_languages=False))
    state = TranscriptionState()
    speech = SpeechFinder(PIECE_VAD)  # sees no audio: only windows are detected
    with transcriber.features(recording) as features:
        WindowLocator(transcriber, features, speech, state).find_language(0, None)
    return state.detection


def _span_of(window: LocatedWindow) -> LanguageSpan:
    return LanguageSpan(seconds_of(window.seek), seconds_of(window.end), window.language, window.probability)


def _joined(span: LanguageSpan, window: LocatedWindow) -> LanguageSpan:
    weights = span.end - span.start, seconds_of(window.end - window.seek)
    mean = float(np.average([span.probability, window.probability], weights=weights))
    return LanguageSpan(span.start, seconds_of(window.end), span.language, mean)
