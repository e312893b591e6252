"""Progress of a transcription, and resume points: its state between two windows, in plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from msgspec import Struct, to_builtins

from sottovoce.decoding.decode import LanguageDetection
from sottovoce.language.probe import ProbedLanguage
from sottovoce.offline.windows import SpeechSpan, Window
from sottovoce.text.files import from_plain
from sottovoce.types import Segment, Span, Turn


@dataclass(slots=True)
class TranscriptionState:
    """Progress and metadata of a transcription, updated while it runs.

    language: the current one. detection: of the first. duration: seconds, as declared until the end was read.
    position: seconds transcribed. skipped: speech without text (s). outside_languages: seconds of speech by
    unlisted language. second_s: seconds transcribed by a second model. speaker: of the last segment, by
    diarization. n_changes: changes of speaker that the model marked. word_end_s: of the last word, if pauses
    are marked.
    """

    language: str | None = None
    detection: LanguageDetection | None = None
    duration: float | None = None
    position: float = 0.0
    turns: tuple[Turn, ...] = ()
    skipped: tuple[Span, ...] = ()
    second_s: float = 0.0
    outside_languages: Mapping[str, float] = field(default_factory=dict)
    speaker: str | None = field(default=None, repr=False)
    n_changes: int = field(default=0, repr=False)
    word_end_s: float | None = field(default=None, repr=False)
    resume_point: ResumePoint | None = field(default=None, repr=False)

    def to_resume(self) -> TranscriptionState:
        """Return a copy for a resume point; turns are found again."""
        return replace(self, turns=(), resume_point=None)


@dataclass(frozen=True, slots=True)
class ProbedPiece:
    """A piece of speech in log-mel frames, and its language posterior.

    probabilities: (L,) over all languages. is_alone: encoded separately. posterior: (A,) over the allowed
    ones, given the speech around it, or empty.
    """

    start: int
    end: int
    probabilities: tuple[float, ...]
    allowed_mass: float
    no_speech: float
    is_alone: bool
    posterior: tuple[float, ...] = ()

    @classmethod
    def of(cls, piece: SpeechSpan, probed: ProbedLanguage, *, is_alone: bool) -> ProbedPiece:
        shares = tuple(probed.probabilities.tolist())
        return cls(piece.start, piece.end, shares, probed.allowed_mass, probed.no_speech, is_alone)

    @property
    def probed(self) -> ProbedLanguage:
        return ProbedLanguage(np.array(self.probabilities), self.allowed_mass, self.no_speech)


@dataclass(frozen=True, slots=True)
class FollowerState:
    """State of a language follower.

    is_beginning: no speech was found yet. n_one: windows that did not show several languages. confirmed: sum
    of the surprisals of improbable texts in the right language, and their number.
    """

    is_several: bool
    is_beginning: bool
    spoken_s: Mapping[str, float] = field(default_factory=dict)
    n_one: int = 0
    confirmed: tuple[float, int] = (0.0, 0)
    pieces: tuple[ProbedPiece, ...] = ()


class SeekPlace(Struct, frozen=True, tag=True):
    """Position of mode "seek": clip, and the first log-mel frame that is not transcribed.

    last_speech: end of the last word (s). parts: of the last window, in one language each;
    its rest is detected again with the audio after it.
    """

    clip: int
    next_frame: int
    last_speech: float
    n_frames_read: int
    parts: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadWindow:
    """A transcribed window with its segments in recording time; is_silent: of speech that it skipped."""

    window: Window
    is_silent: bool
    last_temperature: float
    segments: Sequence[Segment]


class SpeechPlace(Struct, frozen=True, tag=True):
    """Position of mode "vad": the number of packed windows taken, and those waiting."""

    n_packed: int
    next_frame: int
    n_frames_read: int
    waiting: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True)
class ChannelPoint:
    """Position in a channel: its last resume point, and the number of its segments since."""

    point: ResumePoint | None
    n_since: int


class ChannelsPlace(Struct, frozen=True, tag=True):
    """Position in a recording whose channels are transcribed separately."""

    channels: tuple[ChannelPoint, ...]


WindowPlace: TypeAlias = SeekPlace | SpeechPlace
Place: TypeAlias = WindowPlace | ChannelsPlace


@dataclass(frozen=True, slots=True)
class DraftState:
    """Segments of the first model that a second may replace, after until_s."""

    progress: TranscriptionState
    until_s: float
    held: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The state between two windows, from which a transcription continues as if there had been no break.

    context: tokens of the next prompt. is_first: nothing was transcribed yet. read: windows whose segments
    wait for earlier ones. draft: of a second model. n_segments: those that a `FileTranscription` yielded.
    """

    progress: TranscriptionState
    context: tuple[int, ...]
    is_first: bool
    follower: FollowerState | None
    place: Place
    read: tuple[ReadWindow, ...] = ()
    draft: DraftState | None = None
    n_segments: int = 0

    @property
    def position(self) -> float:
        """Seconds of the requested part that are transcribed."""
        return self.progress.position

    def to_json(self) -> dict[str, object]:
        """Convert to plain values, without loss."""
        plain: dict[str, object] = to_builtins(self)
        return plain

    @classmethod
    def of_json(cls, value: object) -> ResumePoint:
        """Parse the output of `to_json`. Raises: OptionError."""
        return from_plain(cls, value, "resume point")


def state_at(point: ResumePoint | None, language: str | None) -> TranscriptionState:
    """Return the state at a resume point, or without one that of the beginning, in a given language."""
    return TranscriptionState(language) if point is None else replace(point.progress, resume_point=point)


def segment_of_json(row: object) -> Segment:
    """Parse the output of `dataclasses.asdict`. Raises: OptionError."""
    return from_plain(Segment, row, "segment")
