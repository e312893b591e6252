"""One live session of a client: audio waits here until an update is due.

Events are numbered across the client's session, in its times. Changed options begin another session of the
library, which counts from zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import anyio.to_thread
import numpy as np

from sottovoce.api import Model
from sottovoce.errors import OptionError
from sottovoce.options.live import LiveOptions
from sottovoce.runtime.batching import Caller, Priority
from sottovoce.runtime.update_interval import INTERVALS_S
from sottovoce.server.admission import SessionLoad
from sottovoce.server.worker import Worker
from sottovoce.speakers.live_speakers import LiveSpeakers, make_live_speakers
from sottovoce.speakers.networks import Floats
from sottovoce.streaming.options import SessionOptions, StreamOptions
from sottovoce.streaming.session import Session
from sottovoce.translation.live_translator import SourceText
from sottovoce.translation.whisper_translate import WhisperTranslator
from sottovoce.types import (
    SAMPLE_RATE,
    Event,
    Final,
    LanguageChanged,
    Partial,
    Samples,
    SpeechEnded,
    TurnEnded,
)

TIME_FIELDS = frozenset({"start", "end", "at", "confirmed_at", "emission_time"})
UPDATE_MAX_S = 2.0
LOADED_UPDATE_MAX_S = 10.0
"""Under load one update takes all waiting audio."""
MAX_AHEAD_S = 20.0
"""Audio ahead of real time above which a session has the priority of recordings."""


class EventSequencer:
    """Numbers the events of a client's session: `seq` and `utterance`."""

    def __init__(self) -> None:
        self._seq = 0
        self._utterance = 0
        self._is_open = False

    def number(self, events: Iterable[Event], *, offset_s: float = 0.0) -> list[Event]:
        return [self._numbered(shifted(event, offset_s)) for event in events]

    def _numbered(self, event: Event) -> Event:
        self._seq += 1
        if isinstance(event, LanguageChanged):
            return replace(event, seq=self._seq, utterance=None)
        if not self._is_open and not isinstance(event, SpeechEnded | TurnEnded):
            self._utterance += 1
            self._is_open = True
        if isinstance(event, Final | SpeechEnded):
            self._is_open = False
        return replace(event, seq=self._seq, utterance=self._utterance)


def shifted(event: Event, offset_s: float) -> Event:
    if not offset_s:
        return event
    names = (field.name for field in fields(event) if field.name in TIME_FIELDS)
    changes: dict[str, Any] = {name: getattr(event, name) + offset_s for name in names}
    if isinstance(event, Partial | Final):
        changes["words"] = tuple(
            replace(word, start=word.start + offset_s, end=word.end + offset_s) for word in event.words
        )
    return replace(event, **changes)


@dataclass(frozen=True, slots=True)
class QueuedTranslator:
    """A translator whose work is queued behind live sessions."""

    own: WhisperTranslator
    worker: Worker
    caller: Caller

    @property
    def target(self) -> str:
        return self.own.target

    def push(self, pcm: Samples, worked_s: float) -> None:
        """Take samples (n,) that the session will get. worked_s: seconds it has processed."""
        self.own.push(pcm, worked_s=worked_s)

    def translate(self, source: SourceText) -> str:
        return self.worker.submit(lambda: self.own.translate(source), Priority.FILE, self.caller).result()


class SessionHandle:
    """One live session, for one call at a time; made by `Scheduler.open`.

    load: on the model, until `end`, which calls on_end with it.
    """

    def __init__(
        self,
        worker: Worker,
        model: Model,
        options: LiveOptions,
        *,
        load: SessionLoad,
        on_end: Callable[[SessionLoad], None],
    ) -> None:
        self._worker = worker
        self._model = model
        self._options = options
        self._on_end = on_end
        self.load = load
        self._caller = worker.runtime.caller(on_work=load.add_work)
        self._sequencer = EventSequencer()
        self._session: Session | None = None
        self._speakers: LiveSpeakers | None = None
        self._speakers_option = ""
        self._pending: Samples = np.zeros(0, np.float32)
        self._n_samples = 0
        self._n_taken = 0
        self._start_sample = 0
        self._opened_s = time.monotonic()
        self.fixed_interval_s: float | None = None
        self.drain_input: Callable[[], Samples] | None = None
        """Returns audio that came after `push`; called in a thread of the model when an update begins."""

    @property
    def received_s(self) -> float:
        return self._n_samples / SAMPLE_RATE

    @property
    def interval_s(self) -> float:
        return self.fixed_interval_s or self._worker.interval_controller.interval_s

    @property
    def processed_s(self) -> float:
        return self._n_taken / SAMPLE_RATE

    @property
    def behind_s(self) -> float:
        return self.received_s - self.processed_s

    async def begin(self) -> None:
        """Make the session, so that invalid options fail before there is audio.

        Raises: OptionError; ModelNotFoundError and CheckpointError of the speaker model.
        """
        await self._load_speakers(self._options)
        await self._worker.result_of(self._current_session, Priority.LIVE)

    async def push(self, pcm: Samples) -> list[Event]:
        """Take samples (n,) float32, mono, 16 kHz; return the events that follow.

        Under load samples wait until an update is due, which takes all of them and those that arrive
        meanwhile; further updates take no new ones. Raises: AudioError for samples that are not finite.
        """
        events: list[Event] = []
        self._add(pcm)
        if self._is_due:
            events += self._numbered(await self._result_of(self._update))
        while self._is_due:
            events += self._numbered(await self._result_of(self._process))
        return events

    async def finalize(self) -> list[Event]:
        return self._numbered(await self._result_of(self._finalize_session))

    async def voices(self, enrolled: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """Enroll voices (D,) by name; return those of all speakers so far.

        Raises: OptionError, also without diarization.
        """
        return await self._worker.result_of(lambda: self._enroll(enrolled), Priority.LIVE)

    async def flush(self) -> list[Event]:
        """Emit the text of the audio so far; the session continues without context."""
        events = self._numbered(await self._result_of(self._close_session))
        self._start_sample = self._n_samples
        return events

    async def configure(self, options: LiveOptions) -> list[Event]:
        """Continue with other options; the audio so far is emitted under the old ones.

        Raises: as `begin`, with the session unchanged.
        """
        before = self._options, self._speakers, self._speakers_option
        await self._load_speakers(options)
        self._options = options
        try:
            session = await self._worker.result_of(self._make_session, Priority.LIVE)
        except BaseException:
            self._options, self._speakers, self._speakers_option = before
            raise
        events = await self.flush()
        self._session = session
        return events

    def translator(self) -> QueuedTranslator:
        """Return a translator into English. Raises: OptionError if the model has none."""
        caller = self._worker.runtime.caller()
        return QueuedTranslator(WhisperTranslator(self._model, caller), self._worker, caller)

    def reset(self) -> None:
        self._session = None
        self._pending = np.zeros(0, np.float32)
        self._start_sample = self._n_taken = self._n_samples

    def end(self) -> None:
        """Drop the audio so far and leave the model; may be repeated."""
        self.reset()
        self._on_end(self.load)

    def _numbered(self, events: list[Event]) -> list[Event]:
        return self._sequencer.number(events, offset_s=self._start_sample / SAMPLE_RATE)

    @property
    def _priority(self) -> Priority:
        ahead_s = self.received_s - (time.monotonic() - self._opened_s)
        return Priority.FILE if ahead_s > MAX_AHEAD_S else Priority.LIVE

    async def _result_of(self, work: Callable[[], list[Event]]) -> list[Event]:
        self.load.is_processing = True
        try:
            return await self._worker.result_of(work, self._priority, self._caller)
        finally:
            self.load.is_processing = False

    def _update(self) -> list[Event]:
        if self.drain_input is not None:
            self._add(self.drain_input())
        return self._process()

    def _add(self, pcm: Samples) -> None:
        self._pending = np.concatenate([self._pending, pcm])
        self._n_samples += len(pcm)

    @property
    def _is_due(self) -> bool:
        """Whether enough audio waits; at the shortest interval the session itself decides on its updates."""
        least = self.interval_s * SAMPLE_RATE if self.interval_s > INTERVALS_S[0] else 1
        return len(self._pending) >= least

    def _process(self) -> list[Event]:
        """Run one update: of all waiting audio under load, otherwise of the usual amount."""
        interval_s, is_greedy = self.interval_s, self._worker.interval_controller.is_greedy
        is_stretched = interval_s > INTERVALS_S[0]
        most_s = LOADED_UPDATE_MAX_S if is_stretched else UPDATE_MAX_S
        n_taken = round(most_s * SAMPLE_RATE)
        pcm, self._pending = self._pending[:n_taken], self._pending[n_taken:]
        try:
            events = self._current_session().push(pcm, newest_only=is_stretched, greedy=is_greedy)
        finally:
            self._n_taken = min(self._n_taken + len(pcm), self._n_samples)
            self.load.add_audio(len(pcm) / SAMPLE_RATE, interval_s)
        return events

    def _finalize_session(self) -> list[Event]:
        events = self._process_pending()
        if self._session is not None:
            events += self._session.finalize()
        return events

    def _process_pending(self) -> list[Event]:
        events: list[Event] = []
        while len(self._pending):
            events += self._process()
        return events

    def _close_session(self) -> list[Event]:
        events = self._process_pending()
        session, self._session = self._session, None
        if session is not None:
            events += session.close()
        return events

    def _enroll(self, enrolled: Mapping[str, Floats]) -> Mapping[str, Floats]:
        self._current_session()
        if not self._options.speakers or self._speakers is None:
            raise OptionError("voices: expected a session that tells speakers apart, got one that does not")
        self._speakers.add_voices(enrolled)
        return self._speakers.voices

    def _current_session(self) -> Session:
        if self._session is None:
            self._session = self._make_session()
        return self._session

    async def _load_speakers(self, options: LiveOptions) -> None:
        if options.speakers and (self._speakers is None or options.speakers != self._speakers_option):
            self._speakers = await anyio.to_thread.run_sync(make_live_speakers, options.speakers)
            self._speakers_option = options.speakers

    def _make_session(self) -> Session:
        options = self._options
        return self._model.session(
            options.languages or None,
            switching=options.switching,
            following=SessionOptions(switch_certainty=options.switch_certainty),
            vad=options.vad,
            captions=options.captions,
            stream=StreamOptions.of(options.decoding),
            speakers=self._speakers if options.speakers else None,
            runtime=self._caller,
        )
