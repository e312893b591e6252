"""Events of a live session with their number and the utterance they belong to, at the times of the client.

The library's session counts from its own beginning. A client's session may be several of those (other
options begin another), so that times are moved here, and events numbered through.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sottovoce.formats.document import Json
from sottovoce.formats.events import event_document
from sottovoce.types import Event, Final, LanguageChanged, SpeechEnded, SpeechStarted, Unstable, Word


@dataclass(frozen=True, slots=True)
class Told:
    """An event as a client gets it. seq: counts up by one. utterance: None where it belongs to none."""

    seq: int
    utterance: int | None
    event: Event

    @property
    def document(self) -> dict[str, Json]:
        """As plain values for JSON."""
        return {**event_document(self.event), "seq": self.seq, "utterance": self.utterance}


class Teller:
    """Numbers the events of one client's session, in their order."""

    def __init__(self) -> None:
        self._seq = 0
        self._utterance = 0
        self._is_open = False

    def tell(self, events: Iterable[Event], *, offset_s: float = 0.0) -> list[Told]:
        """Events with their numbers, `offset_s` later than they say."""
        return [self._tell(shifted(event, offset_s)) for event in events]

    def _tell(self, event: Event) -> Told:
        self._seq += 1
        if isinstance(event, LanguageChanged):
            return Told(self._seq, None, event)
        if not self._is_open and not isinstance(event, SpeechEnded):
            self._utterance += 1
            self._is_open = True
        if isinstance(event, Final | SpeechEnded):
            self._is_open = False
        return Told(self._seq, self._utterance, event)


def shifted(event: Event, offset_s: float) -> Event:
    """The event so many seconds later."""
    if not offset_s:
        return event
    if isinstance(event, LanguageChanged):
        return replace(event, at=event.at + offset_s, confirmed_at=event.confirmed_at + offset_s)
    emission_time = event.emission_time + offset_s
    if isinstance(event, SpeechStarted | SpeechEnded):
        return replace(event, at=event.at + offset_s, emission_time=emission_time)
    start, end = event.start + offset_s, event.end + offset_s
    if isinstance(event, Unstable):
        return replace(event, start=start, end=end, emission_time=emission_time)
    words = tuple(later(word, offset_s) for word in event.words)
    return replace(event, start=start, end=end, words=words, emission_time=emission_time)


def later(word: Word, offset_s: float) -> Word:
    """The word so many seconds later."""
    return replace(word, start=word.start + offset_s, end=word.end + offset_s)
