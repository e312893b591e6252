"""Executes the calls of a generator one by one; `batching` executes those of many together.

Calls of one kind run as one batch if possible, with the same results as alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch

from sottovoce.backends.base import Backend
from sottovoce.decoding.alignment import TimedWord, align_stepwise
from sottovoce.decoding.decode import Attempt, Stepwise, decode_with_fallback, finish
from sottovoce.decoding.detect import detect_language
from sottovoce.engine.calls import (
    AlignAttCall,
    CallGenerator,
    DecodeCall,
    DetectLanguageCall,
    EncodeCall,
    HostCall,
    IncrementalEncodeCall,
    LanguageProbeCall,
    ModelCall,
    Result,
    SpanProbeCall,
    WordAlignCall,
)
from sottovoce.language.probe import detect_together
from sottovoce.options.decoding import shared_options
from sottovoce.threads import all_torch_threads, one_torch_thread
from sottovoce.types import EncoderOutput, Features

Kind = TypeVar("Kind")


def batch_key(call: ModelCall) -> Hashable:
    """Return the key of calls of one kind that may share a batch; None: not batched."""
    if isinstance(call, EncodeCall):
        return call.features.mel.shape[-1]
    if isinstance(call, LanguageProbeCall):
        return call.probe.batch_of(call.log_mels)
    if isinstance(call, WordAlignCall):
        return call.encoded.n_frames
    if isinstance(call, DecodeCall):
        common = repr(shared_options(call.options)), repr(call.fallback)
        return call.encoded.n_frames, id(call.tokenizer), id(call.fusion), common
    return None


def run_batch(backend: Backend, calls: Sequence[ModelCall]) -> Stepwise[Sequence[Any]]:
    """Run calls of one kind as one batch, yielding before each decoder pass; return their results."""
    first = calls[0]
    if isinstance(first, DecodeCall):
        return (yield from _decode(backend, _of(DecodeCall, calls)))
    if isinstance(first, WordAlignCall):
        return (yield from _align(backend, _of(WordAlignCall, calls)))
    if isinstance(first, EncodeCall):
        return _encode(backend, _of(EncodeCall, calls))
    if isinstance(first, IncrementalEncodeCall):
        return _encode_incremental(backend, _of(IncrementalEncodeCall, calls))
    if isinstance(first, LanguageProbeCall):
        return detect_together([(call.probe, call.log_mels) for call in _of(LanguageProbeCall, calls)])
    return [_alone(backend, call) for call in calls]


def _alone(backend: Backend, call: ModelCall) -> Any:
    if isinstance(call, AlignAttCall):
        return call.decoder.decode(call.encoded, call.requests)
    if isinstance(call, SpanProbeCall):
        return call.probe.detect_spans(call.encoded, call.spans)
    if isinstance(call, DetectLanguageCall):
        return detect_language(backend, call.tokenizer, call.encoded, allowed=call.allowed)
    assert isinstance(call, HostCall)
    with all_torch_threads():
        return call.do()


def _of(kind: type[Kind], calls: Sequence[ModelCall]) -> list[Kind]:
    return [call for call in calls if isinstance(call, kind)]


def _encode(backend: Backend, calls: Sequence[EncodeCall]) -> list[EncoderOutput]:
    if len(calls) == 1:
        return [backend.encode(calls[0].features)]
    mel = torch.cat([call.features.mel for call in calls])
    content = tuple(n for call in calls for n in call.features.n_content_frames)
    encoded = backend.encode(Features(mel, content))
    results = []
    at = 0
    for call in calls:
        n_windows = len(call.features.n_content_frames)
        results.append(encoded.rows(at, at + n_windows))
        at += n_windows
    return results


def _encode_incremental(backend: Backend, calls: Sequence[IncrementalEncodeCall]) -> list[list[Any]]:
    results = iter(backend.encode_incremental([window for call in calls for window in call.windows]))
    return [list(islice(results, len(call.windows))) for call in calls]


def _decode(backend: Backend, calls: Sequence[DecodeCall]) -> Stepwise[list[list[Attempt]]]:
    first = calls[0]
    found = yield from decode_with_fallback(
        backend,
        first.tokenizer,
        _joined([call.encoded for call in calls]),
        [options for call in calls for options in call.options],
        first.fallback,
        divisible=[one for call in calls for one in call.divisible],
        fusion=first.fusion,
    )
    attempts = iter(found)
    return [list(islice(attempts, len(call.options))) for call in calls]


def _align(backend: Backend, calls: Sequence[WordAlignCall]) -> Stepwise[list[list[list[TimedWord]]]]:
    encoded = _joined([call.encoded for call in calls])
    found = yield from align_stepwise(backend, encoded, [text for call in calls for text in call.texts])
    words = iter(found)
    return [list(islice(words, len(call.texts))) for call in calls]


def _joined(encoded: Sequence[EncoderOutput]) -> EncoderOutput:
    if len(encoded) == 1:
        return encoded[0]
    computed = [one.cross_kv for one in encoded if one.cross_kv is not None]
    cross_kv = None
    if len(computed) == len(encoded):
        cross_kv = [
            (torch.cat([keys for keys, _ in layer]), torch.cat([values for _, values in layer]))
            for layer in zip(*computed, strict=True)
        ]
    states = torch.cat([one.states for one in encoded])
    return EncoderOutput(states, tuple(n for one in encoded for n in one.n_content_frames), cross_kv)


class CallExecutor(Protocol):
    def run(self, calls: CallGenerator[Result]) -> Result:
        """Run the calls of a generator; return its result.

        The error of a call is thrown into the generator, which may catch it.
        """
        ...


def threads_of(backend: Backend) -> AbstractContextManager[None]:
    """Return the context that sets the number of PyTorch's threads for a backend."""
    return one_torch_thread() if backend.own_threads else all_torch_threads()


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    backend: Backend

    def run(self, calls: CallGenerator[Result]) -> Result:
        with threads_of(self.backend), closing(calls):
            try:
                call = next(calls)
                while True:
                    try:
                        result = self.execute(call)
                    except Exception as error:
                        call = calls.throw(error)
                    else:
                        call = calls.send(result)
                        del result
            except StopIteration as end:
                returned: Result = end.value
                return returned

    def execute(self, call: ModelCall) -> Any:
        (result,) = finish(run_batch(self.backend, [call]))
        return result
