"""Where a transcription can go on later, in another process: plain values, which JSON holds exactly.

A resume point is the state between two windows: all that the next window depends on but the recording and
the options. Segments are not in it: those before it were given to the caller. Not known here: how a state is
taken and restored (the loops do), files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from sottovoce.decoding.detect import LanguageDetection
from sottovoce.errors import OptionError
from sottovoce.language.follow import AskingLimits
from sottovoce.offline.pieces import PackedWindow
from sottovoce.types import Segment


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """How far a transcription is: the fields of `TranscriptionState` that a resumed one cannot recompute."""

    position: float = 0.0
    language: str | None = None
    detection: LanguageDetection | None = None
    unread: tuple[tuple[float, float], ...] = ()
    outside_languages: Mapping[str, float] = field(default_factory=dict)
    n_segments: int = 0
    n_cleaned: int = 0
    second_s: float = 0.0


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
    """The state of a language follower: pieces that were probed already and may be needed again.

    is_beginning: no speech was found yet. spoken: languages in which something was surely said.
    """

    is_several: bool
    is_beginning: bool
    limits: AskingLimits = field(default_factory=AskingLimits)
    spoken: tuple[str, ...] = ()
    pieces: tuple[ProbedPiece, ...] = ()


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


@dataclass(frozen=True, slots=True)
class ReadWindow:
    """A window that was read, and its segments in the time of the recording: they wait for those of earlier
    windows."""

    window: PackedWindow
    last_temperature: float
    segments: Sequence[Segment]


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


@dataclass(frozen=True, slots=True)
class DraftState:
    """The draft of a first model that was not yielded yet, because a second may read it.

    progress: of the first model. until_s: where text begins that was not yielded yet. held: segments in doubt
    from there on.
    """

    progress: StateSnapshot
    until_s: float
    held: tuple[Segment, ...] = ()


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
        """Seconds that are transcribed, of the requested part."""
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
            own: Any = cls
            kinds = {**_fields_of(own), "place": SeekPlace if "seek" in row["place"] else SpeechPlace}
            return cls(**{name: _read(kinds[name], one) for name, one in row.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise OptionError(f"resume point: expected what to_json gives ({error!r})") from error


def segment_to_json(segment: Segment) -> dict[str, Any]:
    """Write a segment as plain values, to the last bit, with the tokens of its words."""
    return asdict(segment)


def segment_of_json(row: Mapping[str, Any]) -> Segment:
    """Read the segment that was written by `segment_to_json`.

    Raises: KeyError, TypeError, ValueError for anything else.
    """
    found: Segment = _read(Segment, row)
    return found


@cache
def _fields_of(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, value: Any) -> Any:
    """Read a value of a type from the plain values that `asdict` and JSON make of it."""
    if hasattr(kind, "__dataclass_fields__"):
        kinds = _fields_of(kind)
        return kind(**{name: _read(kinds[name], one) for name, one in dict(value).items()})
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (one for one in arguments if one is not NoneType)
        return None if value is None else _read(kind, value)
    if get_origin(kind) in (tuple, Sequence):
        return tuple(_read(arguments[0], one) for one in value)
    return value
