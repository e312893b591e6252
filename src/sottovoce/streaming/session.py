"""A live session: samples in, events out, through pauses and changes of language.

Synchronous: no thread, no clock. Time is samples received, and updates are due at fixed samples, so the
events do not depend on how the audio is cut into pushes; `emission_time` is the audio that an event
needed. Words that were emitted are never taken back.
A session does not call the model: it is a generator of work (see `work`), and `push` drives it.
An utterance is held over short pauses: what was said before is the best to read on from. On a confirmed
change of language it is read to the change point, and goes on in the new one; in doubt, words wait.

Not known here: files, microphones, rendering, and how an utterance is read (see `plan`).
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence

from sottovoce.audio.buffer import AudioBuffer
from sottovoce.audio.vad_stream import SpeechEdge, VadStream
from sottovoce.backends.base import Backend
from sottovoce.errors import OptionError, SessionClosedError
from sottovoce.language.probe import LanguageProbe
from sottovoce.language.timeline import LanguageChange, LanguageTimeline
from sottovoce.speakers.live import LiveSpeakers
from sottovoce.streaming.draft import CtcDraft, DraftText
from sottovoce.streaming.endofword import EndOfWord
from sottovoce.streaming.language_watch import LanguageWatch
from sottovoce.streaming.plans import Plans
from sottovoce.streaming.session_options import SessionOptions as SessionOptions
from sottovoce.streaming.session_options import Switching as Switching
from sottovoce.streaming.speech import LOST_S, Speech
from sottovoce.streaming.telling import Teller
from sottovoce.streaming.utterance import Utterance
from sottovoce.streaming.window import Window
from sottovoce.streaming.work import Engine, LocalEngine, Steps, run
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, Event, LanguageChanged, Samples, Word

log = logging.getLogger(__name__)

SNAP_S = 0.25
"""A change point is moved so far at most to where it is quietest: the timeline finds it to some tenths of a
second, and within a word it would be heard on both sides."""
LEAST_PART = 0.5
"""Unread audio of up to this part of the frame threshold holds no word that could be told."""
IDLE_KEPT_S, ONSET_S = 5.0, 2.0
"""Audio kept in a pause: the next utterance begins in it; one held over needs all of the pause too."""


class Session:
    """Speech as it comes into events.

    tokenizer: of the backend's model. vad: finds speech; without it everything counts as speech until
    `close`. end_of_word: see `WordMaker`. draft: gives the unstable text, instead of the decoder. speakers:
    at their beginning, say who says the words. engine: does the work; without one, this backend does it.

    Raises: OptionError for languages that the model does not have.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        options: SessionOptions | None = None,
        *,
        vad: VadStream | None = None,
        end_of_word: EndOfWord | None = None,
        draft: CtcDraft | None = None,
        speakers: LiveSpeakers | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._backend = backend
        self._options = (options or SessionOptions()).suited_to(backend.encoder_mode)
        self._engine = engine or LocalEngine(backend)
        self._vad = vad
        self._draft = draft
        self._languages = _checked_languages(self._options.languages, tokenizer)
        several = len(self._languages) > 1
        stretches = self._options.stretches
        self._timeline = LanguageTimeline(
            self._languages,
            self._options.smoothing,
            self._options.switch,
            full_width_s=stretches.width_s,
            current=None if several else self._languages[0],
        )
        self._watch = (
            LanguageWatch(LanguageProbe(backend, tokenizer, self._languages), self._timeline, stretches)
            if several
            else None
        )
        self._plans = Plans(backend, tokenizer, self._options, self._timeline, end_of_word)
        stream = self._options.stream
        self._speakers = speakers
        self._teller = Teller(stream.sentence_s, stream.longest_final_s, speakers)
        self._said: dict[str, tuple[int, ...]] | None = None
        self._buffer = AudioBuffer()
        self._edges: deque[SpeechEdge] = deque()
        self._speech: Speech | None = None
        self._chunk = round(stream.chunk_s * SAMPLE_RATE)
        self._next_update = self._chunk
        self._now = 0
        self._failure: Exception | None = None
        self._closed = False

    @property
    def languages(self) -> tuple[str, ...]:
        """The allow-list in use."""
        return self._languages

    @property
    def timeline(self) -> LanguageTimeline:
        """What was heard of the languages, for display; not to be changed."""
        return self._timeline

    def push(self, pcm: Samples, *, newest_only: bool = False) -> list[Event]:
        """Take samples (n,) float32, mono, 16 kHz, of any number, and return what follows from them.

        newest_only: of the updates that fall into these samples only the last one of an utterance is done:
            for whoever is late, and would be later with every update that is overdue.

        Raises: SessionClosedError after `close`; AudioError, with the session unchanged, for samples
            that are not finite float32 of that shape, or more than 10 minutes at once; what the model
            raises. An update that failed is left out; the session goes on, and nothing that was committed or
            told is lost: it comes with the next call.
        """
        return run(self._engine, self.listen(pcm, newest_only=newest_only))

    def close(self) -> list[Event]:
        """Finish what is being said; further pushes are refused.

        A second close returns nothing but what a failure of the first held up.
        """
        return run(self._engine, self.finish())

    def finalize(self) -> list[Event]:
        """Say now what was heard so far, as at the end of an utterance; the session goes on in its language,
        and reads on behind what was said. Harmless in a pause."""
        return run(self._engine, self.conclude())

    def listen(self, pcm: Samples, *, newest_only: bool = False) -> Steps[list[Event]]:
        """`push` as steps, for an engine that serves several sessions."""
        if self._closed:
            raise SessionClosedError("push: expected no audio after close(), got some; start a new session")
        self._buffer.append(pcm)
        if self._vad is not None:
            self._edges += self._vad.push(pcm)
        elif self._speech is None and len(pcm):
            self._edges.append(SpeechEdge("start", 0, 0))
        yield from self._go(self._buffer.end, newest_only=newest_only)
        return self._told()

    def conclude(self) -> Steps[list[Event]]:
        """`finalize` as steps."""
        speech, end = self._speech, self._buffer.end
        if speech is not None and speech.is_open and not self._closed:
            self._feed(speech.utterance, end)
            yield from self._attempt(self._settle(speech, end))
            yield from self._attempt(self._read_out(speech, end))
            self._sum_up(speech, goes_on=True)
        return self._told()

    def finish(self) -> Steps[list[Event]]:
        """`close` as steps."""
        if self._closed:
            return self._told()
        self._closed = True
        end = self._buffer.end
        self._edges += [] if self._vad is None else self._vad.close()
        if self._vad is None and self._speech is not None:
            self._edges.append(SpeechEdge("end", end, end))
        yield from self._go(end)
        return self._told()

    def _told(self) -> list[Event]:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._teller.take()

    def _go(self, end: int, *, newest_only: bool = False) -> Steps[None]:
        """Go through time up to sample `end`: updates where they are due, edges where they were found."""
        while self._edges:
            edge = self._edges.popleft()
            yield from self._advance(edge.detected_sample, newest_only=newest_only)
            if edge.kind == "start":
                self._begin(edge.sample)
            else:
                yield from self._end(edge.sample)
        yield from self._advance(end, newest_only=newest_only)
        self._forget()

    def _advance(self, sample: int, *, newest_only: bool) -> Steps[None]:
        if newest_only and self._next_update + self._chunk <= sample:
            self._next_update += (sample - self._next_update) // self._chunk * self._chunk
        while self._next_update <= sample:
            self._now = self._next_update
            self._next_update += self._chunk
            self._tell_apart(self._now)
            if self._speech is not None and self._speech.is_open:
                self._feed(self._speech.utterance, self._now)
                yield from self._attempt(self._update(self._speech))
        self._tell_apart(sample)
        self._now = sample

    def _tell_apart(self, until: int) -> None:
        """Let the speakers be heard up to a sample, where somebody speaks."""
        if self._speakers is not None:
            pcm = self._buffer.view(self._speakers.n_heard, until)
            self._speakers.hear(pcm, is_speech=self._speech is not None and self._speech.is_open)

    def _attempt(self, steps: Steps[None]) -> Steps[None]:
        """Steps that may fail: what they would have said is lost, and nothing else."""
        try:
            yield from steps
        except Exception as error:
            log.warning("an update failed: %s", type(error).__name__)
            self._failure = error

    @property
    def _now_s(self) -> float:
        return self._now / SAMPLE_RATE

    def _begin(self, sample: int) -> None:
        """Speech starts at a sample (before now, by onset and pre-roll)."""
        at = max(sample, self._buffer.start)
        self._timeline.begin(at / SAMPLE_RATE)
        if self._watch is not None:
            self._watch.begin(at)
        resting = self._speech
        if resting is not None and at - resting.utterance.end_sample <= self._kept:
            resting.go_on(at / SAMPLE_RATE)
        else:
            self._speech = self._open(at)
        self._teller.started(at / SAMPLE_RATE, self._now_s)

    @property
    def _kept(self) -> int:
        """Samples of the longest pause that an utterance is held over."""
        return round(self._options.stream.held_over_s * SAMPLE_RATE)

    def _end(self, sample: int) -> Steps[None]:
        """Speech ended at a sample."""
        assert self._speech is not None
        until = min(max(sample, self._speech.utterance.end_sample), self._buffer.end)
        self._feed(self._speech.utterance, until)
        yield from self._attempt(self._settle(self._speech, sample))
        yield from self._attempt(self._read_out(self._speech, sample))
        self._sum_up(self._speech, goes_on=False)
        self._speech.is_open = False
        self._teller.ended(sample / SAMPLE_RATE, self._now_s)

    def _settle(self, speech: Speech, end_sample: int) -> Steps[None]:
        """Decide the language of what is left at the end of speech."""
        if not self._follows or self._watch is None:
            return
        until = min(end_sample, speech.utterance.end_sample)
        yield from self._watch.listen(speech.utterance, until, final=True)
        change = self._timeline.resolve(self._now_s)
        if change is not None:
            yield from self._change(speech, change)

    @property
    def _is_parallel(self) -> bool:
        return self._watch is not None and self._options.switching == "parallel"

    @property
    def _follows(self) -> bool:
        """Whether the language still has to be watched."""
        if self._watch is None:
            return False
        return self._options.switching != "off" or self._timeline.current is None

    def _update(self, speech: Speech) -> Steps[None]:
        """One update: listen to the language, switch if that is due, commit what is safe."""
        if not self._has_work(speech):
            return
        if self._follows and self._watch is not None:
            yield from self._watch.listen(speech.utterance, self._now)
            change = self._timeline.due(self._now_s)
            if change is not None:
                yield from self._change(speech, change)
        if self._may_read(speech):
            window = yield from speech.read_on(self._settled_until_s)
            self._show(speech, window)

    def _has_work(self, speech: Speech) -> bool:
        """Whether an update can find anything: enough audio, and some of it unread."""
        utterance, stream = speech.utterance, self._options.stream
        if (utterance.end_sample - utterance.start_sample) / SAMPLE_RATE < stream.audio_min_len_s:
            return False
        return self._follows or self._may_read(speech)

    def _may_read(self, speech: Speech) -> bool:
        """Whether a reading can find a word that is not held back, or shows what is."""
        if self._draft is not None and self._options.unstable:
            return True
        committed_s = speech.utterance.committed.until_s
        unread_s = speech.utterance.end_sample / SAMPLE_RATE - committed_s
        stream = self._options.stream
        near = unread_s * FRAMES_PER_SECOND <= max(stream.sure_frames, LEAST_PART * stream.frame_threshold)
        return not near and self._settled_until_s > committed_s

    @property
    def _settled_until_s(self) -> float:
        """Where the language is sure until."""
        if not self._follows:
            return math.inf
        known = self._timeline.current is not None
        parallel = self._options.parallel
        free = self._is_parallel and known and not (parallel and parallel.confirmed)
        return math.inf if free else self._timeline.settled_until_s

    def _show(self, speech: Speech, window: Window | None) -> None:
        """Tell what may still change, if that is asked for."""
        if not self._options.unstable or window is None:
            return
        after_s = speech.utterance.committed.until_s
        text = speech.waiting if self._draft is None else self._draft.read(window, after_s)
        language = speech.plan.language if self._timeline.current else self._timeline.likeliest
        self._teller.may_say(text, language, self._now_s)

    def _read_out(self, speech: Speech, until: int) -> Steps[None]:
        """Commit what is left of the audio up to a sample; nothing unstable is left then."""
        is_last = self._closed and speech.utterance.end_sample == self._buffer.end
        yield from speech.read_out(until, is_last=is_last)
        end_s = speech.utterance.committed.until_s
        if self._options.unstable:
            self._teller.may_say(DraftText("", end_s, end_s), speech.plan.language, self._now_s)

    def _say(self, words: Sequence[Word], language: str) -> None:
        for piece in self._teller.pieces(words):
            self._teller.said(piece, language, self._now_s)
            if self._teller.is_long and self._speech is not None:
                self._sum_up(self._speech, goes_on=True)

    def _sum_up(self, speech: Speech, *, goes_on: bool) -> None:
        span = self._teller.span_s
        mass = None if span is None else self._timeline.allowed_mass(*span)
        self._teller.final(speech.plan.language, self._now_s, mass, goes_on=goes_on)

    def _change(self, speech: Speech, change: LanguageChange) -> Steps[None]:
        """Carry out a change of language: read the old one out to the change point, go on in the new one."""
        utterance, at_s = speech.utterance, change.at_s
        if not self._is_parallel:
            if change.source is not None:
                at_s = utterance.border_s(at_s, SNAP_S)
                if speech.unread_s(at_s) > 0.0:
                    yield from self._attempt(self._read_out(speech, round(at_s * SAMPLE_RATE)))
                self._sum_up(speech, goes_on=True)
                utterance.drop_before(at_s)
                utterance.committed.until_s = max(at_s, utterance.committed.until_s)
            else:
                at_s = utterance.start_sample / SAMPLE_RATE
            speech.plan = self._plans.of(change.target)
        confirmed_s = max(change.confirmed_s, at_s)
        self._teller.changed(
            LanguageChanged(change.source, change.target, at_s, confirmed_s, self._timeline.belief)
        )

    def _open(self, sample: int) -> Speech:
        """An utterance from a sample on, in the current language; the first allowed one if none is known."""
        if self._speech is not None:
            self._said = self._speech.utterance.said
        language = self._timeline.current or self._languages[0]
        plan = self._plans.by_timeline() if self._is_parallel else self._plans.of(language)
        utterance = self._plans.utterance(sample, self._said)
        return Speech(
            utterance,
            plan,
            self._plans.mode,
            self._say,
            wordless_s=self._options.stream.wordless_s,
            lost_s=math.inf if self._vad is None else LOST_S,
        )

    def _feed(self, utterance: Utterance, until: int) -> None:
        if until > utterance.end_sample:
            utterance.append(self._buffer.view(utterance.end_sample, until).copy())

    def _forget(self) -> None:
        """Drop audio that nobody will need: an open utterance holds its own."""
        idle = max(round(IDLE_KEPT_S * SAMPLE_RATE), self._kept + round(ONSET_S * SAMPLE_RATE))
        kept = self._buffer.end - idle
        if self._speech is not None and (self._speech.is_open or kept <= self._speech.utterance.end_sample):
            kept = self._speech.utterance.end_sample
        self._buffer.drop_before(min(kept, self._buffer.end))


def _checked_languages(languages: Sequence[str], tokenizer: Tokenizer) -> tuple[str, ...]:
    """The allow-list as codes; of an English-only model, English."""
    if not tokenizer.is_multilingual:
        if tuple(languages) not in ((), ("en",)):
            raise OptionError(f"languages: an English-only model knows 'en', got {', '.join(languages)}")
        return ("en",)
    codes = tuple(tokenizer.with_language(language).language or "" for language in languages)
    if len(set(codes)) != len(codes):
        raise OptionError(f"languages: expected each once, got {', '.join(languages)}")
    return codes or tokenizer.language_codes
