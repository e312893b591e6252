"""What a transcription asks of the model: windows to encode, to read, to align.

A transcription is an iterator that gives segments, and between them work whose result it looks at when it
is asked for the next step. So whoever drives it decides what runs together: the work of several recordings
is done as one batch, and each of them gives the same text as alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import torch

from sottovoce.decoding.fallback import Attempt
from sottovoce.errors import SottovoceError
from sottovoce.offline.engine import Engine, Request
from sottovoce.offline.words import TimedWord, WindowText, align_windows
from sottovoce.types import EncoderOutput, Features, Segment

Result = TypeVar("Result")

FAILURES = (SottovoceError, MemoryError, RuntimeError)
"""What one recording may fail with: in PyTorch, to be out of memory is a RuntimeError."""


@dataclass(slots=True, eq=False)
class Encode:
    """Windows of the model's full length; states: of each of them, once that is done."""

    features: Features
    states: EncoderOutput | None = field(default=None, init=False)

    @property
    def encoded(self) -> EncoderOutput:
        assert self.states is not None, "the work is done before its result is looked at"
        return self.states


@dataclass(slots=True, eq=False)
class Read:
    """Windows to decode, each with its request; attempts: one for each, once that is done."""

    encoded: EncoderOutput
    requests: Sequence[Request]
    attempts: list[Attempt] = field(default_factory=list, init=False)


@dataclass(slots=True, eq=False)
class Align:
    """Windows and what is said in them; words: of each of them, once that is done."""

    encoded: EncoderOutput
    texts: Sequence[WindowText]
    words: list[list[TimedWord]] = field(default_factory=list, init=False)


@dataclass(slots=True, eq=False)
class Listen:
    """A piece of work of another network than the model, and of one recording alone: what to call."""

    do: Callable[[], None]


Work: TypeAlias = Encode | Read | Align | Listen
Step: TypeAlias = Segment | Work
Steps: TypeAlias = Generator[Step, None, None]


def perform(engine: Engine, works: Sequence[Work]) -> None:
    """Do pieces of work, those of one kind in one batch.

    Raises: OptionError for what the model cannot do.
    """
    for work in works:
        if isinstance(work, Listen):
            work.do()
    encodings = [work for work in works if isinstance(work, Encode)]
    if encodings:
        _encode(engine, encodings)
    readings = [work for work in works if isinstance(work, Read)]
    if readings:
        _read(engine, readings)
    alignments = [work for work in works if isinstance(work, Align)]
    if alignments:
        _align(engine, alignments)


def first_kind(works: Sequence[Work | None]) -> list[int]:
    """Which of the works of several recordings are done next: those of one kind, of those that ask for any.

    Encoding goes first and aligning last, so that recordings wait for each other and share the next batch.
    """
    for kind in (Listen, Encode, Read, Align):
        asking = [place for place, work in enumerate(works) if isinstance(work, kind)]
        if asking:
            return asking
    return []


def perform_each(engine: Engine, works: Sequence[Work]) -> list[Exception | None]:
    """Do works of one kind, of a recording each, in one batch, or each by itself where that fails.

    What each of them failed with; None where it is done.
    """
    try:
        perform(engine, works)
    except FAILURES as error:
        return [error] if len(works) == 1 else [perform_each(engine, [work])[0] for work in works]
    return [None] * len(works)


def perform_alone(engine: Engine, steps: Generator[Encode, None, Result]) -> Result:
    """Do the work of one generator as it comes, and return what it returns."""
    while True:
        try:
            perform(engine, [next(steps)])
        except StopIteration as end:
            result: Result = end.value
            return result


def _encode(engine: Engine, works: Sequence[Encode]) -> None:
    mel = works[0].features.mel if len(works) == 1 else torch.cat([work.features.mel for work in works])
    content = tuple(n for work in works for n in work.features.n_content_frames)
    encoded = engine.backend.encode(Features(mel, content))
    done = 0
    for work in works:
        n_windows = len(work.features.n_content_frames)
        work.states = encoded.rows(done, done + n_windows)
        done += n_windows


def _read(engine: Engine, works: Sequence[Read]) -> None:
    encoded = _joined([work.encoded for work in works])
    attempts = iter(engine.decode(encoded, [request for work in works for request in work.requests]))
    for work in works:
        work.attempts = [next(attempts) for _ in work.requests]


def _align(engine: Engine, works: Sequence[Align]) -> None:
    encoded = _joined([work.encoded for work in works])
    words = iter(align_windows(engine.backend, encoded, [text for work in works for text in work.texts]))
    for work in works:
        work.words = [next(words) for _ in work.texts]


def _joined(encoded: Sequence[EncoderOutput]) -> EncoderOutput:
    """Windows of several encoder outputs as one, with keys and values where all of them have these."""
    if len(encoded) == 1:
        return encoded[0]
    known = [one.cross_kv for one in encoded if one.cross_kv is not None]
    cross_kv = None
    if len(known) == len(encoded):
        cross_kv = [
            (torch.cat([keys for keys, _ in layer]), torch.cat([values for _, values in layer]))
            for layer in zip(*known, strict=True)
        ]
    states = torch.cat([one.states for one in encoded])
    return EncoderOutput(states, tuple(n for one in encoded for n in one.n_content_frames), cross_kv)
