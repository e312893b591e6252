"""What the server asks of a model; `scheduler` does it, in threads of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from sottovoce.options.live import LiveOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.serving.scheduling.engine_thread import EngineState
from sottovoce.speakers.networks import Floats
from sottovoce.translation.live_translator import SourceText
from sottovoce.types import Event, Samples, Segment, Transcript


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """What a client may ask of a recording: options, languages ("auto", one or several), boosted phrases."""

    options: TranscribeOptions
    languages: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()


class FileWork(Protocol):
    """One recording being transcribed. n_prompt_tokens: of its prompt, as far as the model sees it."""

    n_prompt_tokens: int

    def __aiter__(self) -> AsyncIterator[Segment]: ...

    async def __anext__(self) -> Segment: ...

    async def collect(self) -> Transcript:
        """Return what was found, with what is left to find."""
        ...

    def close(self) -> None:
        """Stop; harmless at the end."""
        ...


class OwnTranslator(Protocol):
    """The model's own translation of what a session hears, in turn with recordings. target: a language."""

    @property
    def target(self) -> str: ...

    def push(self, pcm: Samples, worked_s: float) -> None:
        """Take samples (n,) that the session will be given; worked_s: seconds that it has worked on."""
        ...

    def translate(self, source: SourceText) -> str:
        """Translate; called in a thread that may wait. Raises: what the model raises."""
        ...


class LiveWork(Protocol):
    """One live session, one call at a time; see `session_handle.SessionHandle`.

    poll_newer_audio: audio that came after what was pushed, (n,).
    """

    poll_newer_audio: Callable[[], Samples] | None

    @property
    def received_s(self) -> float: ...
    @property
    def behind_s(self) -> float: ...
    @property
    def live_wait_s(self) -> float:
        """How long live work waits for its turn, of late, where this session is."""
        ...

    @property
    def place(self) -> object:
        """What does the work of this session; others that have it wait for each other."""
        ...

    async def push(self, pcm: Samples) -> list[Event]: ...
    async def finalize(self) -> list[Event]: ...
    async def voices(self, enrolled: Mapping[str, Floats]) -> Mapping[str, Floats]: ...
    async def flush_and_reset(self) -> list[Event]: ...
    async def configure(self, options: LiveOptions) -> list[Event]: ...
    async def close(self) -> list[Event]: ...
    def discard(self) -> None: ...
    def end(self) -> None: ...
    def translator(self) -> OwnTranslator: ...


class Forecast(Protocol):
    """Whether there is room for another session."""

    @property
    def part(self) -> float:
        """The part of the engines' time that the sessions will take, if all speak."""
        ...

    def check(self) -> None:
        """Check that there is room. Raises: ApiError 429, with a time to come back."""
        ...


class ModelWork(Protocol):
    """All that is asked of one model."""

    @property
    def languages(self) -> tuple[str, ...]: ...
    @property
    def forecast(self) -> Forecast: ...
    @property
    def engines(self) -> Sequence[EngineState]: ...
    @property
    def n_waiting(self) -> int: ...
    @property
    def live_wait_s(self) -> float: ...

    def trouble(self, stall_s: float) -> str | None:
        """Return what keeps the model from working; None: nothing does."""
        ...

    async def calibrate(self) -> None:
        """Measure what a live session costs; called once, before anything else."""
        ...

    async def open(self, options: LiveOptions) -> LiveWork:
        """Begin a live session. Raises: ApiError 429 where it would make the others late; OptionError."""
        ...

    async def transcribe(
        self, source: BinaryIO, request: TranscriptionRequest, second: ModelWork | None = None
    ) -> FileWork:
        """Begin with a recording, which stays open until it is closed. Raises: AudioError, OptionError.

        second: whose model reads what this one is not sure of; both in this process.
        """
        ...

    def close(self) -> None:
        """End after the work at hand."""
        ...

    def join(self, timeout_s: float) -> None:
        """Wait for the end."""
        ...
