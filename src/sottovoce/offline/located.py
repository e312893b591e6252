"""Windows of a recording one after the other, each in one language: where the next one ends, and what it is
in.

Both the text of a recording (`seek`) and its languages alone (`timeline`) go through these. Not known here:
text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from sottovoce.audio.features import RecordingFeatures
from sottovoce.audio.vad import SpeechFinder
from sottovoce.engine.calls import CallGenerator, EncodeCall
from sottovoce.offline.cut import FRAMES_PER_TIMESTAMP
from sottovoce.offline.follow import LanguageFollower, follower_of
from sottovoce.offline.languages import find_language
from sottovoce.offline.packing import Piece
from sottovoce.offline.pieces import speech_pieces
from sottovoce.offline.resume import FollowerState, WaitingRun
from sottovoce.offline.transcriber import Transcriber, TranscriptionState
from sottovoce.types import EncoderOutput, Features

SHORTEST_RUN_FRAMES = 50
"""Less than this left before another language holds no word, and would be a window of its own."""
LOOK_AHEAD_FRAMES = 100
"""Log-mel frames behind a window that its last speech may take to be found."""


class LocatedWindow(NamedTuple):
    """Frames (10 ms) [seek, end) of a recording, in one language.

    encoded: a batch of 1; None where another language follows, so that this part is to be encoded by itself.
    probability: of the language, among those to choose among.
    """

    seek: int
    end: int
    language: str
    encoded: EncoderOutput | None
    probability: float = 1.0


class WindowLocator:
    """Finds windows and their languages, front to back.

    speech: sees what `features` reads. state: has the language, once that is found. follower: None where
    the recording has one language.
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
        self._runs: deque[LocatedWindow] = deque()
        self._first: tuple[int, Features, EncoderOutput] | None = None
        self.follower = follower_of(transcriber, features, state)

    @property
    def expects_several(self) -> bool:
        """Whether languages are followed from the first window on."""
        return self.follower is not None and self.follower.is_several

    @property
    def waiting(self) -> tuple[WaitingRun, ...]:
        """Parts in one language each that were found and not read yet."""
        return tuple(WaitingRun(run.seek, run.end, run.language, run.probability) for run in self._runs)

    def restore(self, follower: FollowerState | None, waiting: Sequence[WaitingRun]) -> None:
        """Go on from a state."""
        self._runs.extend(
            LocatedWindow(one.seek, one.end, one.language, None, one.probability) for one in waiting
        )
        if self.follower is not None and follower is not None:
            self.follower.restore(follower)

    def find_language(self, start: int, end: int | None) -> CallGenerator[None]:
        """Find the language of a recording over the first windows from a frame on; none where there is
        nothing."""
        found = yield from find_language(self._transcriber, self._windows_in_silence(start, end))
        if found is None:
            return
        self._state.language, self._state.detection = found.detection.language, found.detection
        full = self._transcriber.window_frames
        if found.features.n_content_frames[0] == full == self._transcriber.content_frames:
            self._first = start, found.features, found.encoded  # with audio alone: the window to be read

    def locate(self, seek: int, end: int | None) -> CallGenerator[LocatedWindow]:
        """Return the window that begins at a frame, up to `end` at most; where a language ends there, behind
        its rest."""
        while self._runs and self._runs[0].end - seek < SHORTEST_RUN_FRAMES:
            seek = max(seek, self._runs.popleft().end)
        if self._runs:
            return self._runs[0]._replace(seek=seek)
        first, self._first = self._first, None
        if first is not None and first[0] == seek:
            _, features, encoded = first
        else:
            last = seek + self._transcriber.content_frames
            last = last if end is None else min(end, last)
            features = self._features.window(seek, last, n_frames=self._transcriber.window_frames)
            encoded = yield EncodeCall(features)
        end = seek + features.n_content_frames[0]
        return (yield from self._in_one_language(seek, end, encoded))

    def hand_over(self, seek: int, text_end: int) -> int:
        """Leave to the language that follows the speech before it of which no text was written; return
        where to go on.

        A short piece beside a change of language may be counted to the wrong one, whose text then ends before
        it. seek: frame from which to go on otherwise. text_end: of the text of the part in the language
        before.
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
        self._runs[0] = run._replace(end=at)
        return at

    def pieces(self, start: int, end: int) -> list[Piece]:
        """List the pieces of speech in frames [start, end)."""
        self._features.has(end + LOOK_AHEAD_FRAMES)  # speech is found a little behind its end
        return speech_pieces(self._features, self._speech, start, end)

    def _in_one_language(self, seek: int, end: int, encoded: EncoderOutput) -> CallGenerator[LocatedWindow]:
        state, follower = self._state, self.follower
        if follower is None:
            assert state.language is not None
            return LocatedWindow(seek, end, state.language, encoded)
        if state.detection is None:
            (state.detection,) = yield from self._transcriber.detect(encoded)
        pieces = self.pieces(seek, end)
        if not pieces:
            language = state.language or state.detection.language
            return LocatedWindow(seek, end, language, encoded)
        return (yield from self._followed(follower, seek, end, encoded, pieces))

    def _followed(
        self,
        follower: LanguageFollower,
        seek: int,
        end: int,
        encoded: EncoderOutput,
        pieces: list[Piece],
    ) -> CallGenerator[LocatedWindow]:
        """The part of a window before another language begins; the parts after it wait."""
        spans = [_span(seek, one) for one in pieces]
        runs = yield from follower.runs(encoded, pieces, spans, self._state.language)
        if len(runs) == 1:
            return LocatedWindow(seek, end, runs[0].language, encoded, runs[0].probability)
        # The last run is looked at again with what follows it.
        for run, after in pairwise(runs):
            at = yield from follower.border(run, after)
            self._runs.append(LocatedWindow(seek, at, run.language, None, run.probability))
            seek = at
        return self._runs[0]

    def _windows_in_silence(self, start: int, end: int | None) -> Iterator[Features]:
        """Windows as openai-whisper hears them for detection: a short one goes on in silence, not in 0.0."""
        n_frames = self._transcriber.window_frames
        seek = start
        while (end is None or seek < end) and self._features.has(seek):
            yield self._features.window(seek, end, n_frames=n_frames, fill="silence")
            seek += n_frames


def _span(seek: int, piece: Piece) -> tuple[int, int]:
    """The encoder frames of a piece in a window that begins at `seek`."""
    start = (piece.start - seek) // FRAMES_PER_TIMESTAMP
    return start, max(start + 1, (piece.end - seek) // FRAMES_PER_TIMESTAMP)
