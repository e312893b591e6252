"""A live session: samples in, events out, through pauses and changes of language.

Synchronous: no thread, and no clock but `clock`. Time is samples received, and updates are due at fixed
samples, so the events do not depend on how the audio is cut into pushes; `emission_time` is the audio that an
event needed. Words that were emitted are never taken back.
A session does not call the model: it is a generator of work (see `work`), and `push` drives it. It goes from
moment to moment (`clock`), asks which language it is in (`language_policy`), lets what is being said be read
(`speech`), and tells what came of it (`telling`).
An utterance is held over short pauses: what was said before is the best to read on from. On a confirmed
change of language it is read to the change point, and goes on in the new one; in doubt, words wait.

Not known here: files, microphones, rendering, and how an utterance is read (see `plan`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from sottovoce.audio.vad_stream import VadStream
from sottovoce.backends.base import Backend
from sottovoce.errors import SessionClosedError
from sottovoce.language.timeline import LanguageChange, LanguageTimeline
from sottovoce.speakers.live import LiveSpeakers
from sottovoce.streaming.clock import Clock
from sottovoce.streaming.draft import CtcDraft, DraftText
from sottovoce.streaming.endofword import EndOfWord
from sottovoce.streaming.language_policy import LanguagePolicy
from sottovoce.streaming.plans import Plans
from sottovoce.streaming.session_options import SessionOptions as SessionOptions
from sottovoce.streaming.session_options import Switching as Switching
from sottovoce.streaming.speech import LOST_S, Speech
from sottovoce.streaming.telling import Teller
from sottovoce.streaming.window import Window
from sottovoce.streaming.work import Engine, LocalEngine, Steps, run
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE, Event, LanguageChanged, Samples, Word

log = logging.getLogger(__name__)

SNAP_S = 0.25
"""A change point is moved so far at most to where it is quietest: the timeline finds it to some tenths of a
second, and within a word it would be heard on both sides."""


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
        self._options = (options or SessionOptions()).suited_to(backend.encoder_mode)
        self._engine = engine or LocalEngine(backend)
        stream = self._options.stream
        self._clock = Clock(vad, stream.chunk_s, stream.held_over_s)
        self._policy = LanguagePolicy(backend, tokenizer, self._options)
        timeline = self._policy.timeline
        self._plans = Plans(backend, tokenizer, self._options, timeline, end_of_word)
        self._teller = Teller(
            stream.sentence_s, stream.longest_final_s, speakers, allowed_mass=timeline.allowed_mass
        )
        self._speakers = speakers
        self._draft = draft
        self._speech: Speech | None = None
        """What is said now, or was said last."""
        self._failure: Exception | None = None
        self._closed = False

    @property
    def languages(self) -> tuple[str, ...]:
        """The allow-list in use."""
        return self._policy.languages

    @property
    def timeline(self) -> LanguageTimeline:
        """What was heard of the languages, for display; not to be changed."""
        return self._policy.timeline

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
        self._clock.hear(pcm)
        yield from self._go(newest_only=newest_only)
        return self._told()

    def conclude(self) -> Steps[list[Event]]:
        """`finalize` as steps."""
        speech = self._speech
        if speech is not None and speech.is_open and not self._closed:
            yield from self._finish(speech, self._clock.end, goes_on=True)
        return self._told()

    def finish(self) -> Steps[list[Event]]:
        """`close` as steps."""
        if not self._closed:
            self._closed = True
            self._clock.stop()
            yield from self._go()
        return self._told()

    def _told(self) -> list[Event]:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._teller.take()

    def _go(self, *, newest_only: bool = False) -> Steps[None]:
        """Go through time up to what was received."""
        for moment in self._clock.moments(newest_only=newest_only):
            self._tell_apart()
            if moment.kind == "start":
                self._begin(moment.sample)
            elif moment.kind == "end":
                yield from self._end(moment.sample)
            elif self._speech is not None and self._speech.is_open:
                self._feed(self._speech, moment.sample)
                yield from self._attempt(self._update(self._speech))
        self._tell_apart()
        taken = 0 if self._speech is None else self._speech.utterance.end_sample
        self._clock.forget(taken, is_open=self._speech is not None and self._speech.is_open)

    def _attempt(self, steps: Steps[None]) -> Steps[None]:
        """Steps that may fail: what they would have said is lost, and nothing else."""
        try:
            yield from steps
        except Exception as error:
            log.warning("an update failed: %s", type(error).__name__)
            self._failure = error

    def _tell_apart(self) -> None:
        """Let the speakers be heard up to now, where somebody speaks."""
        if self._speakers is not None:
            pcm = self._clock.view(self._speakers.n_heard, self._clock.now)
            self._speakers.hear(pcm, is_speech=self._speech is not None and self._speech.is_open)

    def _feed(self, speech: Speech, until: int) -> None:
        end = speech.utterance.end_sample
        if until > end:
            speech.utterance.append(self._clock.view(end, until).copy())

    def _begin(self, sample: int) -> None:
        """Speech starts at a sample (before now, by onset and pre-roll)."""
        at = max(sample, self._clock.start)
        self._policy.begin(at)
        resting = self._speech
        if resting is not None and self._clock.is_held_over(resting.utterance.end_sample, at):
            resting.go_on(at / SAMPLE_RATE)
        else:
            self._speech = self._open(at, resting)
        self._teller.started(at / SAMPLE_RATE, self._clock.now_s)

    def _open(self, sample: int, before: Speech | None) -> Speech:
        """What is said from a sample on, in the language that is spoken; before: what was said last."""
        is_parallel = self._policy.is_parallel
        return Speech(
            self._plans.utterance(sample, None if before is None else before.utterance.said),
            self._plans.by_timeline() if is_parallel else self._plans.of(self._policy.language),
            self._plans.mode,
            self._say,
            options=self._options.stream,
            lost_s=LOST_S if self._clock.finds_speech else math.inf,
        )

    def _end(self, sample: int) -> Steps[None]:
        """Speech ended at a sample."""
        assert self._speech is not None
        yield from self._finish(self._speech, sample, goes_on=False)
        self._speech.is_open = False
        self._teller.ended(sample / SAMPLE_RATE, self._clock.now_s)

    def _finish(self, speech: Speech, sample: int, *, goes_on: bool) -> Steps[None]:
        """Say all that was heard up to a sample. goes_on: speech does."""
        self._feed(speech, min(sample, self._clock.end))
        yield from self._attempt(self._settle(speech, sample))
        yield from self._attempt(self._read_out(speech, sample))
        self._sum_up(speech, goes_on=goes_on)

    def _settle(self, speech: Speech, until: int) -> Steps[None]:
        """Decide the language of what is left at the end of speech."""
        change = yield from self._policy.decide(speech.utterance, until, self._clock.now_s)
        if change is not None:
            yield from self._change(speech, change)

    def _update(self, speech: Speech) -> Steps[None]:
        """One update: listen to the language, switch if that is due, commit what is safe."""
        if not speech.is_long_enough or not (self._policy.follows or self._may_read(speech)):
            return
        change = yield from self._policy.listen(speech.utterance, self._clock.now)
        if change is not None:
            yield from self._change(speech, change)
        if self._may_read(speech):
            window = yield from speech.read_on(self._policy.settled_until_s)
            self._show(speech, window)

    def _may_read(self, speech: Speech) -> bool:
        """Whether a reading can find a word that is not held back, or shows what is."""
        is_shown = self._draft is not None and self._options.unstable
        return is_shown or speech.may_find(self._policy.settled_until_s)

    def _read_out(self, speech: Speech, until: int) -> Steps[None]:
        """Commit what is left of the audio up to a sample; nothing unstable is left then."""
        is_last = self._closed and speech.utterance.end_sample == self._clock.end
        yield from speech.read_out(until, is_last=is_last)
        end_s = speech.utterance.committed.until_s
        if self._options.unstable:
            self._teller.may_say(DraftText("", end_s, end_s), speech.plan.language, self._clock.now_s)

    def _show(self, speech: Speech, window: Window | None) -> None:
        """Tell what may still change, if that is asked for."""
        if not self._options.unstable or window is None:
            return
        after_s = speech.utterance.committed.until_s
        text = speech.waiting if self._draft is None else self._draft.read(window, after_s)
        language = speech.plan.language if self.timeline.current else self.timeline.likeliest
        self._teller.may_say(text, language, self._clock.now_s)

    def _say(self, words: Sequence[Word], language: str) -> None:
        self._teller.say(words, language, self._clock.now_s)

    def _sum_up(self, speech: Speech, *, goes_on: bool) -> None:
        self._teller.final(speech.plan.language, self._clock.now_s, goes_on=goes_on)

    def _change(self, speech: Speech, change: LanguageChange) -> Steps[None]:
        """Carry out a change of language: read the old one out to the change point, go on in the new one."""
        at_s = change.at_s
        if not self._policy.is_parallel:
            at_s = yield from self._leave(speech, change)
            speech.plan = self._plans.of(change.target)
        confirmed_s = max(change.confirmed_s, at_s)
        self._teller.changed(
            LanguageChanged(change.source, change.target, at_s, confirmed_s, self.timeline.belief)
        )

    def _leave(self, speech: Speech, change: LanguageChange) -> Steps[float]:
        """Say and let go of what lies before a change; the moment that the new language begins at."""
        utterance = speech.utterance
        if change.source is None:
            return utterance.start_sample / SAMPLE_RATE
        at_s = utterance.border_s(change.at_s, SNAP_S)
        if speech.unread_s(at_s) > 0.0:
            yield from self._attempt(self._read_out(speech, round(at_s * SAMPLE_RATE)))
        self._sum_up(speech, goes_on=True)
        utterance.drop_before(at_s)
        utterance.committed.until_s = max(at_s, utterance.committed.until_s)
        return at_s
