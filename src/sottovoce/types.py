"""Data types that the packages exchange. Times are seconds in the recording or stream."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:  # only for annotations, so that `--help` is fast
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

SAMPLE_RATE = 16_000
HOP_SAMPLES = 160
"""Samples from one log-mel frame to the next (10 ms)."""
FRAMES_PER_SECOND = 50
"""Encoder frames a second."""

Floats: TypeAlias = "npt.NDArray[np.float32]"
Ints: TypeAlias = "npt.NDArray[np.int64]"
Bools: TypeAlias = "npt.NDArray[np.bool_]"
Samples: TypeAlias = "npt.NDArray[np.float32]"
"""Audio (n,) float32 in [-1, 1], mono, at 16 kHz."""


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """A piece of a recording."""

    samples: Samples
    start_sample: int = 0

    @property
    def start_s(self) -> float:
        return self.start_sample / SAMPLE_RATE

    @property
    def duration_s(self) -> float:
        return len(self.samples) / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Features:
    """Normalised log-mel windows (B, n_mels, n_frames) float32, and the frames of audio in each."""

    mel: Floats
    n_content_frames: tuple[int, ...]


Result = TypeVar("Result")
Stepwise: TypeAlias = Generator[None, None, Result]
"""Yields before each decoder pass, and returns its result."""


def finish(steps: Stepwise[Result]) -> Result:
    """Run all steps; return their result."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: Result = end.value
        return result


@dataclass(frozen=True, slots=True)
class Emissions:
    """CTC output: log_probs (B, T, V) float32, normalised over V; lengths (B,) in frames."""

    log_probs: npt.NDArray[np.float32]
    lengths: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Token:
    """An aligned text token; incomplete characters of its text are U+FFFD."""

    id: int
    text: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True, slots=True)
class Word:
    """A word as written, in transcripts with the space before it.

    start, end: seconds. probability: 0 to 1. language: a code. tokens: () if not computed.
    """

    word: str
    start: float
    end: float
    probability: float
    language: str | None = None
    speaker: str | None = None
    tokens: tuple[Token, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A hypothesis of a CTC search.

    tokens: ids of labels, without blanks or repeats.
    score: natural log, the sum of acoustic_score and lm_score.
    words: without the space before them; () if no times were computed.
    token_frames: the first frame of each token; () if no times were computed.
    posterior: share of the probability of the final beam; None after a greedy search.
    is_unfinished: it ends inside a word of the lexicon, as no complete one survived.
    """

    text: str
    tokens: tuple[int, ...]
    score: float
    acoustic_score: float = 0.0
    lm_score: float = 0.0
    words: tuple[Word, ...] = ()
    token_frames: tuple[int, ...] = ()
    posterior: float | None = None
    is_unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a transcript, as Whisper cuts it.

    tokens: text ids and timestamps. avg_logprob: mean natural log-probability of the tokens and the end.
    compression_ratio: bytes over zlib bytes of the text. no_speech_prob: at <|startoftranscript|>. words:
    None if not timed. language_probability: posterior among the allowed languages; None in a recording in one
    language, and where the text decided. committed: of a live session, the text before the second pass; None:
    the same.
    """

    id: int
    start: float
    end: float
    text: str
    language: str
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0
    words: tuple[Word, ...] | None = None
    speaker: str | None = None
    translation: str | None = None
    language_probability: float | None = None
    committed: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """A speaker speaks; turns of different speakers may overlap."""

    start: float
    end: float
    speaker: str


Span: TypeAlias = tuple[float, float]
"""Start and end in seconds."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """The transcript of a whole recording.

    language: the most spoken one; "" without speech. language_probability: among the allowed languages; None
    if it was given. language_probabilities: of all languages of the model. turns: of speakers, if requested.
    unread: skipped speech; None if not searched for. token_texts: of the ids in the segments, if known.
    """

    segments: tuple[Segment, ...]
    language: str
    duration: float
    model: str
    language_probability: float | None = None
    language_probabilities: Mapping[str, float] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    unread: tuple[Span, ...] | None = None
    token_texts: Mapping[int, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def words(self) -> tuple[Word, ...]:
        """All words; empty if they are not timed."""
        return tuple(word for segment in self.segments for word in segment.words or ())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of `save("….json")`: dictionaries, lists, texts and numbers."""
        from sottovoce.formats.files import document_of

        return document_of(self)

    def to_dataframe(self) -> pd.DataFrame:
        """Return a pandas table with a row a word, or a segment if words are not timed.

        Columns: text, start, end, language, speaker, probability (of words). Raises: OptionError without
        pandas.
        """
        from sottovoce.formats.files import dataframe_of

        return dataframe_of(self)

    @staticmethod
    def load(path: str | Path) -> Transcript:
        """Read a transcript: JSON, or subtitles (srt, vtt). Raises: OptionError."""
        from sottovoce.formats.files import load_transcript

        return load_transcript(path)

    def save(self, path: str | Path) -> None:
        """Write the transcript in the format of the name's ending; the file appears whole or not at all.

        `.json` keeps everything but the tokens of words, which `.full.json` keeps too. Raises: OptionError.
        """
        from sottovoce.formats.files import save_transcript

        save_transcript(self, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvent:
    """seq, utterance: numbers of the event and of its utterance. source: None: the session has one."""

    seq: int = 0
    utterance: int | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Partial(SessionEvent):
    """Newly committed words, which are never revised."""

    start: float
    end: float
    text: str
    language: str
    words: tuple[Word, ...]
    emission_time: float


@dataclass(frozen=True, slots=True)
class Final(SessionEvent):
    """The end of an utterance, with its whole text.

    allowed_mass: probability of the allowed languages among all of the model; None if the language was given.
    committed: the words of the partials; None without a second pass. is_read: whether text and words are of
    the second pass; otherwise they are the committed ones.
    """

    start: float
    end: float
    text: str
    language: str
    words: tuple[Word, ...]
    emission_time: float
    allowed_mass: float | None = None
    committed: tuple[Word, ...] | None = None
    is_read: bool = False

    @property
    def committed_text(self) -> str:
        words = self.words if self.committed is None else self.committed
        return "".join(word.word for word in words).strip()

    @property
    def is_revised(self) -> bool:
        """Whether the text differs from the committed words."""
        return self.text != self.committed_text


@dataclass(frozen=True, slots=True)
class Unstable(SessionEvent):
    """Text that may still change; only sent if requested."""

    start: float
    end: float
    text: str
    language: str
    emission_time: float


@dataclass(frozen=True, slots=True)
class LanguageChanged(SessionEvent):
    """A confirmed change of language; at: the estimated change point. previous: None at the beginning."""

    previous: str | None
    target: str
    at: float
    confirmed_at: float
    posteriors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpeechStarted(SessionEvent):
    at: float
    emission_time: float


@dataclass(frozen=True, slots=True)
class SpeechEnded(SessionEvent):
    at: float
    emission_time: float


@dataclass(frozen=True, slots=True)
class TurnEnded(SessionEvent):
    """A turn whose speech ended at `at` is over; only sent with an eagerness."""

    at: float
    probability: float
    emission_time: float


Event: TypeAlias = Partial | Final | Unstable | LanguageChanged | SpeechStarted | SpeechEnded | TurnEnded
Task: TypeAlias = Literal["transcribe", "translate"]
