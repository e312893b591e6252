"""What sessions and transcriptions ask of a model.

They do not call it: each is a generator of calls, `result = yield EncodeCall(features)`. An executor
(`executor`, `batching`) does a call, alone or in one batch with the calls of others, and sends back its
result, or throws what it failed with.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from torch import Tensor

from sottovoce.backends.base import IncrementalWindow
from sottovoce.decoding.alignment import WindowText
from sottovoce.decoding.search import Fusion
from sottovoce.language.probe import LanguageProbe
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput, Features

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class EncodeCall:
    """Encode windows of one length, at most the model's.

    Result: `EncoderOutput` with a row for each window.
    """

    features: Features


@dataclass(frozen=True, slots=True, eq=False)
class IncrementalEncodeCall:
    """Encode windows of audio that grows.

    Result: `IncrementalResult` for each window, as of `Backend.encode_incremental`.
    """

    windows: Sequence[IncrementalWindow]


@dataclass(frozen=True, slots=True, eq=False)
class LanguageProbeCall:
    """Name the language of stretches of speech, each encoded by itself.

    log_mels: un-normalised log-mel frames (n_mels, n_i) of each stretch.
    Result: `ProbedLanguage` for each stretch, as of `LanguageProbe.detect`.
    """

    probe: LanguageProbe
    log_mels: Sequence[Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class SpanProbeCall:
    """Name the language of spans of frames [start, end) of one encoded window (a batch of 1).

    Result: `ProbedLanguage` for each span, as of `LanguageProbe.detect_spans`.
    """

    probe: LanguageProbe
    encoded: EncoderOutput
    spans: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class DetectLanguageCall:
    """Name the language of whole windows, among those allowed; empty: all of the model.

    Result: `LanguageDetection` for each window, as of `detect_language`.
    """

    tokenizer: Tokenizer
    encoded: EncoderOutput
    allowed: Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class DecodeCall:
    """Decode windows, those whose text looks wrong again at higher temperatures.

    options: of each window. divisible: of each window, see `decode_with_fallback`.
    Result: `Attempt` for each window.
    """

    tokenizer: Tokenizer
    encoded: EncoderOutput
    options: Sequence[DecodingOptions]
    fallback: FallbackOptions
    divisible: Sequence[bool]
    fusion: Fusion[Tensor] | None


@dataclass(frozen=True, slots=True, eq=False)
class WordAlignCall:
    """Time the words of the text of each window.

    Result: a list of `TimedWord` for each window, as of `align_windows`.
    """

    encoded: EncoderOutput
    texts: Sequence[WindowText]


@dataclass(frozen=True, slots=True, eq=False)
class HostCall:
    """Call something else than the model that takes its time, such as a diarizer's network.

    Result: what it returns.
    """

    do: Callable[[], Any]


@dataclass(frozen=True, slots=True, eq=False)
class OtherModelCall(HostCall):
    """Have calls of another model done; `do` does them here, one after the other.

    calls: for whoever has an executor of that model, which then does them instead of `do`.
    """

    calls: CallGenerator[Any]


class ContinuousBatch(Protocol):
    """Requests that are decoded together; they join before any step and leave once they are done."""

    @property
    def n_requests(self) -> int:
        """Requests that are not done."""
        ...

    def admit(self, decoder: Any, encoded: EncoderOutput, request: Any, /) -> int:
        """Add a request of a decoder over one window (a batch of 1); return a ticket for its result."""
        ...

    def step(self) -> Sequence[tuple[int, Any]]:
        """Decode on by a step; return the results that are complete, each with its ticket.

        Where it fails, none of the requests can go on.
        """
        ...


class ContinuousDecoder(Protocol):
    """A decoder whose requests join a running batch."""

    @property
    def batch_key(self) -> Hashable:
        """Requests of decoders with equal keys may share a batch."""
        ...

    def new_batch(self) -> ContinuousBatch:
        """Make a batch without requests."""
        ...

    def decode(self, encoded: Sequence[EncoderOutput], requests: Sequence[Any], /) -> Sequence[Any]:
        """Decode requests, each over its own window, in a batch of their own; return a result for each."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class AlignAttCall:
    """Decode on from prefixes until the attention reaches the end of the audio.

    encoded: the window of each request, a batch of 1.
    Result: one for each request, as of `decoder.decode`: `streaming.hypothesis.AlignAttHypothesis`.
    """

    decoder: ContinuousDecoder
    encoded: Sequence[EncoderOutput]
    requests: Sequence[Any]


ModelCall: TypeAlias = (
    EncodeCall
    | IncrementalEncodeCall
    | LanguageProbeCall
    | SpanProbeCall
    | DetectLanguageCall
    | DecodeCall
    | WordAlignCall
    | AlignAttCall
    | HostCall
)
CallGenerator: TypeAlias = Generator[ModelCall, Any, Result]
"""Yields calls, is sent the result of each, and returns its own."""
