"""Live sessions of several sources at once, such as a microphone and the computer's sound, or channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sottovoce.errors import AudioError, OptionError
from sottovoce.streaming.live_session import EventNumbers, LiveSession
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
        if pcm.ndim != 2 or len(pcm) != len(self.sources):
            raise AudioError(f"sources: expected samples ({len(self.sources)}, n), got {pcm.shape}")
        return self._of_all(
            lambda place, session: session.push(
                pcm[place],
                sample_rate=sample_rate,
                newest_only=newest_only,
                greedy=greedy,
                realtime=realtime,
            )
        )

    def end(self) -> list[Event]:
        return self._of_all(lambda _, session: session.end())

    def close(self) -> list[Event]:
        try:
            return self._of_all(lambda _, session: session.close())
        finally:
            if self._on_close is not None:
                self._on_close()

    def finals(self, wait_s: float | None = None) -> list[Event]:
        return self._of_all(lambda _, session: session.finals(wait_s))

    def finalize(self) -> list[Event]:
        return self._of_all(lambda _, session: session.finalize())

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

    def _of_all(self, work: Callable[[int, LiveSession], list[Event]]) -> list[Event]:
        """Do the work of every session, and raise the last error then; the next call returns the events."""
        failure: Exception | None = None
        for place, session in enumerate(self._sessions):
            try:
                self._held += work(place, session)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure
        events, self._held = sorted(self._held, key=_emitted_s), []
        return self.numbers.numbered(events)


def _emitted_s(event: Event) -> float:
    return event.confirmed_at if isinstance(event, LanguageChanged) else event.emission_time
