"""Options of voice activity detection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from sottovoce.errors import OptionError
from sottovoce.options.schema import ApiField, Option, check_options
from sottovoce.types import SAMPLE_RATE

WINDOW_SAMPLES = 512
"""Samples of one speech probability (32 ms)."""
_of_recording = partial(Option, group="Speech", prefix="vad_", cli_default=None)
_of_stream = partial(Option, group="Edges")


def ms_to_samples(duration_ms: float) -> float:
    return SAMPLE_RATE * duration_ms / 1000


def exit_threshold(threshold: float, neg_threshold: float | None) -> float:
    return max(threshold - 0.15, 0.01) if neg_threshold is None else neg_threshold


def require_thresholds(threshold: float, neg_threshold: float | None) -> None:
    if not 0 < threshold < 1:
        raise OptionError(f"threshold: expected a probability between 0 and 1, got {threshold}")
    if neg_threshold is not None and not 0 <= neg_threshold <= threshold:
        raise OptionError(f"neg_threshold: expected 0 to threshold ({threshold}), got {neg_threshold}")


@dataclass(frozen=True, slots=True)
class VadOptions:
    """How speech probabilities become segments of a recording; the defaults are faster-whisper's.

    The command line and requests default to `WINDOW_VAD`. Raises: OptionError.
    """

    threshold: float = _of_recording(
        "Probability at which speech begins.",
        unset="0.5",
        least=0.0,
        most=1.0,
        whisper_cpp=ApiField("vad_threshold", least=0.0, most=1.0),
    ).as_field(0.5)
    neg_threshold: float | None = _of_recording(
        "Probability below which speech ends.", unset="threshold - 0.15", least=0.0, most=1.0
    ).as_field(None)
    min_speech_ms: float = _of_recording(
        "Shorter speech is dropped.",
        unset="0",
        least=0.0,
        whisper_cpp=ApiField("vad_min_speech_duration_ms", least=0.0, most=60_000.0),
    ).as_field(0.0)
    min_silence_ms: float = _of_recording(
        "Shorter pauses do not end speech.",
        unset="160",
        least=0.0,
        whisper_cpp=ApiField("vad_min_silence_duration_ms", least=0.0, most=60_000.0),
    ).as_field(2000.0)
    max_speech_s: float = _of_recording(
        "Longer speech is split at a pause.",
        unset="30",
        above=0.0,
        may_be_infinite=True,
        whisper_cpp=ApiField(
            "vad_max_speech_duration_s",
            "longer speech is split at a pause; at most 30 s",
            least=0.0,
            most=3.5e38,
            reads=lambda seconds: min(seconds, 30.0),
        ),
    ).as_field(math.inf)
    """At the longest pause of `min_silence_at_max_speech_ms`, else at the limit."""
    min_silence_at_max_speech_ms: float = _of_recording(
        "Shortest pause at which long speech is split.", unset="98", least=0.0
    ).as_field(98.0)
    speech_pad_ms: float = _of_recording(
        "Padding at both ends of speech.",
        unset="200",
        least=0.0,
        whisper_cpp=ApiField("vad_speech_pad_ms", least=0.0, most=5_000.0),
    ).as_field(400.0)
    """At most to the middle of a pause."""
    overlap_s: float = _of_recording(
        "Overlap with the next piece, after the padding.",
        unset="0",
        least=0.0,
        whisper_cpp=ApiField("vad_samples_overlap", least=0.0, most=5.0),
    ).as_field(0.0)
    """Added at each end; 0.1 in whisper.cpp."""

    def __post_init__(self) -> None:
        require_thresholds(self.threshold, self.neg_threshold)
        check_options(self)
        if not self.max_samples >= WINDOW_SAMPLES:
            raise OptionError(
                f"max_speech_s: expected more than the padding and two windows "
                f"({2 * self.speech_pad_ms / 1000 + 0.064:.3f} s), got {self.max_speech_s}"
            )

    @property
    def exit_threshold(self) -> float:
        return exit_threshold(self.threshold, self.neg_threshold)

    @property
    def max_samples(self) -> float:
        return SAMPLE_RATE * self.max_speech_s - WINDOW_SAMPLES - 2 * ms_to_samples(self.speech_pad_ms)


WINDOW_VAD = VadOptions(min_silence_ms=160.0, max_speech_s=30.0, speech_pad_ms=200.0)
"""Speech in pieces that fit a window, as in faster-whisper's batched pipeline, which pads with 400 ms
(docs/research/files.md).
"""


@dataclass(frozen=True, slots=True)
class VadStreamOptions:
    """How speech probabilities become starts and ends of speech in a stream.

    threshold, neg_threshold: as in `VadOptions`. Raises: OptionError.
    """

    threshold: float = 0.5
    neg_threshold: float | None = None
    onset_ms: float = _of_stream("Shorter speech is ignored.", least=0.0).as_field(64.0)
    hangover_ms: float = _of_stream("Silence that ends speech.", least=0.0).as_field(500.0)
    pre_roll_ms: float = _of_stream(
        "Audio included before the detected start of speech.", least=0.0
    ).as_field(300.0)
    post_roll_ms: float = _of_stream(
        "The end is set so much after the last window of speech.", group="", flag=None, least=0.0
    ).as_field(100.0)

    def __post_init__(self) -> None:
        require_thresholds(self.threshold, self.neg_threshold)
        check_options(self)
        if self.post_roll_ms > self.hangover_ms:
            raise OptionError(
                f"post_roll_ms: expected at most hangover_ms ({self.hangover_ms}), got {self.post_roll_ms}"
            )

    @property
    def exit_threshold(self) -> float:
        return exit_threshold(self.threshold, self.neg_threshold)
