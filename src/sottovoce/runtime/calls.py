"""The model as a function: sessions and transcriptions give requests to a `Runtime`, and wait for the result.

A request is a call of the model, or a generator of calls that need one another:

    def spoken_language(features: Features) -> Steps[str]:
        encoded = yield from EncodeCall(features)
        (detection,) = yield from DetectLanguageCall(tokenizer, encoded, ())
        return detection.language

    runtime = DirectRuntime(model.backend)
    language = runtime.run(spoken_language(features))

`DirectRuntime` runs the calls one by one, in the thread of the caller. `batching.BatchingRuntime` runs those
of many threads together, with the same results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from sottovoce.audio.vad import SpeechEdge, VadStream
from sottovoce.decoding.alignment import TimedWord, WindowText, align_stepwise
from sottovoce.decoding.decode import (
    Attempt,
    DecodingResult,
    LanguageDetection,
    WindowDecoder,
    detect_language,
    likeliest_result,
    mix_seed,
)
from sottovoce.decoding.search import Fusion
from sottovoce.language.probe import LanguageProbe, ProbedLanguage, detect_together
from sottovoce.models.backend import Backend, EncoderOutput, IncrementalResult, IncrementalWindow
from sottovoce.models.devices import Device
from sottovoce.options.decoding import DecodingOptions, FallbackOptions, shared_options
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.threads import all_torch_threads, one_torch_thread
from sottovoce.types import Features, Floats, Samples, Stepwise

if TYPE_CHECKING:
    from typing_extensions import Self

    from sottovoce.ctc.network import AcousticModel

Result = TypeVar("Result")
Input = TypeVar("Input")
Given = TypeVar("Given")
InputOf = TypeVar("InputOf", contravariant=True)
DecoderOf = TypeVar("DecoderOf", contravariant=True)
Outcome = TypeVar("Outcome", covariant=True)
Steps: TypeAlias = Generator["ModelCall[object]", object, Result]
"""Yields calls of the model, is sent their results, and returns its own."""


class Request(Protocol[Outcome]):
    """A call, or the `Steps` of several."""

    def __iter__(self) -> Steps[Outcome]: ...


class CallBatch(Protocol[Outcome]):
    """Calls that run together, step by step."""

    @property
    def n_requests(self) -> int: ...

    def has_room(self, n_windows: int, /) -> bool:
        """Return whether a call of so many windows may join now."""
        ...

    def step(self) -> Sequence[tuple[int, Outcome]]:
        """Run one decoder pass at most; return the finished results with their tickets.

        After an error, none of the calls can continue.
        """
        ...


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

    def __iter__(self) -> Steps[Outcome]:
        return cast(Outcome, (yield self))

    def new_batch(self, backend: Backend) -> CallBatch[Outcome]:
        return CallsTogether(backend)

    def join(self, batch: CallBatch[object]) -> int:
        """Join a batch of calls of this class and key; return the ticket of the result."""
        return cast("CallsTogether[Outcome]", batch).admit(self)

    def run_alone(self, backend: Backend) -> Outcome:
        batch = self.new_batch(backend)
        self.join(batch)
        while True:
            for _, result in batch.step():
                return result

    @classmethod
    def compute(cls, backend: Backend, calls: Sequence[Self]) -> Sequence[Outcome]:
        """Compute calls with equal keys; one that has no key, alone."""
        raise NotImplementedError

    @classmethod
    def compute_stepwise(cls, backend: Backend, calls: Sequence[Self]) -> Stepwise[Sequence[Outcome]]:
        """Compute calls as `compute` does; yields before each decoder pass."""
        return cls.compute(backend, calls)
        yield


class CallsTogether(Generic[Result]):
    """A batch of calls that begin and end together."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._calls: list[ModelCall[Result]] = []
        self._steps: Stepwise[Sequence[Result]] | None = None

    @property
    def n_requests(self) -> int:
        return len(self._calls)

    def has_room(self, n_windows: int) -> bool:
        return self._steps is None

    def admit(self, call: ModelCall[Result]) -> int:
        self._calls.append(call)
        return len(self._calls) - 1

    def step(self) -> Sequence[tuple[int, Result]]:
        if self._steps is None:
            self._steps = type(self._calls[0]).compute_stepwise(self._backend, self._calls)
        try:
            next(self._steps)
        except StopIteration as end:
            self._calls = []
            return list(enumerate(end.value))
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class EncodeCall(ModelCall[EncoderOutput]):
    """Encode windows of one length, at most the model's."""

    features: Features

    @property
    def batch_key(self) -> Hashable:
        return self.features.mel.shape[-1]

    @classmethod
    def compute(cls, backend: Backend, calls: Sequence[Self]) -> Sequence[EncoderOutput]:
        if len(calls) == 1:
            return [backend.encode(calls[0].features)]
        mel = np.concatenate([call.features.mel for call in calls])
        content = tuple(n for call in calls for n in call.features.n_content_frames)
        encoded, rows = backend.encode(Features(mel, content)), iter(range(len(content)))
        return [encoded.rows([*islice(rows, len(call.features.n_content_frames))]) for call in calls]


@dataclass(frozen=True, slots=True, eq=False)
class SpeechCall(ModelCall[list[SpeechEdge]]):
    """Detect where speech starts and ends in the next samples (n,) of a stream, which were checked."""

    stream: VadStream
    samples: Samples

    @property
    def batch_key(self) -> Hashable:
        return id(self.stream.model)

    @classmethod
    def compute(cls, backend: Backend, calls: Sequence[Self]) -> Sequence[list[SpeechEdge]]:
        return VadStream.push_together([(call.stream, call.samples) for call in calls])


@dataclass(frozen=True, slots=True, eq=False)
class IncrementalEncodeCall(ModelCall[list[IncrementalResult]]):
    """Encode windows of growing audio, as `Backend.encode_incremental`."""

    windows: Sequence[IncrementalWindow]

    @property
    def batch_key(self) -> Hashable:
        return "any"

    @classmethod
    def compute(cls, backend: Backend, calls: Sequence[Self]) -> Sequence[list[IncrementalResult]]:
        results = iter(backend.encode_incremental([window for call in calls for window in call.windows]))
        return [list(islice(results, len(call.windows))) for call in calls]


@dataclass(frozen=True, slots=True, eq=False)
class LanguageProbeCall(ModelCall[list[ProbedLanguage]]):
    """Detect the language of stretches of speech, encoded separately, as `LanguageProbe.detect`.

    log_mels: un-normalised log-mel frames (n_mels, n_i) of each stretch.
    """

    probe: LanguageProbe
    log_mels: Sequence[Floats]

    @property
    def n_windows(self) -> int:
        return len(self.log_mels)

    @property
    def batch_key(self) -> Hashable:
        return self.probe.batch_of(self.log_mels)

    @classmethod
    def compute(cls, backend: Backend, calls: Sequence[Self]) -> Sequence[list[ProbedLanguage]]:
        return detect_together([(call.probe, call.log_mels) for call in calls])


@dataclass(frozen=True, slots=True, eq=False)
class SpanProbeCall(ModelCall[list[ProbedLanguage]]):
    """Detect the language of spans of frames [start, end) of one encoded window (a batch of 1)."""

    probe: LanguageProbe
    encoded: EncoderOutput
    spans: Sequence[tuple[int, int]]

    @property
    def n_windows(self) -> int:
        return 1

    @classmethod
    def compute(cls, backend: Backend, calls: Sequence[Self]) -> Sequence[list[ProbedLanguage]]:
        return [call.probe.detect_spans(call.encoded, call.spans) for call in calls]


@dataclass(frozen=True, slots=True, eq=False)
class DetectLanguageCall(ModelCall[list[LanguageDetection]]):
    """Detect the language of each window among those allowed (none: all of the model)."""

    tokenizer: Tokenizer
    encoded: EncoderOutput
    allowed: Sequence[str]

    @property
    def n_windows(self) -> int:
        return self.encoded.batch_size

    @classmethod
    def compute(cls, backend: Backend, calls: Sequence[Self]) -> Sequence[list[LanguageDetection]]:
        return [
            detect_language(backend, call.tokenizer, call.encoded, allowed=call.allowed) for call in calls
        ]


@dataclass(frozen=True, slots=True, eq=False)
class AlignWordsCall(ModelCall[list[list[TimedWord]]]):
    """Align the words of each window, as `align_windows`."""

    encoded: EncoderOutput
    texts: Sequence[WindowText]

    @property
    def n_windows(self) -> int:
        return self.encoded.batch_size

    @property
    def batch_key(self) -> Hashable:
        return self.encoded.n_frames  # longer windows would need their keys and values anew

    @classmethod
    def compute_stepwise(
        cls, backend: Backend, calls: Sequence[Self]
    ) -> Stepwise[Sequence[list[list[TimedWord]]]]:
        encoded = calls[0].encoded.joined([call.encoded for call in calls[1:]])
        aligned = yield from align_stepwise(backend, encoded, [text for call in calls for text in call.texts])
        words = iter(aligned)
        return [list(islice(words, len(call.texts))) for call in calls]


@dataclass(frozen=True, slots=True, eq=False)
class RunOnHost(ModelCall[Result]):
    """Run other slow work in turn with the calls of the model."""

    work: Callable[[], Result]

    @classmethod
    def compute(cls, backend: Backend, calls: Sequence[Self]) -> Sequence[Result]:
        with all_torch_threads():
            return [call.work() for call in calls]


@dataclass(frozen=True, slots=True, eq=False)
class RunBeside(ModelCall[Result]):
    """Run slow work that calls no model; other requests do not wait for it."""

    work: Callable[[], Result]

    @classmethod
    def compute(cls, backend: Backend, calls: Sequence[Self]) -> Sequence[Result]:
        return [call.work() for call in calls]


class ContinuousBatch(CallBatch[Outcome], Protocol[DecoderOf, InputOf, Outcome]):
    """Inputs of decoders that are decoded together; they join before any step."""

    def admit(self, decoder: DecoderOf, encoded: EncoderOutput, given: InputOf, /) -> int:
        """Add what a decoder decodes over encoded windows; return a ticket for its result."""
        ...


class ContinuousDecoder(Protocol[InputOf, Outcome]):
    """Decodes step by step: `decode.WindowDecoder`, `streaming.alignatt.AlignAttDecoder`."""

    @property
    def batch_key(self) -> Hashable:
        """Decoders with equal keys may share a batch."""
        ...

    def new_batch(self) -> ContinuousBatch[Self, InputOf, Outcome]: ...


@dataclass(frozen=True, slots=True, eq=False)
class DecodeCall(ModelCall[Result], Generic[Input, Result]):
    """Decode encoded windows. given: of each window, as the decoder takes it."""

    decoder: ContinuousDecoder[Input, Result]
    encoded: EncoderOutput
    given: Input

    @property
    def n_windows(self) -> int:
        return self.encoded.batch_size

    @property
    def batch_key(self) -> Hashable:
        return self.decoder.batch_key

    def new_batch(self, backend: Backend) -> CallBatch[Result]:
        return self.decoder.new_batch()

    def join(self, batch: CallBatch[object]) -> int:
        continuous = cast("ContinuousBatch[ContinuousDecoder[Input, Result], Input, Result]", batch)
        return continuous.admit(self.decoder, self.encoded, self.given)


def decode_with_fallback(
    backend: Backend,
    tokenizer: Tokenizer,
    encoded: EncoderOutput,
    options: Sequence[DecodingOptions],
    fallback: FallbackOptions,
    *,
    divisible: Sequence[bool] | None = None,
    fusion: Fusion | None = None,
) -> Steps[list[Attempt]]:
    """Decode every window, and failed ones again at the next temperature.

    options: beam_size and patience apply at temperature 0, best_of above 0. divisible: whether a window whose
    first text repeats itself is split instead.

    Raises:
        OptionError: as `decoding.decode.decode`.
    """
    tried: list[list[DecodingResult]] = [[] for _ in options]
    last = [0.0] * len(options)
    open_windows = list(range(len(options)))
    for index, temperature in enumerate(fallback.temperatures):
        chosen = [
            fallback.at_temperature(options[window], temperature, mix_seed(options[window].seed, index))
            for window in open_windows
        ]
        decoder = WindowDecoder(backend, tokenizer, shared_options(chosen), fusion)
        results = yield from DecodeCall(decoder, encoded.rows(open_windows), chosen)
        for window, result in zip(open_windows, results, strict=True):
            tried[window].append(result)
            last[window] = temperature
        open_windows = [
            window
            for window in open_windows
            if fallback.fails(tried[window][-1])
            and not (index == 0 and divisible and divisible[window] and fallback.repeats(tried[window][0]))
        ]
        if not open_windows:
            break
    return [
        Attempt(likeliest_result(results, fallback), temperature)
        for results, temperature in zip(tried, last, strict=True)
    ]


class RunningRequest(Generic[Outcome]):
    """A request, whose calls somebody runs one after the other.

    call: the next one; None before `begin` and after the last.
    """

    def __init__(self, request: Request[Outcome]) -> None:
        self._steps = iter(request)
        self._result: Outcome | None = None
        self.error: BaseException | None = None
        self.call: ModelCall[object] | None = None

    def begin(self) -> Self:
        self.answer(None)
        return self

    def answer(self, result: object) -> None:
        """Go on with the result of the call."""
        self._go_on(self._steps.send, result)

    def fail(self, error: BaseException) -> None:
        """Raise the error of the call where the request waits for its result."""
        self._go_on(self._steps.throw, error)

    def end(self, error: BaseException) -> None:
        """End the request with an error, whatever calls it has left."""
        self._steps.close()
        self.error = error
        self._finish()

    def _go_on(self, go_on: Callable[[Given], ModelCall[object]], given: Given) -> None:
        try:
            self.call = go_on(given)
        except StopIteration as end:
            self._result = end.value
            self._finish()
        except BaseException as error:  # any of them is the result of the request
            self.error = error
            self._finish()

    def _finish(self) -> None:
        self.call = None

    def result(self) -> Outcome:
        if self.error is not None:
            raise self.error
        return cast(Outcome, self._result)


@dataclass(frozen=True, slots=True, eq=False)
class CallGroup(ModelCall[list[object]]):
    """Calls of one class with equal keys, in one batch as far as it has room."""

    calls: Sequence[ModelCall[object]]

    @property
    def n_windows(self) -> int:
        return sum(call.n_windows for call in self.calls)

    @classmethod
    def compute_stepwise(cls, backend: Backend, calls: Sequence[Self]) -> Stepwise[Sequence[list[object]]]:
        (group,) = calls
        batch, tickets, results = group.calls[0].new_batch(backend), dict[int, int](), dict[int, object]()
        while len(results) < len(group.calls):
            for place in range(len(tickets), len(group.calls)):
                if batch.n_requests and not batch.has_room(group.calls[place].n_windows):
                    break
                tickets[group.calls[place].join(batch)] = place
            yield
            results |= {tickets[ticket]: result for ticket, result in batch.step()}
        return [[results[place] for place in range(len(results))]]


def together(requests: Sequence[Request[Result]]) -> Steps[list[Result]]:
    """Run requests that do not depend on one another; their next calls run in groups."""
    running = [RunningRequest(request).begin() for request in requests]
    while waiting := [each for each in running if each.call is not None]:
        groups: dict[Hashable, list[RunningRequest[Result]]] = {}
        for each in waiting:
            key = each.call and each.call.batch_key
            groups.setdefault((type(each.call), id(each) if key is None else key), []).append(each)
        for group in groups.values():
            calls = [each.call for each in group if each.call is not None]
            results = (yield from CallGroup(calls)) if calls[1:] else [(yield calls[0])]
            for each, result in zip(group, results, strict=True):
                each.answer(result)
    return [each.result() for each in running]


class Runtime(ABC):
    """A model that is called like a function; results do not depend on other callers."""

    backend: Backend

    @abstractmethod
    def run(self, request: Request[Result]) -> Result:
        """Run the calls of a request and return its result; blocks until then."""

    @abstractmethod
    def torch_threads(self) -> AbstractContextManager[None]:
        """Return the context in which callers run PyTorch's operators between calls."""


@dataclass(frozen=True, slots=True)
class DirectRuntime(Runtime):
    """Runs each call at once, in the calling thread. Use it in one thread at a time."""

    backend: Backend

    def run(self, request: Request[Result]) -> Result:
        with self.torch_threads():
            running = RunningRequest(request).begin()
            while running.call is not None:
                try:
                    result = running.call.run_alone(self.backend)
                except Exception as error:
                    running.fail(error)
                else:
                    running.answer(result)
        return running.result()

    def torch_threads(self) -> AbstractContextManager[None]:
        return torch_threads_of(self.backend)


@dataclass(frozen=True, slots=True)
class ObservedRuntime(Runtime):
    """Another runtime, with functions that are called around each request.

    before: may raise an error. after: not called if the request fails.
    """

    inner: Runtime
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None

    @property
    def backend(self) -> Backend:  # type: ignore[override]
        return self.inner.backend

    def run(self, request: Request[Result]) -> Result:
        if self.before is not None:
            self.before()
        result = self.inner.run(request)
        if self.after is not None:
            self.after()
        return result

    def torch_threads(self) -> AbstractContextManager[None]:
        return self.inner.torch_threads()


def torch_threads_of(backend: Backend) -> AbstractContextManager[None]:
    """Return the context that sets the number of PyTorch's threads for a backend."""
    return one_torch_thread() if backend.own_threads else all_torch_threads()


@dataclass(frozen=True, slots=True, eq=False)
class EmissionsCall(ModelCall[list[Floats]]):
    """Compute the emissions (T, V) of windows of samples, as `AcousticModel.emissions`."""

    network: AcousticModel
    windows: Sequence[Samples]

    @property
    def batch_key(self) -> Hashable:
        return id(self.network)

    @classmethod
    def compute(cls, backend: Backend, calls: Sequence[Self]) -> Sequence[list[Floats]]:
        rows = iter(calls[0].network.emissions([window for call in calls for window in call.windows]))
        return [list(islice(rows, len(call.windows))) for call in calls]


@dataclass(frozen=True, slots=True)
class NetworkBackend:
    """What a runtime asks of a backend whose only calls are `EmissionsCall` and `RunOnHost`."""

    device: Device
    own_threads: bool = False
    runtime: str = "a CTC network"


def network_runtime(device: str = "cpu") -> DirectRuntime:
    """Return the runtime of a CTC network."""
    return DirectRuntime(cast(Backend, NetworkBackend(Device(device))))
