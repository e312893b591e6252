"""Data that the packages exchange: audio, features, hypotheses, words, segments, events.

Times are seconds in the recording or stream (float) unless a name says otherwise;
audio is mono float32 in [-1, 1] at 16 kHz. This module knows no model and no file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:  # only annotations need them, and `--help` need not wait
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

SAMPLE_RATE = 16_000
HOP_SAMPLES = 160
"""Samples from one log-mel frame to the next (10 ms)."""
FRAMES_PER_SECOND = 50
"""Encoder frames a second (20 ms each: the second convolution halves the log-mel rate)."""

Samples: TypeAlias = "npt.NDArray[np.float32]"
"""Audio (n,) float32, mono, in [-1, 1], at 16 kHz."""
_FILES = "sottovoce.formats.files"
"""Imported when a transcript is read or written: this module stands below the file formats."""


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """A piece of a recording: samples (n,) float32 mono 16 kHz, and where it begins."""

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
    """Normalised log-mel windows: mel (B, n_mels, n_frames) float32; content frames of each row."""

    mel: Tensor
    n_content_frames: tuple[int, ...]


@dataclass(slots=True, eq=False)
class EncoderOutput:
    """Encoder states of a batch of windows, owner of the cross-attention keys and values.

    states: (B, n_frames, d), 50 frames a second.
    n_content_frames: frames of each row that hold audio rather than padding.
    cross_kv: one (keys, values) pair a decoder layer, each (B, n_head, n_frames, d_head); filled once
        by the backend at the first use, and shared by every decoder and probe over these states.
    log_weights: (B, n_frames) float32, added to every attention to a frame that stands for several (of
        padding); None where each stands for itself.
    """

    states: Tensor
    n_content_frames: tuple[int, ...]
    cross_kv: list[tuple[Tensor, Tensor]] | None = field(default=None, repr=False)
    log_weights: Tensor | None = field(default=None, repr=False)

    @property
    def batch_size(self) -> int:
        return int(self.states.shape[0])

    @property
    def n_frames(self) -> int:
        return int(self.states.shape[1])

    def row(self, index: int) -> EncoderOutput:
        """Return one window of the batch, over the same memory."""
        return self.rows(index, index + 1)

    def rows(self, first: int, last: int) -> EncoderOutput:
        """Return windows [first, last) of the batch, over the same memory."""
        if (first, last) == (0, self.batch_size):
            return self
        some = slice(first, last)
        cross_kv = self.cross_kv and [(keys[some], values[some]) for keys, values in self.cross_kv]
        weights = None if self.log_weights is None else self.log_weights[some]
        return EncoderOutput(self.states[some], self.n_content_frames[some], cross_kv, weights)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The output of one decoder step.

    logits: (R, n_positions, n_rows) float32 over the asked positions and vocabulary rows.
    attention: (R, n_captured_heads, n_new, n_frames) cross-attention probabilities (softmax over
        frames), or None when no head was captured.
    """

    logits: Tensor
    attention: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Emissions:
    """CTC output: log_probs (B, T, V) float32, normalised over V; lengths (B,) valid frames."""

    log_probs: Tensor
    lengths: Tensor


@dataclass(frozen=True, slots=True)
class Token:
    """A text token as aligned: times in seconds, probability; its text has U+FFFD where it ends inside a
    character."""

    id: int
    text: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True, slots=True)
class Word:
    """A word as written (leading space included where the language has one), seconds, probability.

    tokens: the text tokens that spell it; () where they were not computed. They take no part in comparisons.
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
    """A hypothesis of an utterance, as a search ranked it.

    tokens: ids without blanks or repeats. score: natural log, what the search ranked by; acoustic_score and
    lm_score: its two parts. words, token_frames: filled by searches that compute times. posterior: its share
    of the probability of all hypotheses of the final beam; None after a greedy search. is_unfinished: it ends
    inside a word of the lexicon, because no hypothesis at the end of a word survived; its last word is
    spelled as far as its tokens go.
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

    tokens: text ids and timestamps. avg_logprob: mean natural log-probability of the tokens and the
    end. compression_ratio: bytes over zlib bytes of the text. no_speech_prob: at the SOT position.
    translation: the text in another language, where one was asked for.
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


@dataclass(frozen=True, slots=True)
class Turn:
    """Seconds in which a speaker speaks; turns of different speakers may overlap."""

    start: float
    end: float
    speaker: str


Span: TypeAlias = tuple[float, float]
"""Seconds: start and end."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A whole recording: what writers receive.

    language: spoken most; "" where there is no speech. language_probability: of the language as it was
    detected, among those allowed; None where it was given. language_probabilities: of all of the model.
    turns: who speaks when, where that was asked for. unread: speech of which no words were found; None where
    nobody looked for it. token_texts: what the ids in the segments stand for,
    where that is known; a transcript is the same transcript without them.
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

    @classmethod
    def load(cls, path: str | Path) -> Transcript:
        """Read a transcript that `save` or another program wrote: JSON, or subtitles (srt, vtt).

        Raises: OptionError naming the file, what was expected, and the line of subtitles that cannot be read.
        """
        found: Transcript = import_module(_FILES).load_transcript(path)
        return found

    def save(self, path: str | Path) -> None:
        """Write the document whose format the ending of the name tells; it appears whole or not at all.

        `.json` keeps everything but the single tokens of words, which `.full.json` keeps too.
        Raises: OptionError for an ending that no format has, and where nothing can be written.
        """
        import_module(_FILES).save_transcript(self, path)


@dataclass(frozen=True, slots=True)
class Partial:
    """Newly committed words: never taken back.

    seq: counts the events of a session, as in every event. utterance: counts the utterances; the partials of
    one and its final share it, and so do `SpeechStarted` and `SpeechEnded` around them.
    """

    start: float
    end: float
    text: str
    language: str
    words: tuple[Word, ...]
    emission_time: float
    seq: int = 0
    utterance: int | None = None


@dataclass(frozen=True, slots=True)
class Final:
    """The end of an utterance, with its whole text.

    allowed_mass: what the allowed languages had among all of the model; low where another was spoken. None
    where the language was given.
    """

    start: float
    end: float
    text: str
    language: str
    words: tuple[Word, ...]
    emission_time: float
    allowed_mass: float | None = None
    seq: int = 0
    utterance: int | None = None


@dataclass(frozen=True, slots=True)
class Unstable:
    """Text that may still change; sent only when asked for."""

    start: float
    end: float
    text: str
    language: str
    emission_time: float
    seq: int = 0
    utterance: int | None = None


@dataclass(frozen=True, slots=True)
class LanguageChanged:
    """A confirmed switch of language at the estimated change point `at`."""

    source: str | None
    target: str
    at: float
    confirmed_at: float
    posteriors: Mapping[str, float] = field(default_factory=dict)
    seq: int = 0
    utterance: int | None = None


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Speech begins at `at` seconds."""

    at: float
    emission_time: float
    seq: int = 0
    utterance: int | None = None


@dataclass(frozen=True, slots=True)
class SpeechEnded:
    """Speech ended at `at` seconds."""

    at: float
    emission_time: float
    seq: int = 0
    utterance: int | None = None


Event: TypeAlias = Partial | Final | Unstable | LanguageChanged | SpeechStarted | SpeechEnded
Task: TypeAlias = Literal["transcribe", "translate"]
