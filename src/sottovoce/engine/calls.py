"""Model calls, the generators that yield them, and tasks that drive generators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

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
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, eq=False)
class EncodeCall:
    """Encode windows of one length, at most the model's.

    Result: `EncoderOutput` with a row for each window.
    """

    features: Features


@dataclass(frozen=True, slots=True, eq=False)
class IncrementalEncodeCall:
    """Encode windows of growing audio.

    Result: `IncrementalResult` for each window, as of `Backend.encode_incremental`.
    """

    windows: Sequence[IncrementalWindow]


@dataclass(frozen=True, slots=True, eq=False)
class LanguageProbeCall:
    """Detect the language of stretches of speech, encoded separately.

    log_mels: un-normalised log-mel frames (n_mels, n_i) of each stretch.

    Result: `ProbedLanguage` for each stretch, as of `LanguageProbe.detect`.
    """

    probe: LanguageProbe
    log_mels: Sequence[Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class SpanProbeCall:
    """Detect the language of spans of frames [start, end) of one encoded window (a batch of 1).

    Result: `ProbedLanguage` for each span, as of `LanguageProbe.detect_spans`.
    """

    probe: LanguageProbe
    encoded: EncoderOutput
    spans: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class DetectLanguageCall:
    """Detect the language of whole windows among those allowed; empty: all of the model.

    Result: `LanguageDetection` for each window, as of `detect_language`.
    """

    tokenizer: Tokenizer
    encoded: EncoderOutput
    allowed: Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class DecodeCall:
    """Decode windows with temperature fallback.

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
    """Align the words of each window.

    Result: a list of `TimedWord` for each window, as of `align_windows`.
    """

    encoded: EncoderOutput
    texts: Sequence[WindowText]


@dataclass(frozen=True, slots=True, eq=False)
class HostCall:
    """Run other slow work, such as a diarizer's network; the result is its return value."""

    do: Callable[[], Any]


@dataclass(frozen=True, slots=True, eq=False)
class OtherModelCall(HostCall):
    """Run calls of another model; `do` runs them here, one by one.

    calls: for the executor of that model, if there is one, instead of `do`.
    """

    calls: CallGenerator[Any]


class ContinuousBatch(Protocol):
    """Requests that are decoded together; they join before any step and leave once they are done."""

    @property
    def n_requests(self) -> int: ...

    def admit(self, decoder: Any, encoded: EncoderOutput, request: Any, /) -> int:
        """Add a request of a decoder over one window (a batch of 1); return a ticket for its result."""
        ...

    def step(self) -> Sequence[tuple[int, Any]]:
        """Decode one step; return the finished results with their tickets.

        After an error, none of the requests can continue.
        """
        ...


class ContinuousDecoder(Protocol):
    @property
    def batch_key(self) -> Hashable:
        """Requests of decoders with equal keys may share a batch."""
        ...

    def new_batch(self) -> ContinuousBatch: ...

    def decode(self, encoded: Sequence[EncoderOutput], requests: Sequence[Any], /) -> Sequence[Any]:
        """Decode requests, each over its own window, in a batch of their own; return a result for each."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class AlignAttCall:
    """Continue decoding from prefixes until the attention reaches the end of the audio.

    encoded: the window of each request, a batch of 1.

    Result: `streaming.hypothesis.AlignAttHypothesis` for each request, as of `decoder.decode`.
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
"""Yields calls, receives their results, and returns its own result."""


class Priority(IntEnum):
    """Live sessions have priority over recordings."""

    LIVE = 0
    FILE = 1


class Task(Generic[Result]):
    """Drives one generator.

    deadline_s: on any clock; earlier ones first. began_s: on the executor's clock, at its first call; nan
    before.
    """

    def __init__(
        self,
        calls: CallGenerator[Result],
        deadline_s: float,
        on_end: Callable[[Task[Result]], None] | None,
        priority: Priority = Priority.LIVE,
    ) -> None:
        self.priority = priority
        self.deadline_s = deadline_s
        self.number = next(_numbers)
        self.began_s = math.nan
        self.call: ModelCall | None = None
        """The call to execute; None before the first and after the last."""
        self.n_passed = 0
        """Batches of others that were done while it waited for this call."""
        self.is_done = False
        self.error: Exception | None = None
        self._calls = calls
        self._on_end = on_end
        self._result: Result | None = None

    @property
    def result(self) -> Result:
        """The return value of the generator; raises the exception that ended it."""
        assert self.is_done
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]

    @property
    def order(self) -> tuple[float, int]:
        return self.deadline_s, self.number

    def begin(self) -> None:
        self.answer(None)

    def answer(self, result: Any) -> None:
        self._go_on(lambda: self._calls.send(result))

    def fail(self, error: Exception) -> None:
        self._go_on(lambda: self._calls.throw(error))

    def close(self) -> None:
        self._calls.close()

    def _go_on(self, resume: Callable[[], ModelCall]) -> None:
        self.call = None
        try:
            self.call = resume()
        except StopIteration as end:
            self._result = end.value
            self._end()
        except Exception as failure:  # whatever it is, it belongs to this task alone
            self.error = failure
            self._end()

    def _end(self) -> None:
        self.is_done = True
        if self._on_end is not None:
            self._on_end(self)


class CallRelay(Generic[Result]):
    """Drives a generator up to each call of another model, in the current executor.

    is_over: called before every call; once it is true, the rest is skipped.
    """

    def __init__(self, calls: CallGenerator[Result], is_over: Callable[[], bool]) -> None:
        self._calls = calls
        self._is_over = is_over
        self._result: Any = None
        self._failure: Exception | None = None

    def until_other(self) -> CallGenerator[Result | OtherModelCall | None]:
        """Yield the calls up to one of another model, and return that; at the end, the generator's result.

        None: it was stopped. Exceptions of the generator are raised.
        """
        while not self._is_over():
            try:
                call = self._go_on()
            except StopIteration as end:
                result: Result = end.value
                return result
            if isinstance(call, OtherModelCall):
                return call
            try:
                self._result = yield call
            except Exception as error:
                self._failure = error
        self._calls.close()
        return None

    def answer(self, result: object) -> None:
        self._result = result

    def fail(self, error: Exception) -> None:
        self._failure = error

    def _go_on(self) -> Any:
        result, failure = self._result, self._failure
        self._result = self._failure = None
        return self._calls.send(result) if failure is None else self._calls.throw(failure)
