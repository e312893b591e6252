"""A live session: samples in, events out, across pauses and changes of language.

The session is synchronous, with received samples as its only clock, so events do not depend on the sizes
of pushes. Emitted words are never revised. It calls the model through a `Runtime`, which may serve several
sessions. Stages: schedule, language (`language_follower`), audio window,
AlignAtt (`alignatt`), words, commit policy, events.

After a short pause an utterance is resumed, as its text is the best context. At a confirmed change of
language it is decoded to the change point, and continues in the new language; in doubt, words wait.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor

from sottovoce.audio.samples import AudioBuffer, is_tensor, tensor_array
from sottovoce.audio.vad import SpeechEdge, VadStream
from sottovoce.backends.base import Backend
from sottovoce.engine.runtime import DirectRuntime, Runtime
from sottovoce.errors import SessionClosedError
from sottovoce.language.timeline import LanguageChange, LanguageTimeline
from sottovoce.options.live import Switching as Switching
from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.streaming.audio_window import SNAP_S, AudioWindow
from sottovoce.streaming.events import EventEmitter, UnstableText
from sottovoce.streaming.language_follower import LiveLanguageFollower
from sottovoce.streaming.options import SessionOptions as SessionOptions
from sottovoce.streaming.utterance_decoder import LOST_S, StrategyFactory, UtteranceDecoder
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE, Event, LanguageChanged, Samples, Word

IDLE_S, ONSET_S = 5.0, 2.0
"""Seconds of audio kept in a pause, where the next utterance begins; a resumed one needs all of it."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulePoint:
    """A sample where an update is due, or where speech starts or ends."""

    kind: Literal["update", "start", "end"]
    sample: int


class UpdateSchedule:
    """Buffers samples and iterates over the points in them.

    vad: voice activity detection; None: all is speech until `stop`. chunk_s: interval between updates.
    held_over_s: longest pause after which an utterance is resumed.
    """

    def __init__(self, vad: VadStream | None, chunk_s: float, held_over_s: float) -> None:
        self._vad = vad
        self._buffer = AudioBuffer()
        self._edges: deque[SpeechEdge] = deque()
        self._is_all_speech = False
        self._chunk = round(chunk_s * SAMPLE_RATE)
        self._next_update = self._chunk
        self._held_over = round(held_over_s * SAMPLE_RATE)
        self.now = 0

    @property
    def now_s(self) -> float:
        return self.now / SAMPLE_RATE

    @property
    def has_vad(self) -> bool:
        return self._vad is not None

    @property
    def start(self) -> int:
        return self._buffer.start

    @property
    def end(self) -> int:
        return self._buffer.end

    def view(self, start: int, end: int) -> Samples:
        return self._buffer.view(start, end)

    def append(self, pcm: Samples) -> None:
        """Append samples (n,) float32.

        Raises:
            AudioError: as `Session.push`.
        """
        self._buffer.append(pcm)
        if self._vad is not None:
            self._edges += self._vad.push(pcm)
        elif not self._is_all_speech and len(pcm):
            self._edges.append(SpeechEdge("start", 0, 0))
            self._is_all_speech = True

    def stop(self) -> None:
        """End the audio: current speech ends there."""
        if self._vad is not None:
            self._edges += self._vad.close()
        elif self._is_all_speech:
            self._edges.append(SpeechEdge("end", self.end, self.end))

    def points(self, *, newest_only: bool = False) -> Iterator[SchedulePoint]:
        """Advance `now` to the last sample received; edges come at the sample where they were detected.

        newest_only: of the updates between two edges, only the last one.
        """
        while self._edges:
            edge = self._edges.popleft()
            yield from self._updates(edge.detected_sample, newest_only=newest_only)
            yield SchedulePoint(edge.kind, edge.sample)
        yield from self._updates(self.end, newest_only=newest_only)

    def _updates(self, until: int, *, newest_only: bool) -> Iterator[SchedulePoint]:
        if newest_only and self._next_update + self._chunk <= until:
            self._next_update += (until - self._next_update) // self._chunk * self._chunk
        while self._next_update <= until:
            self.now = self._next_update
            self._next_update += self._chunk
            yield SchedulePoint("update", self.now)
        self.now = until

    def resumes(self, end: int, start: int) -> bool:
        """Return whether speech from sample `start` continues an utterance that ended at sample `end`."""
        return start - end <= self._held_over

    def discard(self, taken: int, *, is_open: bool) -> None:
        """Drop samples from the buffer that are not needed again.

        taken: the last utterance has copied everything before this sample. is_open: that utterance
        continues.
        """
        idle = max(round(IDLE_S * SAMPLE_RATE), self._held_over + round(ONSET_S * SAMPLE_RATE))
        first = taken if is_open else max(taken, self.end - idle)
        self._buffer.drop_before(min(first, self.end))


class Session:
    """Turns speech into events as it comes.

    tokenizer: of the backend's model. vad: voice activity detection; None: everything is speech until
    `close`. speakers: an unused speaker labeller. runtime: runs the calls of the model; None: this backend.

    Raises:
        OptionError: languages that the model does not have.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        options: SessionOptions | None = None,
        *,
        vad: VadStream | None = None,
        speakers: LiveSpeakers | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._options = (options or SessionOptions()).suited_to(backend.encoder_mode)
        self._runtime = runtime or DirectRuntime(backend)
        stream = self._options.stream
        self._schedule = UpdateSchedule(vad, stream.chunk_s, stream.held_over_s)
        self._follower = LiveLanguageFollower(self._runtime, tokenizer, self._options)
        timeline = self._follower.timeline
        self._factory = StrategyFactory(self._runtime, tokenizer, self._options, timeline)
        self._events = EventEmitter(
            stream.sentence_s, stream.longest_final_s, speakers, allowed_mass=timeline.allowed_mass
        )
        self._speakers = speakers
        self._decoder: UtteranceDecoder | None = None
        """Of the current or last utterance."""
        self._failure: Exception | None = None
        self._closed = False

    @property
    def languages(self) -> tuple[str, ...]:
        """The allowed languages."""
        return self._follower.languages

    @property
    def timeline(self) -> LanguageTimeline:
        """The languages over time; read only."""
        return self._follower.timeline

    def push(self, pcm: Samples | Tensor, *, newest_only: bool = False) -> list[Event]:
        """Push samples (n,) float32, mono, 16 kHz, of any number, and return the resulting events.

        If an update fails, it is skipped and the session continues; no committed word or event is lost:
        they come with the next call.

        pcm: an array, or a tensor on the CPU. newest_only: of the updates within these samples only do the
        last one of an utterance, for callers that are late.

        Raises:
            SessionClosedError: after `close`.
            AudioError: samples that are not finite float32 of that shape, or more than 10 minutes at once;
                the session is unchanged. Errors of the model are raised too.
        """
        if self._closed:
            raise SessionClosedError("push: expected no audio after close(), got some; start a new session")
        with self._runtime.torch_threads():
            # The buffer raises the error for other types and shapes.
            self._schedule.append(cast(Samples, tensor_array(pcm, "pushed audio") if is_tensor(pcm) else pcm))
            self._advance(newest_only=newest_only)
        return self._take_events()

    def close(self) -> list[Event]:
        """Finish the utterance and close the session.

        A second close returns only what a failure of the first held back.
        """
        if not self._closed:
            self._closed = True
            with self._runtime.torch_threads():
                self._schedule.stop()
                self._advance()
        return self._take_events()

    def finalize(self) -> list[Event]:
        """Commit the audio so far, as at the end of an utterance; the session continues in its language.

        Does nothing in a pause.
        """
        decoder = self._decoder
        if decoder is not None and decoder.is_open and not self._closed:
            with self._runtime.torch_threads():
                self._flush(decoder, self._schedule.end, goes_on=True)
        return self._take_events()

    def _take_events(self) -> list[Event]:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._events.take()

    def _advance(self, *, newest_only: bool = False) -> None:
        for point in self._schedule.points(newest_only=newest_only):
            self._diarize()
            if point.kind == "start":
                self._start_speech(point.sample)
            elif point.kind == "end":
                self._end_speech(point.sample)
            elif self._decoder is not None and self._decoder.is_open:
                self._feed(self._decoder, point.sample)
                with self._attempt():
                    self._update(self._decoder)
        self._diarize()
        taken = 0 if self._decoder is None else self._decoder.utterance.end_sample
        self._schedule.discard(taken, is_open=self._decoder is not None and self._decoder.is_open)

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        """Keep the error of the body for the caller of the session; only the words of the body are lost."""
        try:
            yield
        except Exception as error:
            log.warning("an update failed: %s", type(error).__name__)
            self._failure = error

    def _diarize(self) -> None:
        """Feed audio up to the current sample to live diarization; silence only advances its clock."""
        if self._speakers is not None:
            pcm = self._schedule.view(self._speakers.n_samples, self._schedule.now)
            self._speakers.push(pcm, is_speech=self._decoder is not None and self._decoder.is_open)

    def _feed(self, decoder: UtteranceDecoder, until: int) -> None:
        end = decoder.utterance.end_sample
        if until > end:
            decoder.utterance.append(self._schedule.view(end, until).copy())

    def _start_speech(self, sample: int) -> None:
        """Begin or resume an utterance at a sample (before the current one, by onset and pre-roll)."""
        at = max(sample, self._schedule.start)
        self._follower.begin(at)
        last = self._decoder
        if last is not None and self._schedule.resumes(last.utterance.end_sample, at):
            last.resume(at / SAMPLE_RATE)
        else:
            self._decoder = self._new_decoder(at, last)
        self._events.speech_started(at / SAMPLE_RATE, self._schedule.now_s)

    def _new_decoder(self, sample: int, last: UtteranceDecoder | None) -> UtteranceDecoder:
        factory, is_parallel = self._factory, self._follower.is_parallel
        return UtteranceDecoder(
            self._runtime,
            factory.utterance(sample, None if last is None else last.utterance.history),
            factory.multi() if is_parallel else factory.single(self._follower.language),
            factory.encoder_mode,
            self._emit_words,
            options=self._options.stream,
            lost_s=LOST_S if self._schedule.has_vad else math.inf,
        )

    def _end_speech(self, sample: int) -> None:
        assert self._decoder is not None
        self._flush(self._decoder, sample, goes_on=False)
        self._decoder.is_open = False
        self._events.speech_ended(sample / SAMPLE_RATE, self._schedule.now_s)

    def _update(self, decoder: UtteranceDecoder) -> None:
        if not decoder.is_long_enough or not (
            self._follower.is_following or decoder.may_commit(self._follower.certain_until_s)
        ):
            return
        change = self._follower.update(decoder.utterance, self._schedule.now)
        if change is not None:
            self._switch(decoder, change)
        if decoder.may_commit(self._follower.certain_until_s):
            window = decoder.update(self._follower.certain_until_s)
            self._emit_unstable(decoder, window)

    def _flush(self, decoder: UtteranceDecoder, sample: int, *, goes_on: bool) -> None:
        """Commit all audio up to a sample and emit a final. goes_on: speech continues."""
        self._feed(decoder, min(sample, self._schedule.end))
        with self._attempt():
            self._resolve_language(decoder, sample)
        with self._attempt():
            self._commit_rest(decoder, sample)
        self._emit_final(decoder, goes_on=goes_on)

    def _resolve_language(self, decoder: UtteranceDecoder, until: int) -> None:
        change = self._follower.resolve(decoder.utterance, until, self._schedule.now_s)
        if change is not None:
            self._switch(decoder, change)

    def _commit_rest(self, decoder: UtteranceDecoder, until: int) -> None:
        """Commit all audio up to a sample and clear the unstable text."""
        is_last = self._closed and decoder.utterance.end_sample == self._schedule.end
        decoder.flush(until, is_last=is_last)
        end_s = decoder.utterance.committed.until_s
        if self._options.unstable:
            nothing = UnstableText("", end_s, end_s)
            self._events.emit_unstable(nothing, decoder.strategy.language, self._schedule.now_s)

    def _switch(self, decoder: UtteranceDecoder, change: LanguageChange) -> None:
        """Switch languages: finish the old one at the change point, and continue in the new one."""
        at_s = change.at_s
        if not self._follower.is_parallel:
            at_s = self._finish_language(decoder, change)
            decoder.strategy = self._factory.single(change.target)
        confirmed_s = max(change.confirmed_s, at_s)
        self._events.language_changed(
            LanguageChanged(change.source, change.target, at_s, confirmed_s, self.timeline.belief)
        )

    def _finish_language(self, decoder: UtteranceDecoder, change: LanguageChange) -> float:
        """Commit and drop the audio before a change; return where (s) the new language begins."""
        utterance = decoder.utterance
        if change.source is None:
            return utterance.start_sample / SAMPLE_RATE
        at_s = change.at_s
        if at_s < utterance.committed.earliest_border_s:
            at_s = utterance.border_s(at_s, SNAP_S)
        if decoder.undecoded_s(at_s) > 0.0:
            with self._attempt():
                self._commit_rest(decoder, round(at_s * SAMPLE_RATE))
        self._emit_final(decoder, goes_on=True)
        until_s = max(at_s, utterance.committed.until_s)
        utterance.drop_before(at_s, words_until_s=until_s)
        utterance.committed.until_s = until_s
        return at_s

    def _emit_words(self, words: Sequence[Word], language: str) -> None:
        self._events.emit_words(words, language, self._schedule.now_s)

    def _emit_final(self, decoder: UtteranceDecoder, *, goes_on: bool) -> None:
        self._events.emit_final(decoder.strategy.language, self._schedule.now_s, goes_on=goes_on)

    def _emit_unstable(self, decoder: UtteranceDecoder, window: AudioWindow | None) -> None:
        if not self._options.unstable or window is None:
            return
        language = decoder.strategy.language if self.timeline.current else self.timeline.likeliest
        self._events.emit_unstable(decoder.unstable_text, language, self._schedule.now_s)
