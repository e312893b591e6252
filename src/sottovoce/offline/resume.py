"""Where a transcription can go on later, in another process: plain values, which JSON holds exactly.

A resume point is the state between two windows: all that the next window depends on but the recording and
the options. Segments are not in it: those before it were given to the caller. Not known here: how a state is
taken and restored (the loops do), files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sottovoce.decoding.detect import LanguageDetection
from sottovoce.errors import OptionError
from sottovoce.language.follow import AskingLimits
from sottovoce.offline.pieces import PackedWindow, Piece
from sottovoce.types import Segment, Token, Word


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """How far a transcription is: the fields of `Progress` that no later window finds again."""

    position: float = 0.0
    language: str | None = None
    detection: LanguageDetection | None = None
    unread: tuple[tuple[float, float], ...] = ()
    outside_languages: Mapping[str, float] = field(default_factory=dict)
    n_segments: int = 0
    n_cleaned: int = 0
    second_s: float = 0.0

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> StateSnapshot:
        detection = row["detection"]
        return cls(
            **{
                **row,
                "detection": None if detection is None else LanguageDetection(**detection),
                "unread": tuple((start, end) for start, end in row["unread"]),
            }
        )


@dataclass(frozen=True, slots=True)
class ProbedPiece:
    """A piece of speech in log-mel frames [start, end), and what the language probe said of it.

    probabilities: (L,) over all languages of the model. is_alone: it was encoded by itself.
    """

    start: int
    end: int
    probabilities: tuple[float, ...]
    allowed_mass: float
    no_speech: float
    is_alone: bool


@dataclass(frozen=True, slots=True)
class FollowerState:
    """What following the languages depends on: pieces that were probed already and may be asked for again.

    is_beginning: no speech was found yet. spoken: languages in which something was surely said.
    """

    is_several: bool
    is_beginning: bool
    limits: AskingLimits = field(default_factory=AskingLimits)
    spoken: tuple[str, ...] = ()
    pieces: tuple[ProbedPiece, ...] = ()

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> FollowerState:
        pieces = (
            ProbedPiece(**{**piece, "probabilities": tuple(piece["probabilities"])})
            for piece in row["pieces"]
        )
        limits, spoken = AskingLimits(**row["limits"]), tuple(row["spoken"])
        return cls(row["is_several"], row["is_beginning"], limits, spoken, tuple(pieces))


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """Log-mel frames [seek, end) in one language, found in a window and not read yet."""

    seek: int
    end: int
    language: str
    probability: float


@dataclass(frozen=True, slots=True)
class SeekPlace:
    """Where mode "seek" goes on: the log-mel frame in a clip, by its number.

    last_speech: end of the last word that was placed, seconds. n_frames_read: of the recording, since speech
    that goes on at the end of what was read ends there.
    """

    clip: int
    seek: int
    last_speech: float
    n_frames_read: int
    runs: tuple[WaitingRun, ...] = ()

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> SeekPlace:
        return cls(**{**row, "runs": tuple(WaitingRun(**run) for run in row["runs"])})


@dataclass(frozen=True, slots=True)
class ReadWindow:
    """A window that was read, and its segments in the time of the recording: they wait for those of earlier
    windows."""

    window: PackedWindow
    last_temperature: float
    segments: Sequence[Segment]

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> ReadWindow:
        segments = tuple(segment_of_json(segment) for segment in row["segments"])
        return cls(_window(row["window"]), row["last_temperature"], segments)


@dataclass(frozen=True, slots=True)
class SpeechPlace:
    """Where mode "vad" goes on: how many packed windows were taken, those of them that wait to be read, and
    those that were read before an earlier one.

    first_frame: the first log-mel frame that is still needed. n_frames_read: of the recording.
    """

    n_packed: int
    first_frame: int
    n_frames_read: int
    waiting: tuple[PackedWindow, ...] = ()
    read: tuple[ReadWindow, ...] = ()

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> SpeechPlace:
        waiting = tuple(_window(window) for window in row["waiting"])
        return cls(**{**row, "waiting": waiting, "read": tuple(map(ReadWindow.of_json, row["read"]))})


@dataclass(frozen=True, slots=True)
class DraftState:
    """What a first model wrote before a window that was not given away yet, as a second may read it.

    progress: of the first model. until_s: where text begins that was not given away. held: segments in doubt
    from there on.
    """

    progress: StateSnapshot
    until_s: float
    held: tuple[Segment, ...] = ()

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> DraftState:
        held = tuple(segment_of_json(segment) for segment in row["held"])
        return cls(StateSnapshot.of_json(row["progress"]), row["until_s"], held)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The state of a transcription between two windows; with the same recording, models and options the text
    goes on from here as if there had been no break.

    context: tokens that the next prompt is made of. is_first: nothing was read yet. follower: None where the
    recording has one language. draft: None without a second model.
    """

    progress: StateSnapshot
    context: tuple[int, ...]
    is_first: bool
    follower: FollowerState | None
    place: SeekPlace | SpeechPlace
    draft: DraftState | None = None

    @property
    def position(self) -> float:
        """Seconds that are transcribed, of the part that was asked for."""
        return self.progress.position

    def to_json(self) -> dict[str, Any]:
        """Write it as plain values; `of_json(json.loads(json.dumps(point.to_json())))` is the same point."""
        return asdict(self)

    @classmethod
    def of_json(cls, value: object) -> ResumePoint:
        """Read the point that was written by `to_json`.

        Raises: OptionError for anything else.
        """
        try:
            row: Mapping[str, Any] = value  # type: ignore[assignment]
            follower, place, draft = row["follower"], row["place"], row.get("draft")
            return cls(
                StateSnapshot.of_json(row["progress"]),
                tuple(row["context"]),
                row["is_first"],
                None if follower is None else FollowerState.of_json(follower),
                (SeekPlace if "seek" in place else SpeechPlace).of_json(place),
                None if draft is None else DraftState.of_json(draft),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise OptionError(f"resume point: expected what to_json gives ({error!r})") from error


def segment_to_json(segment: Segment) -> dict[str, Any]:
    """Write a segment as plain values, to the last bit, with the tokens of its words."""
    return asdict(segment)


def segment_of_json(row: Mapping[str, Any]) -> Segment:
    """Read the segment that was written by `segment_to_json`.

    Raises: KeyError, TypeError, ValueError for anything else.
    """
    words = row["words"]
    return Segment(
        **{
            **row,
            "tokens": tuple(row["tokens"]),
            "words": None if words is None else tuple(_word(word) for word in words),
        }
    )


def _window(row: Mapping[str, Any]) -> PackedWindow:
    return PackedWindow(**{**row, "pieces": tuple(Piece(**piece) for piece in row["pieces"])})


def _word(row: Mapping[str, Any]) -> Word:
    return Word(**{**row, "tokens": tuple(_token(token) for token in row["tokens"])})


def _token(row: Mapping[str, Any]) -> Token:
    return Token(**row)
