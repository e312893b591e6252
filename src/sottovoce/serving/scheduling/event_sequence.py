"""The events of a client's session, numbered through and at its times.

The library's session counts from its own beginning. A client's session may be several of those, one after
the other: other options begin another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from sottovoce.types import Event, Final, LanguageChanged, Partial, SpeechEnded, Word

TIMES = frozenset({"start", "end", "at", "confirmed_at", "emission_time"})
"""Fields of events and words that are seconds since the beginning."""


class EventSequencer:
    """Numbers the events of one client's session, in their order: `seq` and `utterance`."""

    def __init__(self) -> None:
        self._seq = 0
        self._utterance = 0
        self._is_open = False

    def number(self, events: Iterable[Event], *, offset_s: float = 0.0) -> list[Event]:
        """Number events, and move them `offset_s` later."""
        return [self._numbered(shifted(event, offset_s)) for event in events]

    def _numbered(self, event: Event) -> Event:
        self._seq += 1
        if isinstance(event, LanguageChanged):
            return replace(event, seq=self._seq, utterance=None)
        if not self._is_open and not isinstance(event, SpeechEnded):
            self._utterance += 1
            self._is_open = True
        if isinstance(event, Final | SpeechEnded):
            self._is_open = False
        return replace(event, seq=self._seq, utterance=self._utterance)


def shifted(event: Event, offset_s: float) -> Event:
    """Return the event and its words, `offset_s` later."""
    if not offset_s:
        return event
    times = _shifted_times(event, offset_s)
    if isinstance(event, Partial | Final):
        times["words"] = tuple(replace(word, **_shifted_times(word, offset_s)) for word in event.words)
    return replace(event, **times)


def _shifted_times(timed: Event | Word, offset_s: float) -> dict[str, Any]:
    names = (field.name for field in fields(timed) if field.name in TIMES)
    return {name: getattr(timed, name) + offset_s for name in names}
