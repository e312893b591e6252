"""The model as a function: sessions and transcriptions call a `Runtime`, which runs the calls.

`DirectRuntime` runs each call at once, in the thread of the caller. `batching.BatchingRuntime` runs the
calls of many threads together, with the same results:

    runtime = DirectRuntime(model.backend)
    encoded = runtime.encode(features)
    (attempt,) = runtime.decode(tokenizer, encoded, [options], fallback)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from sottovoce.decoding.alignment import TimedWord, WindowText, align_stepwise
from sottovoce.decoding.decode import Attempt, DecodingResult, WindowDecoder, decode_with_fallback
from sottovoce.decoding.detect import LanguageDetection, detect_language
from sottovoce.decoding.search import Fusion
from sottovoce.language.probe import LanguageProbe, ProbedLanguage, detect_together
from sottovoce.models.backend import Backend, IncrementalResult, IncrementalWindow
from sottovoce.options.decoding import DecodingOptions, FallbackOptions, shared_options
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.threads import all_torch_threads, one_torch_thread
from sottovoce.types import EncoderOutput, Features, Stepwise, finish

if TYPE_CHECKING:
    from typing_extensions import Self

Result = TypeVar("Result")
Request = TypeVar("Request")
RequestOf = TypeVar("RequestOf", contravariant=True)
DecoderOf = TypeVar("DecoderOf", contravariant=True)
Outcome = TypeVar("Outcome", covariant=True)


class ModelCall(ABC, Generic[Outcome]):
    """One call of a model, with its arguments."""

    __slots__ = ()

    @property
    def n_windows(self) -> int:
        """Number of windows whose decoder rows the call needs at the same time."""
        return 0

    @property
    def batch_key(self) -> Hashable:
        """Calls of one class with equal keys may share a batch; None: it has none."""
        return None

    @classmethod
    def run(cls, backend: Backend, calls: Sequence[Self]) -> Stepwise[Sequence[Outcome]]:
        """Run calls with equal keys as one batch; yields before each decoder pass."""
        return [call.run_alone(backend) for call in calls]
        yield

    @abstractmethod
    def run_alone(self, backend: Backend) -> Outcome: ...


class BatchedCall(ModelCall[Outcome]):
    """A call that may share a batch."""

    __slots__ = ()

    def run_alone(self, backend: Backend) -> Outcome:
        (result,) = finish(self.run(backend, [self]))
        return result


@dataclass(frozen=True, slots=True, eq=False)
class EncodeCall(BatchedCall[EncoderOutput]):
    """See `Runtime.encode`."""

    features: Features

    @property
    def batch_key(self) -> Hashable:
        return self.features.mel.shape[-1]

    @classmethod
    def run(cls, backend: Backend, calls: Sequence[Self]) -> Stepwise[Sequence[EncoderOutput]]:
        if len(calls) == 1:
            return [backend.encode(calls[0].features)]
        mel = torch.cat([call.features.mel for call in calls])
        content = tuple(n for call in calls for n in call.features.n_content_frames)
        encoded = backend.encode(Features(mel, content))
        results = []
        at = 0
        for call in calls:
            n_windows = len(call.features.n_content_frames)
            results.append(encoded.rows(range(at, at + n_windows)))
            at += n_windows
        return results
        yield


@dataclass(frozen=True, slots=True, eq=False)
class IncrementalEncodeCall(BatchedCall[list[IncrementalResult]]):
    """See `Runtime.encode_incremental`."""

    windows: Sequence[IncrementalWindow]

    @classmethod
    def run(cls, backend: Backend, calls: Sequence[Self]) -> Stepwise[Sequence[list[IncrementalResult]]]:
        results = iter(backend.encode_incremental([window for call in calls for window in call.windows]))
        return [list(islice(results, len(call.windows))) for call in calls]
        yield


@dataclass(frozen=True, slots=True, eq=False)
class LanguageProbeCall(BatchedCall[list[ProbedLanguage]]):
    """See `Runtime.probe_languages`."""

    probe: LanguageProbe
    log_mels: Sequence[Tensor]

    @property
    def n_windows(self) -> int:
        return len(self.log_mels)

    @property
    def batch_key(self) -> Hashable:
        return self.probe.batch_of(self.log_mels)

    @classmethod
    def run(cls, backend: Backend, calls: Sequence[Self]) -> Stepwise[Sequence[list[ProbedLanguage]]]:
        return detect_together([(call.probe, call.log_mels) for call in calls])
        yield


@dataclass(frozen=True, slots=True, eq=False)
class SpanProbeCall(ModelCall[list[ProbedLanguage]]):
    """See `Runtime.probe_spans`."""

    probe: LanguageProbe
    encoded: EncoderOutput
    spans: Sequence[tuple[int, int]]

    @property
    def n_windows(self) -> int:
        return 1

    def run_alone(self, backend: Backend) -> list[ProbedLanguage]:
        return self.probe.detect_spans(self.encoded, self.spans)


@dataclass(frozen=True, slots=True, eq=False)
class DetectLanguageCall(ModelCall[list[LanguageDetection]]):
    """See `Runtime.detect_language`."""

    tokenizer: Tokenizer
    encoded: EncoderOutput
    allowed: Sequence[str]

    @property
    def n_windows(self) -> int:
        return self.encoded.batch_size

    def run_alone(self, backend: Backend) -> list[LanguageDetection]:
        return detect_language(backend, self.tokenizer, self.encoded, allowed=self.allowed)


@dataclass(frozen=True, slots=True, eq=False)
class AlignWordsCall(BatchedCall[list[list[TimedWord]]]):
    """See `Runtime.align_words`."""

    encoded: EncoderOutput
    texts: Sequence[WindowText]

    @property
    def n_windows(self) -> int:
        return self.encoded.batch_size

    @property
    def batch_key(self) -> Hashable:
        return self.encoded.n_frames

    @classmethod
    def run(cls, backend: Backend, calls: Sequence[Self]) -> Stepwise[Sequence[list[list[TimedWord]]]]:
        encoded = EncoderOutput.joined([call.encoded for call in calls])
        found = yield from align_stepwise(backend, encoded, [text for call in calls for text in call.texts])
        words = iter(found)
        return [list(islice(words, len(call.texts))) for call in calls]


@dataclass(frozen=True, slots=True, eq=False)
class RunOnHost(ModelCall[Result]):
    """See `Runtime.run_on_host`."""

    work: Callable[[], Result]

    def run_alone(self, backend: Backend) -> Result:
        with all_torch_threads():
            return self.work()


class ContinuousBatch(Protocol[DecoderOf, RequestOf, Outcome]):
    """Requests that are decoded together; they join before any step."""

    @property
    def n_requests(self) -> int: ...

    def has_room(self, n_windows: int, /) -> bool:
        """Return whether so many more windows fit into the memory of rows."""
        ...

    def admit(self, decoder: DecoderOf, encoded: EncoderOutput, request: RequestOf, /) -> int:
        """Add a request of a decoder over encoded windows; return a ticket for its result."""
        ...

    def step(self) -> Sequence[tuple[int, Outcome]]:
        """Decode one step; return the finished results with their tickets.

        After an error, none of the requests can continue.
        """
        ...


class ContinuousDecoder(Protocol[RequestOf, Outcome]):
    """Decodes requests step by step: `decode.WindowDecoder`, `streaming.alignatt.AlignAttDecoder`."""

    @property
    def batch_key(self) -> Hashable:
        """Requests of decoders with equal keys may share a batch."""
        ...

    def new_batch(self) -> ContinuousBatch[Self, RequestOf, Outcome]: ...


@dataclass(frozen=True, slots=True, eq=False)
class ContinuousDecodeCall(ModelCall[Sequence[Result]], Generic[Request, Result]):
    """See `Runtime.decode_continuously`."""

    decoder: ContinuousDecoder[Request, Result]
    encoded: Sequence[EncoderOutput]
    requests: Sequence[Request]

    @property
    def n_windows(self) -> int:
        return sum(one.batch_size for one in self.encoded)

    def run_alone(self, backend: Backend) -> Sequence[Result]:
        batch = self.decoder.new_batch()
        tickets = self.admit_to(batch)
        results: dict[int, Result] = {}
        while batch.n_requests:
            results.update(batch.step())
        return [results[ticket] for ticket in tickets]

    def admit_to(
        self, batch: ContinuousBatch[ContinuousDecoder[Request, Result], Request, Result]
    ) -> list[int]:
        """Add all requests to a batch; return their tickets."""
        pairs = zip(self.encoded, self.requests, strict=True)
        return [batch.admit(self.decoder, encoded, request) for encoded, request in pairs]


class Runtime(ABC):
    """A model that is called like a function; results do not depend on other callers."""

    backend: Backend

    @abstractmethod
    def execute(self, call: ModelCall[Result]) -> Result:
        """Run a call and return its result; blocks until then."""

    @abstractmethod
    def torch_threads(self) -> AbstractContextManager[None]:
        """Return the context in which callers run PyTorch's operators between calls."""

    def encode(self, features: Features) -> EncoderOutput:
        """Encode windows of one length, at most the model's."""
        return self.execute(EncodeCall(features))

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        """Encode windows of growing audio, as `Backend.encode_incremental`."""
        return self.execute(IncrementalEncodeCall(windows))

    def probe_languages(self, probe: LanguageProbe, log_mels: Sequence[Tensor]) -> list[ProbedLanguage]:
        """Detect the language of stretches of speech, encoded separately, as `LanguageProbe.detect`.

        log_mels: un-normalised log-mel frames (n_mels, n_i) of each stretch.
        """
        return self.execute(LanguageProbeCall(probe, log_mels))

    def probe_spans(
        self, probe: LanguageProbe, encoded: EncoderOutput, spans: Sequence[tuple[int, int]]
    ) -> list[ProbedLanguage]:
        """Detect the language of spans of frames [start, end) of one encoded window (a batch of 1)."""
        return self.execute(SpanProbeCall(probe, encoded, spans))

    def detect_language(
        self, tokenizer: Tokenizer, encoded: EncoderOutput, allowed: Sequence[str]
    ) -> list[LanguageDetection]:
        """Detect the language of each window among those allowed (none: all of the model)."""
        return self.execute(DetectLanguageCall(tokenizer, encoded, allowed))

    def decode(
        self,
        tokenizer: Tokenizer,
        encoded: EncoderOutput,
        options: Sequence[DecodingOptions],
        fallback: FallbackOptions,
        *,
        divisible: Sequence[bool] | None = None,
        fusion: Fusion | None = None,
    ) -> list[Attempt]:
        """Decode each window with temperature fallback, as `decode_with_fallback`."""

        def decode_once(
            windows: EncoderOutput, chosen: Sequence[DecodingOptions]
        ) -> Sequence[DecodingResult]:
            decoder = WindowDecoder(self.backend, tokenizer, shared_options(chosen), fusion)
            return self.decode_continuously(decoder, [windows], [chosen])[0]

        return decode_with_fallback(decode_once, encoded, options, fallback, divisible)

    def align_words(self, encoded: EncoderOutput, texts: Sequence[WindowText]) -> list[list[TimedWord]]:
        """Align the words of each window, as `align_windows`."""
        return self.execute(AlignWordsCall(encoded, texts))

    def decode_continuously(
        self,
        decoder: ContinuousDecoder[Request, Result],
        encoded: Sequence[EncoderOutput],
        requests: Sequence[Request],
    ) -> Sequence[Result]:
        """Decode requests, each over its own encoded windows; return a result for each."""
        return self.execute(ContinuousDecodeCall(decoder, encoded, requests))

    def run_on_host(self, work: Callable[[], Result]) -> Result:
        """Run other slow work in turn with the calls of the model."""
        return self.execute(RunOnHost(work))


@dataclass(frozen=True, slots=True)
class DirectRuntime(Runtime):
    """Runs each call at once, in the calling thread. Use it in one thread at a time."""

    backend: Backend

    def execute(self, call: ModelCall[Result]) -> Result:
        with self.torch_threads():
            return call.run_alone(self.backend)

    def torch_threads(self) -> AbstractContextManager[None]:
        return torch_threads_of(self.backend)


@dataclass(frozen=True, slots=True)
class ObservedRuntime(Runtime):
    """Another runtime, with functions that are called around each call.

    before: may raise an error. after: not called if the call fails.
    """

    inner: Runtime
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None

    @property
    def backend(self) -> Backend:  # type: ignore[override]
        return self.inner.backend

    def execute(self, call: ModelCall[Result]) -> Result:
        if self.before is not None:
            self.before()
        result = self.inner.execute(call)
        if self.after is not None:
            self.after()
        return result

    def torch_threads(self) -> AbstractContextManager[None]:
        return self.inner.torch_threads()


def torch_threads_of(backend: Backend) -> AbstractContextManager[None]:
    """Return the context that sets the number of PyTorch's threads for a backend."""
    return one_torch_thread() if backend.own_threads else all_torch_threads()
