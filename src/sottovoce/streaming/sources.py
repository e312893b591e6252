"""Live sessions of several sources at once, such as a microphone and the computer's sound, or channels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sottovoce.errors import AudioError, OptionError
from sottovoce.runtime.calls import Request, Steps
from sottovoce.streaming.live_session import EventNumbers, HeldError, LiveSession
from sottovoce.types import SAMPLE_RATE, Event, LanguageChanged

if TYPE_CHECKING:
    from typing_extensions import Self

    from sottovoce.streaming.audio_window import AudioWindow


class SourcesSession:
    """Sessions of sources that share a clock; their events leave in the order of their times.

    Events have the name of their `source`, which is also the speaker of its words. `push` takes samples
    (n_sources, n) in the order of the sources; the methods are those of `LiveSession`. on_close: called once.

    Raises: OptionError without sources.
    """

    def __init__(
        self, sessions: Mapping[str, LiveSession], on_close: Callable[[], None] | None = None
    ) -> None:
        if not sessions:
            raise OptionError("sources: expected a name for each, got none")
        self.sources = tuple(sessions)
        self._sessions = tuple(sessions.values())
        self._on_close = on_close
        self._runtime = self._sessions[0].runtime
        self._attempt = HeldError()
        self._held: list[Event] = []
        self.number_by(EventNumbers(n_sources=len(sessions)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def push(
        self,
        pcm: npt.NDArray[np.generic],
        *,
        sample_rate: int = SAMPLE_RATE,
        newest_only: bool = False,
        greedy: bool = False,
        realtime: bool = False,
    ) -> list[Event]:
        """Push samples of all sources, and return the resulting events.

        Raises: as `LiveSession.push`; AudioError for another number of sources.
        """
        return self._runtime.run(
            self.push_request(
                pcm, sample_rate=sample_rate, newest_only=newest_only, greedy=greedy, realtime=realtime
            )
        )

    def push_request(
        self,
        pcm: npt.NDArray[np.generic],
        *,
        sample_rate: int = SAMPLE_RATE,
        newest_only: bool = False,
        greedy: bool = False,
        realtime: bool = False,
    ) -> Steps[list[Event]]:
        """Return `push` as a request for the runtime of the sessions."""
        if pcm.ndim != 2 or len(pcm) != len(self.sources):
            raise AudioError(f"sources: expected samples ({len(self.sources)}, n), got {pcm.shape}")
        return self._answers(
            session.push_request(
                samples, sample_rate=sample_rate, newest_only=newest_only, greedy=greedy, realtime=realtime
            )
            for session, samples in zip(self._sessions, pcm, strict=True)
        )

    def end(self) -> list[Event]:
        return self._runtime.run(self.end_request())

    def end_request(self) -> Steps[list[Event]]:
        return self._answers(session.end_request() for session in self._sessions)

    def close(self) -> list[Event]:
        try:
            return self._of_all(lambda session: session.close())
        finally:
            if self._on_close is not None:
                self._on_close()

    def finals(self, wait_s: float | None = None) -> list[Event]:
        return self._of_all(lambda session: session.finals(wait_s))

    def finalize(self) -> list[Event]:
        return self._runtime.run(self.finalize_request())

    def finalize_request(self) -> Steps[list[Event]]:
        return self._answers(session.finalize_request() for session in self._sessions)

    def on_finals(self, notify: Callable[[], None], has_time: Callable[[], bool] = lambda: True) -> None:
        for session in self._sessions:
            session.on_finals(notify, has_time)

    def on_window(self, add: Callable[[AudioWindow, str | None], None]) -> None:
        """Call a function with each window that is decoded, and the name of its source."""
        for source, session in zip(self.sources, self._sessions, strict=True):

            def add_of_source(window: AudioWindow, source: str = source) -> None:
                add(window, source)

            session.on_window(add_of_source)

    def number_by(self, numbers: EventNumbers) -> None:
        """Continue the numbers of other sessions of as many sources."""
        self.numbers = numbers
        for place, session in enumerate(self._sessions):
            session.number_by(numbers.of_source(place), self.sources[place])

    def discard(self) -> None:
        for session in self._sessions:
            session.discard()

    def _of_all(self, work: Callable[[LiveSession], list[Event]]) -> list[Event]:
        for session in self._sessions:
            with self._attempt:
                self._held += work(session)
        return self._events()

    def _answers(self, requests: Iterable[Request[list[Event]]]) -> Steps[list[Event]]:
        for request in requests:
            with self._attempt:
                self._held += yield from request
        return self._events()

    def _events(self) -> list[Event]:
        """Return the events of all; after an error, raise the last one, and return them at the next call."""
        self._attempt.raise_held()
        events, self._held = sorted(self._held, key=_emitted_s), []
        return self.numbers.numbered(events)


def _emitted_s(event: Event) -> float:
    return event.confirmed_at if isinstance(event, LanguageChanged) else event.emission_time
