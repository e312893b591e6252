"""What a live session asks of the model: windows to encode, stretches to probe, rows to read.

A session is a generator of such work, and looks at a result when it is asked for its next step. So whoever
drives it decides what runs together: the work of one session as it comes (`LocalEngine`), or that of
many as one batch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

from torch import Tensor

from sottovoce.backends.base import Backend, GrowingWindow, Grown
from sottovoce.language.probe import LanguageProbe, ProbedLanguage
from sottovoce.streaming.alignatt import Reader, ReadRequest
from sottovoce.streaming.reading import Reading
from sottovoce.types import EncoderOutput

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Encode:
    """Windows that have grown; grown: of each of them, once that is done."""

    windows: Sequence[GrowingWindow]
    grown: list[Grown] = field(default_factory=list, init=False)


@dataclass(slots=True, eq=False)
class Probe:
    """Stretches of speech, un-normalised log-mel (n_mels, n); probed: of each of them, once that is done."""

    probe: LanguageProbe
    log_mels: Sequence[Tensor]
    probed: list[ProbedLanguage] = field(default_factory=list, init=False)


@dataclass(slots=True, eq=False)
class Read:
    """Requests, each with the window (of one row) that it hears; readings: of each, once that is done."""

    reader: Reader
    heard: Sequence[EncoderOutput]
    requests: Sequence[ReadRequest]
    readings: list[Reading] = field(default_factory=list, init=False)


Work: TypeAlias = Encode | Probe | Read
Steps: TypeAlias = Generator[Work, None, Result]


class Engine(Protocol):
    """Does work, in whatever company."""

    def run(self, works: Sequence[Work]) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Does each piece of work by itself, on one backend."""

    backend: Backend

    def run(self, works: Sequence[Work]) -> None:
        for work in works:
            if isinstance(work, Encode):
                work.grown = self.backend.encode_growing(work.windows)
            elif isinstance(work, Probe):
                work.probed = work.probe.hear(work.log_mels)
            else:
                work.readings = work.reader.read(work.heard, work.requests)


def run(engine: Engine, steps: Steps[Result]) -> Result:
    """Do the work of one generator as it comes, and return what it returns; what fails, fails in it."""
    try:
        work = next(steps)
        while True:
            try:
                engine.run([work])
            except Exception as error:
                work = steps.throw(error)
            else:
                work = next(steps)
    except StopIteration as end:
        result: Result = end.value
        return result
