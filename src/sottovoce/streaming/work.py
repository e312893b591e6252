"""What a live session asks of the model: windows to encode, stretches to probe, rows to read.

A session is a generator of such work, and looks at a result when it is asked for its next step. So whoever
drives it decides what runs together: the work of one session as it comes (`LocalEngine`), or that of
many as one batch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

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
                work.readings = read(work.reader, work.heard, work.requests)


def read(reader: Reader, heard: Sequence[EncoderOutput], requests: Sequence[ReadRequest]) -> list[Reading]:
    """Read requests side by side: over one window if all hear the same, else over windows side by side.

    Each is read as it would be alone: what is behind a shorter window is hidden.
    """
    if all(one is heard[0] for one in heard):
        return reader.read(heard[0], requests)
    joined = side_by_side(heard)
    hidden = [
        ReadRequest(request.prefix, request.rules, _hiding(request.bias, one, joined.n_frames), request.guess)
        for one, request in zip(heard, requests, strict=True)
    ]
    return reader.read(joined, hidden)


def side_by_side(heard: Sequence[EncoderOutput]) -> EncoderOutput:
    """Windows of one row each as the rows of one, with zeros behind the shorter ones."""
    longest = max(one.n_frames for one in heard)
    states = torch.cat([F.pad(one.states, (0, 0, 0, longest - one.n_frames)) for one in heard])
    joined = EncoderOutput(states, tuple(one.n_content_frames[0] for one in heard))
    if any(one.log_weights is not None for one in heard):
        joined.log_weights = torch.cat([_weights(one, longest) for one in heard])
    known = [one.cross_kv for one in heard if one.cross_kv is not None]
    if len(known) == len(heard):
        joined.cross_kv = [
            (_stacked([keys for keys, _ in layer]), _stacked([values for _, values in layer]))
            for layer in zip(*known, strict=True)
        ]
    return joined


def _weights(window: EncoderOutput, n_frames: int) -> Tensor:
    """The log-weights of a window of one row: (1, n_frames), 0 where there are none."""
    own = window.log_weights
    known = torch.zeros(1, window.n_frames, device=window.states.device) if own is None else own
    return F.pad(known, (0, n_frames - window.n_frames))


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """Rows (1, H, n_i, d) as a batch (B, H, max n_i, d), with zeros at their ends."""
    longest = max(row.shape[2] for row in rows)
    return torch.cat([F.pad(row, (0, 0, 0, longest - row.shape[2])) for row in rows])


def _hiding(bias: Tensor | None, window: EncoderOutput, n_frames: int) -> Tensor:
    """A row's bias (n_frames,), with what is behind its own window hidden."""
    own = torch.zeros(window.n_frames, device=window.states.device) if bias is None else bias
    return F.pad(own, (0, n_frames - window.n_frames), value=-torch.inf)


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
