"""What live sessions of every kind of model share: the schedule of updates, events, and the public methods.

Received samples are the only clock, so events do not depend on the sizes of pushes.
"""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sottovoce.audio.samples import AudioBuffer, PushedAudio
from sottovoce.audio.vad import SpeechEdge, VadStream
from sottovoce.errors import SessionClosedError
from sottovoce.runtime.calls import RunBeside, Runtime, SpeechCall, Steps
from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.streaming.options import PAUSE_MS
from sottovoce.streaming.second_pass import SecondPass
from sottovoce.text.filters import LiveTextFilters, TextFilter
from sottovoce.text.languages import SENTENCE_ENDS
from sottovoce.types import (
    SAMPLE_RATE,
    Event,
    Final,
    LanguageChanged,
    Partial,
    Samples,
    SpeechEnded,
    SpeechStarted,
    TurnEnded,
    Unstable,
    Word,
)

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from sottovoce.streaming.audio_window import AudioWindow


class EventNumbers:
    """Numbers of events and of utterances, for a session and those that continue it.

    first: number of the first event. n_sources: sessions that share the numbers, each every n-th utterance.
    """

    def __init__(self, first: int = 0, n_sources: int = 1) -> None:
        self.events: Iterator[int] = itertools.count(first)
        self.utterances = [itertools.count(1 + place, n_sources) for place in range(n_sources)]

    def of_source(self, place: int) -> EventNumbers:
        """Return the numbers of one source, whose events get theirs among those of all."""
        numbers = EventNumbers()
        numbers.events, numbers.utterances = itertools.repeat(0), [self.utterances[place]]
        return numbers

    def numbered(self, events: Iterable[Event]) -> list[Event]:
        return [replace(event, seq=next(self.events)) for event in events]


class UtteranceNumbers:
    """Gives events the numbers of their utterances, which end with their finals, and the name of a source."""

    def __init__(self, numbers: EventNumbers | None = None, source: str | None = None) -> None:
        self._new = (numbers or EventNumbers()).utterances[0]
        self.source = source
        self._utterance = 0
        self._is_open = False

    def numbered(self, events: Iterable[Event]) -> list[Event]:
        return [self._numbered(event) for event in events]

    def _numbered(self, event: Event) -> Event:
        if isinstance(event, LanguageChanged):
            return replace(event, source=self.source)
        if not self._is_open and not isinstance(event, SpeechEnded | TurnEnded):
            self._utterance = next(self._new)
            self._is_open = True
        if isinstance(event, Final | SpeechEnded):
            self._is_open = False
        return replace(event, utterance=self._utterance, source=self.source)


@dataclass(eq=False)
class EventEmitter:
    """Makes events, with the numbers of their utterances; times are seconds of the recording.

    Without a pause, a final comes at the first end of a sentence after sentence_s, or after longest_s.

    joins_languages: an utterance continues after a change of language. attempt: holds back an error of the
    speaker labeller; the words come without labels. written: language of the text; None: the one that is
    spoken.
    """

    sentence_s: float
    longest_s: float
    joins_languages: bool = False
    attempt: AbstractContextManager[None] = field(default_factory=nullcontext)
    speakers: LiveSpeakers | None = None
    allowed_mass: Callable[[float, float], float | None] = lambda start_s, end_s: None
    filters: Sequence[TextFilter] = ()
    written: str | None = None

    def __post_init__(self) -> None:
        self._events: list[Event] = []
        self.numbers = UtteranceNumbers()
        self._words: list[Word] = []
        """Committed words since the last final."""
        self._filters = LiveTextFilters(self.filters)
        self._unstable = ""

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return self.numbers.numbered(events)

    def emit_words(self, words: Sequence[Word], language: str, now_s: float) -> None:
        self._emit_settled(self._filters.push(words, self.written or language), language, now_s)

    def _emit_settled(self, words: Sequence[Word], language: str, now_s: float) -> None:
        part: list[Word] = []
        for word in words:
            part.append(word)
            span_s = word.end - (self._words or part)[0].start
            ends = word.word.rstrip().endswith(SENTENCE_ENDS)
            if span_s > self.longest_s or (ends and span_s > self.sentence_s):
                self._emit_partial(part, language, now_s)
                self._emit_final(language, now_s)
                part = []
        if part:
            self._emit_partial(part, language, now_s)

    def _emit_partial(self, words: Sequence[Word], language: str, now_s: float) -> None:
        if self.speakers is not None:
            with self.attempt:
                words = self.speakers.label(words)
        if self.numbers.source is not None:
            words = [replace(word, speaker=self.numbers.source) for word in words]
        self._words += words
        text = "".join(word.word for word in words)
        span = (words[0].start, words[-1].end)
        self.emit(Partial(*span, text, language, tuple(words), now_s))

    def emit_unstable(
        self, words: Sequence[Word], language: str, now_s: float, *, committed_s: float
    ) -> None:
        words = self._filters.preview(words, self.written or language) if words else words
        text = "".join(word.word for word in words)
        if text == self._unstable:
            return
        self._unstable = text
        span = (words[0].start, words[-1].end) if words else (committed_s, committed_s)
        self.emit(Unstable(*span, text, language, now_s))

    def emit_final(self, language: str, now_s: float, *, is_change: bool = False) -> None:
        """Emit a final of the words since the last final; is_change: at a change of language."""
        self._emit_settled(self._filters.flush(self.written or language), language, now_s)
        if not (is_change and self.joins_languages):
            self._emit_final(language, now_s)

    def _emit_final(self, language: str, now_s: float) -> None:
        if not self._words:
            return
        words, self._words = tuple(self._words), []
        if self.speakers is not None:
            with self.attempt:
                words = tuple(self.speakers.relabel(words))
        text = "".join(word.word for word in words).strip()
        most = Counter(word.language for word in words).most_common(1)[0][0] or language
        span = (words[0].start, words[-1].end)
        mass = self.allowed_mass(*span)
        self.emit(Final(*span, text, most, words, now_s, mass))

    def emit(self, event: Event) -> None:
        self._events.append(event)


ONSET_S = 2.0
"""Speech begins at most so long before it is detected."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulePoint:
    kind: Literal["update", "start", "pause", "end"]
    sample: int


class UpdateSchedule:
    """Buffers samples and finds where updates are due, and where speech starts, pauses or ends.

    vad: None: all is speech until `stop`. with_pauses: speech ends after the pause that `end_after` sets.
    """

    def __init__(
        self, vad: VadStream | None, chunk_s: float, max_pause_s: float, *, with_pauses: bool = False
    ) -> None:
        self._vad = vad
        self.buffer = AudioBuffer()
        self.has_vad = vad is not None
        self._edges: deque[SpeechEdge] = deque()
        self._is_all_speech = False
        self._chunk = round(chunk_s * SAMPLE_RATE)
        self._next_update = self._chunk
        self._max_pause = round(max_pause_s * SAMPLE_RATE)
        self._with_pauses = with_pauses
        self._pause: SpeechEdge | None = None
        """The pause that has not ended speech yet."""
        self._silence: int | None = None
        """First sample of the pause, also after it has ended speech."""
        self._end = 0
        self.now = 0

    @property
    def now_s(self) -> float:
        return self.now / SAMPLE_RATE

    @property
    def pause_s(self) -> float | None:
        """Length (s) of the pause, also after it has ended speech; None in speech."""
        return None if self._silence is None else (self.now - self._silence) / SAMPLE_RATE

    def end_after(self, pause_s: float) -> None:
        assert self._silence is not None
        self._end = max(self.now, self._silence + round(pause_s * SAMPLE_RATE))

    def append(self, pcm: Samples) -> None:
        self.buffer.append(pcm)
        if self._vad is None and not self._is_all_speech and len(pcm):
            self._edges.append(SpeechEdge("start", 0, 0))
            self._is_all_speech = True

    def detect_speech(self) -> Steps[None]:
        """Detect voice activity in the samples that were appended."""
        if self._vad is not None and self._vad.n_samples < self.buffer.end:
            self._edges += yield from SpeechCall(self._vad, self.buffer.view(self._vad.n_samples))

    def stop(self) -> None:
        if self._vad is not None:
            self._edges += self._vad.push(self.buffer.view(self._vad.n_samples))
            self._edges += self._vad.close()
        elif self._is_all_speech:
            self._edges.append(SpeechEdge("end", self.buffer.end, self.buffer.end))
        self._with_pauses = False

    def points(self, *, newest_only: bool = False) -> Iterator[SchedulePoint]:
        """Advance `now` to the last sample; edges come where they were detected.

        newest_only: of the updates between two edges, only the last one.
        """
        while self._edges:
            edge = self._edges.popleft()
            yield from self._until(edge.detected_sample, newest_only=newest_only)
            if self._pause is not None:  # speech goes on before the pause has ended it
                self._pause = self._silence = None
            elif edge.kind == "end" and self._with_pauses:
                self._pause = edge
                self._end = self.now
                self._silence = self.now - round(PAUSE_MS * SAMPLE_RATE / 1000)
                yield SchedulePoint("pause", edge.sample)
            else:
                yield SchedulePoint(edge.kind, edge.sample)
        yield from self._until(self.buffer.end, newest_only=newest_only)
        if self._pause is not None and not self._with_pauses:  # the audio ends in a pause
            yield self._end_of_pause(self._pause)

    def _until(self, until: int, *, newest_only: bool) -> Iterator[SchedulePoint]:
        if self._pause is not None and self._end <= until:
            yield from self._updates(self._end, newest_only=newest_only)
            yield self._end_of_pause(self._pause)
        yield from self._updates(until, newest_only=newest_only)

    def _end_of_pause(self, pause: SpeechEdge) -> SchedulePoint:
        self._pause = None
        return SchedulePoint("end", pause.sample)

    def _updates(self, until: int, *, newest_only: bool) -> Iterator[SchedulePoint]:
        if newest_only and self._next_update + self._chunk <= until:
            self._next_update += (until - self._next_update) // self._chunk * self._chunk
        while self._next_update <= until:
            self.now = self._next_update
            self._next_update += self._chunk
            yield SchedulePoint("update", self.now)
        self.now = until

    @property
    def onset(self) -> int:
        return self.buffer.end - round(ONSET_S * SAMPLE_RATE)

    def resumes(self, end: int, start: int) -> bool:
        return start - end <= self._max_pause

    def discard(self, taken: int | None) -> None:
        """Drop samples that no utterance needs again; taken: end of those that it copied."""
        self.buffer.drop_before(self.onset if taken is None else taken)


class HeldError(AbstractContextManager[None]):
    """Holds back an error until `raise_held`. One that another replaces is raised by nothing, and logged."""

    _error: Exception | None = None

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if self._error is not None:
            log.warning("an update failed: %s", type(self._error).__name__)
        self._error = error
        return True

    def raise_held(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


class LiveSession(ABC):
    """Turns speech into events as it comes; made by `Recogniser.session`.

    runtime: what runs its requests. speakers: an unused speaker labeller. second_pass: transcribes finished
    utterances again.
    """

    def __init__(
        self,
        runtime: Runtime,
        schedule: UpdateSchedule,
        events: EventEmitter,
        speakers: LiveSpeakers | None,
        second_pass: SecondPass | None = None,
    ) -> None:
        self.runtime = runtime
        self._pushed = PushedAudio()
        self._schedule = schedule
        self._events = events
        self._attempt = events.attempt = HeldError()
        self._speakers = events.speakers = speakers
        self._second_pass = second_pass
        self._closed = False
        self._add_window: Callable[[AudioWindow], None] = lambda window: None
        self.number_by(EventNumbers())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session. Its last events are those of a `close` within the block."""
        self.close()

    def __repr__(self) -> str:
        names = ", ".join([*self.languages[:3], *["…"] * (len(self.languages) > 3)])
        state = "closed" if self._closed else "open"
        return f"{type(self).__name__}({names}, {self._schedule.buffer.end / SAMPLE_RATE:.1f} s, {state})"

    @property
    @abstractmethod
    def languages(self) -> tuple[str, ...]: ...

    def push(
        self,
        pcm: npt.NDArray[np.generic] | Tensor,
        *,
        sample_rate: int = SAMPLE_RATE,
        newest_only: bool = False,
        greedy: bool = False,
        realtime: bool = False,
    ) -> list[Event]:
        """Push samples (n,), (channels, n) or (n, channels), and return the resulting events.

        pcm: floats in [-1, 1], int16 or int32. All pieces have the channels, which are mixed, and the
        `sample_rate` of the first.

        If the model fails, its error is raised; the next call returns the events so far.

        newest_only: do only the last update of each utterance within these samples, if the caller is late.
        greedy: decode with one beam until the end of an utterance, if the machine is busy.
        realtime: do not wait for the second pass: when two utterances wait for it and another one ends, the
        oldest keeps its committed words.

        Raises:
            SessionClosedError: after `close`.
            AudioError: other samples, or more than 10 minutes at once; the session is unchanged.
        """
        return self.runtime.run(
            self.push_request(
                pcm, sample_rate=sample_rate, newest_only=newest_only, greedy=greedy, realtime=realtime
            )
        )

    def push_request(
        self,
        pcm: npt.NDArray[np.generic] | Tensor,
        *,
        sample_rate: int = SAMPLE_RATE,
        newest_only: bool = False,
        greedy: bool = False,
        realtime: bool = False,
    ) -> Steps[list[Event]]:
        """Return `push` as a request for the runtime of the session."""
        if self._closed:
            raise SessionClosedError("push: expected no audio after close(), got some; start a new session")
        self._append(self._pushed.push(pcm, sample_rate))
        yield from self._advance(newest_only=newest_only, greedy=greedy)
        take = partial(self._take_events, realtime=realtime)
        return take() if realtime or self._second_pass is None else (yield from RunBeside(take))

    def end(self) -> list[Event]:
        """Finish the utterance, without waiting for a second pass; `close` returns its finals."""
        return self.runtime.run(self.end_request())

    def end_request(self) -> Steps[list[Event]]:
        if not self._closed:
            self._closed = True
            self._append(self._pushed.flush())
            self._schedule.stop()
            yield from self._advance()
        return self._take_events(realtime=True)

    def close(self) -> list[Event]:
        """Finish the utterance and close the session; a second call returns events held back by an error.

        Waits for the second pass for at most `final_wait_s`; then finals keep the committed words.
        """
        try:
            events = self.end()
        finally:
            if self._second_pass is not None:
                self._second_pass.close()
        return [*events, *self.finals()]

    def finals(self, wait_s: float | None = None) -> list[Event]:
        """Return the finals of a second pass that are ready; `push` returns them too.

        wait_s: seconds to wait for the others, which then keep their committed words; None: they come later.
        """
        if self._second_pass is None:
            return []
        if wait_s is not None:
            self._second_pass.wait(wait_s)
        return self.numbers.numbered(self._second_pass.finals(self._schedule.now_s))

    def on_finals(self, notify: Callable[[], None], has_time: Callable[[], bool] = lambda: True) -> None:
        """Call a function, in any thread, whenever `finals` may return one.

        has_time: whether an utterance that ends now is read; otherwise its final has the committed words.
        """
        if self._second_pass is not None:
            self._second_pass.notify = notify
            self._second_pass.has_time = has_time

    def on_window(self, add: Callable[[AudioWindow], None]) -> None:
        """Call a function with each window of encoder states that is decoded, in the thread of the model.

        A CTC network has none.
        """
        self._add_window = add

    def number_by(self, numbers: EventNumbers, source: str | None = None) -> None:
        """Continue the numbers of other sessions. source: its name in events, the speaker of its words."""
        self.numbers = numbers
        self._events.numbers = UtteranceNumbers(numbers, source)

    def discard(self) -> None:
        """Stop the second pass of a session whose further events are not needed."""
        if self._second_pass is not None:
            self._second_pass.close(wait_s=0.0)

    def finalize(self) -> list[Event]:
        """Commit all words so far, as at the end of an utterance; the session continues."""
        return self.runtime.run(self.finalize_request())

    def finalize_request(self) -> Steps[list[Event]]:
        if self.is_in_speech and not self._closed:
            yield from self._flush(self._schedule.buffer.end)
        return self._take_events(realtime=True)

    def _append(self, pcm: Samples) -> None:
        self._schedule.append(pcm)
        if self._second_pass is not None:
            self._second_pass.append(pcm)

    def _take_events(self, *, realtime: bool) -> list[Event]:
        self._attempt.raise_held()
        events = self._events.take()
        if self._second_pass is not None:
            events = self._second_pass.take(events, realtime=realtime)
        return [*self.numbers.numbered(events), *self.finals()]

    def _advance(self, *, newest_only: bool = False, greedy: bool = False) -> Steps[None]:
        yield from self._schedule.detect_speech()
        for point in self._schedule.points(newest_only=newest_only):
            yield from self._diarize()
            if point.kind == "start":
                at = max(point.sample, self._schedule.buffer.start)
                self._start_speech(at)
                self._events.emit(SpeechStarted(at / SAMPLE_RATE, self._schedule.now_s))
            elif point.kind == "pause":
                yield from self._pause_speech()
            elif point.kind == "end":
                yield from self._end_speech(point.sample)
            elif self.is_in_speech:
                with self._attempt:
                    yield from self._update(point.sample, greedy=greedy)
        yield from self._diarize()
        self._schedule.discard(self._release())

    @property
    @abstractmethod
    def is_in_speech(self) -> bool:
        """Whether an utterance is open."""

    @abstractmethod
    def _start_speech(self, sample: int) -> None: ...

    @abstractmethod
    def _pause_speech(self) -> Steps[None]:
        """Choose how long a pause ends the utterance, by `UpdateSchedule.end_after`."""

    @abstractmethod
    def _end_speech(self, sample: int) -> Steps[None]: ...

    @abstractmethod
    def _update(self, sample: int, *, greedy: bool) -> Steps[None]:
        """Decode the open utterance up to a sample."""

    @abstractmethod
    def _flush(self, sample: int) -> Steps[None]:
        """Commit the open utterance up to a sample, and emit its final."""

    @abstractmethod
    def _release(self) -> int | None:
        """Forget what is not needed again; return the end of the samples that were copied, or None."""

    def _diarize(self) -> Steps[None]:
        speakers = self._speakers
        if speakers is None:
            return
        pcm = self._schedule.buffer.view(speakers.n_samples, self._schedule.now)
        compare = partial(speakers.push, pcm, is_speech=self.is_in_speech)
        with self._attempt:
            yield from RunBeside(compare)
