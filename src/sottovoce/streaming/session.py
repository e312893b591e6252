"""A live session: samples in, events out, across pauses and changes of language.

Received samples are the only clock, so events do not depend on the sizes of pushes. Stages: schedule,
language, audio window, AlignAtt, words and commit policy, events.

After a short pause an utterance is resumed. At a change of language it is decoded to the change point and
continues in the new language; in doubt, words wait.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sottovoce.audio.samples import AudioBuffer, PushedAudio
from sottovoce.audio.vad import SpeechEdge, VadStream
from sottovoce.decoding.filters import LiveVocabulary
from sottovoce.errors import SessionClosedError
from sottovoce.language.timeline import LanguageChange, LanguageTimeline
from sottovoce.models.backend import Backend
from sottovoce.models.dims import EncoderMode
from sottovoce.options.live import Switching as Switching
from sottovoce.runtime.calls import DirectRuntime, Runtime, Steps
from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.streaming.alignatt import AlignAttDecoder
from sottovoce.streaming.audio_window import SNAP_S
from sottovoce.streaming.commit_policy import WordBuilder
from sottovoce.streaming.language_tracker import LiveLanguageTracker
from sottovoce.streaming.options import PAUSE_MS, USUAL_PAUSE_S, StreamOptions, TextEnd
from sottovoce.streaming.options import SessionOptions as SessionOptions
from sottovoce.streaming.utterance import RETRY_AFTER_S, LiveUtterance, UtteranceDecoder
from sottovoce.text.languages import SENTENCE_ENDS
from sottovoce.text.replacements import Replacements
from sottovoce.text.tokenizer import Tokenizer
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


class EventNumbers:
    """Numbers the events of a session, and its utterances from 1; an utterance ends with its final."""

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._utterance = 0
        self._is_open = False

    def numbered(self, events: Iterable[Event]) -> list[Event]:
        return [self._numbered(event) for event in events]

    def _numbered(self, event: Event) -> Event:
        seq, self._next = self._next, self._next + 1
        if isinstance(event, LanguageChanged):
            return replace(event, seq=seq, utterance=None)
        if not self._is_open and not isinstance(event, SpeechEnded | TurnEnded):
            self._utterance += 1
            self._is_open = True
        if isinstance(event, Final | SpeechEnded):
            self._is_open = False
        return replace(event, seq=seq, utterance=self._utterance)


@dataclass(eq=False)
class EventEmitter:
    """Makes events, numbered when they are taken; times are seconds of the recording.

    Without a pause, a final comes at the first end of a sentence after sentence_s, or after longest_s.

    attempt: holds back an error of the speaker labeller; the words come without labels.
    """

    sentence_s: float
    longest_s: float
    attempt: Callable[[], AbstractContextManager[None]] = nullcontext
    speakers: LiveSpeakers | None = None
    allowed_mass: Callable[[float, float], float | None] = lambda start_s, end_s: None
    replacements: Replacements | None = None

    def __post_init__(self) -> None:
        self._events: list[Event] = []
        self._numbers = EventNumbers()
        self._words: list[Word] = []
        """Committed words since the last final."""
        self._waiting: list[Word] = []
        """Committed words that the next ones may join in a replacement."""
        self._unstable = ""

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return self._numbers.numbered(events)

    def emit_words(self, words: Sequence[Word], language: str, now_s: float) -> None:
        if self.replacements is not None:
            waiting = [*self._waiting, *words]
            n_settled = self.replacements.n_settled(waiting)
            words, self._waiting = self.replacements.words(waiting[:n_settled]), waiting[n_settled:]
        self._emit_settled(words, language, now_s)

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
            with self.attempt():
                words = self.speakers.label(words)
        self._words += words
        text = "".join(word.word for word in words)
        span = (words[0].start, words[-1].end)
        self.emit(Partial(*span, text, language, tuple(words), now_s))

    def emit_unstable(
        self, words: Sequence[Word], language: str, now_s: float, *, committed_s: float
    ) -> None:
        if self.replacements is not None and words:
            words = self.replacements.words([*self._waiting, *words])
        text = "".join(word.word for word in words)
        if text == self._unstable:
            return
        self._unstable = text
        span = (words[0].start, words[-1].end) if words else (committed_s, committed_s)
        self.emit(Unstable(*span, text, language, now_s))

    def emit_final(self, language: str, now_s: float) -> None:
        """Emit a final of the words since the last final."""
        if self.replacements is not None and self._waiting:
            words, self._waiting = self.replacements.words(self._waiting), []
            self._emit_settled(words, language, now_s)
        self._emit_final(language, now_s)

    def _emit_final(self, language: str, now_s: float) -> None:
        if not self._words:
            return
        words, self._words = tuple(self._words), []
        if self.speakers is not None:
            with self.attempt():
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
        if self._vad is not None:
            self._edges += self._vad.push(pcm)
        elif not self._is_all_speech and len(pcm):
            self._edges.append(SpeechEdge("start", 0, 0))
            self._is_all_speech = True

    def stop(self) -> None:
        if self._vad is not None:
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


def encoder_mode(options: StreamOptions, backend: Backend) -> EncoderMode:
    """Return how growing audio is encoded; with a `tail_s`, all frames of padding are computed."""
    mode = options.encoder or backend.encoder_mode
    if options.tail_s is None:
        return mode
    dense = replace(mode, stride=1, anchors=()) if mode.has_sparse_padding else mode
    return replace(dense, tail_s=options.tail_s)


class Session:
    """Turns speech into events as it comes.

    vad: None: everything is speech until `close`. speakers: an unused speaker labeller. runtime: runs the
    calls of the model; None: this backend.

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
        self._options = options or SessionOptions()
        self._runtime = runtime or DirectRuntime(backend)
        stream, backend = self._options.stream, self._runtime.backend
        self._turns = stream.turn_rule
        self._text_end: TextEnd | None = None
        self._pushed = PushedAudio()
        self._schedule = UpdateSchedule(
            vad, stream.chunk_s, stream.max_pause_s, with_pauses=self._turns is not None
        )
        self._tracker = LiveLanguageTracker(backend, tokenizer, self._options)
        of_task = tokenizer.with_task(stream.task)
        self._builder = cache(lambda language: WordBuilder(of_task.with_language(language)))
        vocabulary = LiveVocabulary.of(tokenizer, backend.dims.n_vocab)
        self._aligner = AlignAttDecoder(backend, tokenizer.eot, vocabulary, stream.beam_size, stream.fusion)
        self._events = EventEmitter(
            stream.sentence_s,
            stream.longest_final_s,
            self._attempt,
            speakers,
            self.timeline.allowed_mass,
            Replacements.of(self._options.replacements),
        )
        self._speakers = speakers
        self._decoder: UtteranceDecoder | None = None
        self._failure: Exception | None = None
        self._closed = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session. Its last events are those of a `close` within the block."""
        self.close()

    def __repr__(self) -> str:
        names = ", ".join([*self.languages[:3], *["…"] * (len(self.languages) > 3)])
        state = "closed" if self._closed else "open"
        return f"Session({names}, {self._schedule.buffer.end / SAMPLE_RATE:.1f} s, {state})"

    @property
    def languages(self) -> tuple[str, ...]:
        return self._tracker.languages

    @property
    def timeline(self) -> LanguageTimeline:
        """The languages over time; read only."""
        return self._tracker.timeline

    def push(
        self,
        pcm: npt.NDArray[np.generic] | Tensor,
        *,
        sample_rate: int = SAMPLE_RATE,
        newest_only: bool = False,
        greedy: bool = False,
    ) -> list[Event]:
        """Push samples (n,), (channels, n) or (n, channels), and return the resulting events.

        pcm: floats in [-1, 1], int16 or int32. All pieces have the channels, which are mixed, and the
        `sample_rate` of the first.

        If the model fails, its error is raised; the next call returns the events so far.

        newest_only: do only the last update of each utterance within these samples, if the caller is late.
        greedy: decode with one beam until the end of an utterance, if the machine is busy.

        Raises:
            SessionClosedError: after `close`.
            AudioError: other samples, or more than 10 minutes at once; the session is unchanged.
        """
        if self._closed:
            raise SessionClosedError("push: expected no audio after close(), got some; start a new session")
        with self._runtime.torch_threads():
            self._schedule.append(self._pushed.push(pcm, sample_rate))
            self._advance(newest_only=newest_only, greedy=greedy)
        return self._take_events()

    def close(self) -> list[Event]:
        """Finish the utterance and close the session; a second call returns events held back by an error."""
        if not self._closed:
            self._closed = True
            with self._runtime.torch_threads():
                self._schedule.append(self._pushed.flush())
                self._schedule.stop()
                self._advance()
        return self._take_events()

    def finalize(self) -> list[Event]:
        """Commit all words so far, as at the end of an utterance; the session continues."""
        decoder = self._decoder
        if decoder is not None and decoder.is_open and not self._closed:
            with self._runtime.torch_threads():
                self._flush(decoder, self._schedule.buffer.end)
        return self._take_events()

    def _take_events(self) -> list[Event]:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._events.take()

    def _advance(self, *, newest_only: bool = False, greedy: bool = False) -> None:
        for point in self._schedule.points(newest_only=newest_only):
            self._diarize()
            if point.kind == "start":
                self._start_speech(point.sample)
            elif point.kind == "pause":
                self._pause_speech()
            elif point.kind == "end":
                self._end_speech(point.sample)
            elif self._decoder is not None and self._decoder.is_open:
                with self._attempt():
                    self._feed(self._decoder, point.sample)
                    self._runtime.run(self._update(self._decoder, greedy=greedy))
        self._diarize()
        taken = None
        if self._decoder is not None:
            taken = self._decoder.utterance.end_sample
            if not self._decoder.is_open and not self._schedule.resumes(taken, self._schedule.onset):
                self._decoder.release()
                taken = None
        self._schedule.discard(taken)

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            log.warning("an update failed: %s", type(error).__name__)
            self._failure = error

    def _diarize(self) -> None:
        if self._speakers is not None:
            with self._attempt():
                pcm = self._schedule.buffer.view(self._speakers.n_samples, self._schedule.now)
                self._speakers.push(pcm, is_speech=self._decoder is not None and self._decoder.is_open)

    def _feed(self, decoder: UtteranceDecoder, until: int) -> None:
        end = decoder.utterance.end_sample
        if until > end:
            decoder.utterance.append(self._schedule.buffer.view(end, until).copy())

    def _start_speech(self, sample: int) -> None:
        at = max(sample, self._schedule.buffer.start)
        self._tracker.begin(at)
        last = self._decoder
        if last is not None and self._schedule.resumes(last.utterance.end_sample, at):
            last.resume(at / SAMPLE_RATE)
        else:
            self._decoder = self._new_decoder(at, None if last is None else last.utterance.history)
        self._events.emit(SpeechStarted(at / SAMPLE_RATE, self._schedule.now_s))

    def _new_decoder(self, sample: int, history: Mapping[str, tuple[int, ...]] | None) -> UtteranceDecoder:
        stream = self._options.stream
        utterance = LiveUtterance(
            lambda language: self._builder(language).tokenizer,
            stream,
            encoder_mode(stream, self._runtime.backend),
            self._runtime.backend.dims.n_mels,
            start_sample=sample,
            history=history,
        )
        return UtteranceDecoder(
            utterance,
            self._aligner,
            self._builder(self._tracker.language),
            lambda words, language: self._events.emit_words(words, language, self._schedule.now_s),
            options=stream,
            retry_after_s=RETRY_AFTER_S if self._schedule.has_vad else math.inf,
            reads_ahead=self._options.captions == "revisable",
        )

    def _pause_speech(self) -> None:
        """Predict how the text goes on, which decides how long a pause ends the turn."""
        assert self._decoder is not None
        assert self._turns is not None
        self._text_end = None
        with self._attempt():
            self._feed(self._decoder, self._schedule.now)
            self._text_end = self._runtime.run(self._decoder.text_end())
        pause_s = USUAL_PAUSE_S if self._text_end is None else self._turns.pause_s(self._text_end)
        self._schedule.end_after(pause_s)

    def _end_speech(self, sample: int) -> None:
        assert self._decoder is not None
        self._flush(self._decoder, sample)
        self._decoder.is_open = False
        now_s = self._schedule.now_s
        self._events.emit(SpeechEnded(sample / SAMPLE_RATE, now_s))
        pause_s = self._schedule.pause_s
        if self._turns is not None and self._text_end is not None and pause_s is not None:
            probability = self._turns.probability(self._text_end, pause_s)
            self._events.emit(TurnEnded(sample / SAMPLE_RATE, probability, now_s))

    def _update(self, decoder: UtteranceDecoder, *, greedy: bool) -> Steps[None]:
        pause_s = self._schedule.pause_s
        if pause_s is not None and decoder.read_until_s >= self._schedule.now_s - pause_s:
            return  # nothing was spoken since all words were committed
        if not decoder.is_long_enough or not (
            self._tracker.is_following or decoder.may_commit(self._tracker.certain_until_s)
        ):
            return
        yield from self._follow_language(decoder, self._schedule.now)
        if decoder.may_commit(self._tracker.certain_until_s):
            yield from decoder.update(self._tracker.certain_until_s, greedy=greedy)
            self._emit_unstable(decoder, decoder.policy.unstable)

    def _flush(self, decoder: UtteranceDecoder, sample: int) -> None:
        with self._attempt():
            self._runtime.run(self._finish(decoder, sample))
        self._events.emit_final(decoder.language, self._schedule.now_s)

    def _finish(self, decoder: UtteranceDecoder, sample: int) -> Steps[None]:
        with self._attempt():
            self._feed(decoder, min(sample, self._schedule.buffer.end))
            yield from self._follow_language(decoder, sample, final=True)
        with self._attempt():
            yield from self._commit_rest(decoder, sample)

    def _follow_language(self, decoder: UtteranceDecoder, until: int, *, final: bool = False) -> Steps[None]:
        change = yield from self._tracker.update(decoder.utterance, until, final=final)
        if change is None:
            return
        at_s = yield from self._finish_language(decoder, change)
        decoder.begin_language(self._builder(change.target))
        confirmed_s = max(change.confirmed_s, at_s)
        self._events.emit(
            LanguageChanged(change.source, change.target, at_s, confirmed_s, self.timeline.belief)
        )

    def _commit_rest(self, decoder: UtteranceDecoder, until: int) -> Steps[None]:
        yield from decoder.flush(
            until, is_last=self._closed and decoder.utterance.end_sample == self._schedule.buffer.end
        )
        self._emit_unstable(decoder, ())

    def _finish_language(self, decoder: UtteranceDecoder, change: LanguageChange) -> Steps[float]:
        utterance = decoder.utterance
        if change.source is None:
            return utterance.start_sample / SAMPLE_RATE
        at_s = change.at_s
        if at_s < utterance.committed.earliest_boundary_s:
            at_s = utterance.boundary_s(at_s, SNAP_S)
        if decoder.undecoded_s(at_s) > 0.0:
            with self._attempt():
                yield from self._commit_rest(decoder, round(at_s * SAMPLE_RATE))
        self._events.emit_final(decoder.language, self._schedule.now_s)
        until_s = max(at_s, utterance.committed.until_s)
        utterance.drop_before(at_s, words_until_s=until_s)
        utterance.committed.until_s = until_s
        return at_s

    def _emit_unstable(self, decoder: UtteranceDecoder, words: Sequence[Word]) -> None:
        if self._options.captions == "revisable":
            language, committed_s = decoder.language, decoder.utterance.committed.until_s
            self._events.emit_unstable(words, language, self._schedule.now_s, committed_s=committed_s)
