"""A live session: samples in, events out, through pauses and changes of language.

Synchronous: no thread, no clock. Time is samples received, and updates are due at fixed samples, so the
events do not depend on how the audio is cut into pushes; `emission_time` is the audio that an event
needed. Words that were emitted are never taken back.

On a confirmed change of language the old stream is finished up to the estimated change point, and the
audio after it goes into a new stream. While the language is in doubt, words wait.

Not known here: files, microphones, rendering, and the policy inside one language (see `stream`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sottovoce.audio.buffer import AudioBuffer
from sottovoce.audio.vad_stream import SpeechEdge, VadStream
from sottovoce.backends.base import Backend
from sottovoce.errors import OptionError, SessionClosedError
from sottovoce.language.probe import LanguageProbe
from sottovoce.language.timeline import LanguageChange, LanguageTimeline
from sottovoce.streaming.draft import CtcDraft, DraftText
from sottovoce.streaming.endofword import EndOfWord
from sottovoce.streaming.listening import Listener
from sottovoce.streaming.parallel import ParallelStream
from sottovoce.streaming.session_options import SessionOptions as SessionOptions
from sottovoce.streaming.session_options import Switching as Switching
from sottovoce.streaming.stream import Stream
from sottovoce.streaming.window import Window
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
    Unstable,
    Word,
)

IDLE_KEPT_S = 5.0
"""Audio kept in a pause: onset and pre-roll of the next utterance lie in it."""


@dataclass(slots=True)
class _Utterance:
    """Speech between two pauses, or between a pause and a change of language."""

    stream: Stream | ParallelStream
    words: list[Word] = field(default_factory=list)
    unstable: str = ""


class Session:
    """Speech as it comes into events.

    tokenizer: of the backend's model. vad: finds speech; without it everything counts as speech until
    `close`. end_of_word: see `WordMaker`. draft: gives the unstable text, instead of the decoder.

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
    ) -> None:
        self._backend = backend
        self._tokenizer = tokenizer
        self._options = options or SessionOptions()
        self._vad = vad
        self._end_of_word = end_of_word
        self._languages = _checked_languages(self._options.languages, tokenizer)
        self._draft = draft
        several = len(self._languages) > 1
        self._timeline = LanguageTimeline(
            self._languages,
            self._options.smoothing,
            self._options.switch,
            full_width_s=self._options.stretches.width_s,
            current=None if several else self._languages[0],
        )
        self._listener = (
            Listener(
                LanguageProbe(backend, tokenizer, self._languages), self._timeline, self._options.stretches
            )
            if several
            else None
        )
        self._contexts: dict[str, tuple[int, ...]] = {}
        self._buffer = AudioBuffer()
        self._utterance: _Utterance | None = None
        self._chunk = round(self._options.stream.chunk_s * SAMPLE_RATE)
        self._next_update = self._chunk
        self._now = 0
        self._closed = False

    @property
    def languages(self) -> tuple[str, ...]:
        """The allow-list in use."""
        return self._languages

    @property
    def timeline(self) -> LanguageTimeline:
        """What was heard of the languages, for display; not to be changed."""
        return self._timeline

    def push(self, pcm: Samples) -> list[Event]:
        """Take samples (n,) float32, mono, 16 kHz, of any number, and return what follows from them.

        Raises: SessionClosedError after `close`; AudioError, with the session unchanged, for samples
            that are not finite float32 of that shape, or more than 10 minutes at once.
        """
        if self._closed:
            raise SessionClosedError("push: expected no audio after close(), got some; start a new session")
        self._buffer.append(pcm)
        if self._vad is None:
            events: list[Event] = [] if self._utterance or not len(pcm) else self._begin(0)
            return events + self._run([], self._buffer.end)
        return self._run(self._vad.push(pcm), self._buffer.end)

    def close(self) -> list[Event]:
        """Finish what is being said; further pushes are refused, a second close returns nothing."""
        if self._closed:
            return []
        self._closed = True
        edges = [] if self._vad is None else self._vad.close()
        events = self._run(edges, self._buffer.end)
        if self._utterance is not None:
            events += self._end(self._buffer.end)
        return events

    def _run(self, edges: Sequence[SpeechEdge], end: int) -> list[Event]:
        """Go through time up to sample `end`: updates where they are due, edges where they were found."""
        events: list[Event] = []
        for edge in edges:
            events += self._advance(edge.detected_sample)
            events += self._begin(edge.sample) if edge.kind == "start" else self._end(edge.sample)
        events += self._advance(end)
        self._forget()
        return events

    def _advance(self, sample: int) -> list[Event]:
        events: list[Event] = []
        while self._next_update <= sample:
            self._now = self._next_update
            self._next_update += self._chunk
            if self._utterance is not None:
                self._feed(self._utterance.stream, self._now)
                events += self._update(self._utterance)
        self._now = sample
        return events

    def _begin(self, sample: int) -> list[Event]:
        """Speech starts at a sample (before now, by onset and pre-roll)."""
        at = max(sample, self._buffer.start)
        self._timeline.begin(at / SAMPLE_RATE)
        if self._listener is not None:
            self._listener.begin(at)
        self._utterance = self._open(at)
        return [SpeechStarted(at / SAMPLE_RATE, self._now / SAMPLE_RATE)]

    def _end(self, sample: int) -> list[Event]:
        """Speech ended at a sample."""
        utterance = self._utterance
        assert utterance is not None
        events = self._settle(utterance, sample)
        assert self._utterance is not None
        self._feed(
            self._utterance.stream, min(max(sample, self._utterance.stream.end_sample), self._buffer.end)
        )
        events += self._close(self._utterance, sample)
        self._utterance = None
        return [*events, SpeechEnded(sample / SAMPLE_RATE, self._now / SAMPLE_RATE)]

    def _settle(self, utterance: _Utterance, end_sample: int) -> list[Event]:
        """Decide the language of what is left at the end of an utterance."""
        if not self._follows or self._listener is None:
            return []
        self._feed(utterance.stream, max(utterance.stream.end_sample, min(end_sample, self._buffer.end)))
        window = utterance.stream.encode()
        if window is not None:
            self._listener.listen(window, min(end_sample, utterance.stream.end_sample), final=True)
        change = self._timeline.resolve(self._now / SAMPLE_RATE)
        if change is None:
            return []
        return [self._told(change, change.at_s)] if self._is_parallel else self._switch(utterance, change)

    @property
    def _is_parallel(self) -> bool:
        return self._listener is not None and self._options.switching == "parallel"

    @property
    def _follows(self) -> bool:
        """Whether the language still has to be watched."""
        if self._listener is None:
            return False
        return self._options.switching != "off" or self._timeline.current is None

    def _update(self, utterance: _Utterance) -> list[Event]:
        """One update: listen to the language, switch if that is due, commit what is safe."""
        stream = utterance.stream
        drafts = self._draft is not None and self._options.unstable
        if not self._follows and not drafts and not stream.is_ready:
            return []
        least = round(self._options.stream.audio_min_len_s * SAMPLE_RATE)
        window = stream.encode() if stream.end_sample - stream.start_sample >= least else None
        if window is None:
            return []
        if not self._follows or self._listener is None:
            return self._commit(utterance, window)
        self._listener.listen(window, self._now)
        change = self._timeline.due(self._now / SAMPLE_RATE)
        if change is not None and not self._is_parallel:
            return self._switch(utterance, change, update=True)
        told = [] if change is None else [self._told(change, change.at_s)]
        return [*told, *self._commit(utterance, window)]

    def _commit(self, utterance: _Utterance, window: Window) -> list[Event]:
        stream = utterance.stream
        waits = self._follows and not self._is_parallel
        settled_until_s = self._timeline.settled_until_s if waits else float("inf")
        words: list[Word] = []
        if stream.is_ready and settled_until_s > stream.committed_until_s:
            words = stream.commit(window, settled_until_s=settled_until_s)
        events = self._say(utterance, words)
        if self._options.unstable:
            events += self._show(utterance, self._unstable(stream, window))
        return events

    def _say(self, utterance: _Utterance, words: list[Word]) -> list[Event]:
        if not words:
            return []
        utterance.words += words
        text = "".join(word.word for word in words)
        language, emission_time = utterance.stream.language, self._now / SAMPLE_RATE
        return [Partial(words[0].start, words[-1].end, text, language, tuple(words), emission_time)]

    def _unstable(self, stream: Stream | ParallelStream, window: Window) -> DraftText:
        """The text after the committed words, as far as it is shown."""
        after_s = stream.committed_until_s
        if self._draft is not None:
            return self._draft.read(window, after_s)
        words = stream.waiting
        if not words:
            return DraftText("", after_s, after_s)
        return DraftText("".join(word.word for word in words), words[0].start, words[-1].end)

    def _show(self, utterance: _Utterance, draft: DraftText) -> list[Event]:
        """Tell of unstable text that is new."""
        if not self._options.unstable or draft.text == utterance.unstable:
            return []
        utterance.unstable = draft.text
        language = utterance.stream.language if self._timeline.current else self._timeline.likeliest
        return [Unstable(draft.start_s, draft.end_s, draft.text, language, self._now / SAMPLE_RATE)]

    def _switch(self, utterance: _Utterance, change: LanguageChange, *, update: bool = False) -> list[Event]:
        """Finish the old stream up to the change point and begin the new one there."""
        stream = utterance.stream
        at = max(round(change.at_s * SAMPLE_RATE), round(stream.committed_until_s * SAMPLE_RATE))
        events: list[Event] = []
        if change.source is None:
            at = stream.start_sample
        else:
            events = self._close(utterance, at)
        events.append(self._told(change, at / SAMPLE_RATE))
        renewed = self._open(at)
        self._utterance = renewed
        self._feed(renewed.stream, stream.end_sample)
        if update:
            window = renewed.stream.encode()
            events += [] if window is None else self._commit(renewed, window)
        return events

    def _told(self, change: LanguageChange, at_s: float) -> LanguageChanged:
        confirmed_s = max(change.confirmed_s, at_s)
        return LanguageChanged(
            change.source, change.target, at_s, confirmed_s, posteriors=self._timeline.belief
        )

    def _close(self, utterance: _Utterance, until: int) -> list[Event]:
        """Commit what is left up to a sample, and sum the utterance up."""
        stream = utterance.stream
        words = stream.finish(until_sample=until)
        events = self._say(utterance, words)
        events += self._show(utterance, DraftText("", stream.committed_until_s, stream.committed_until_s))
        self._contexts.update(stream.contexts)
        if utterance.words:
            text = "".join(word.word for word in utterance.words).strip()
            span = (utterance.words[0].start, utterance.words[-1].end)
            language = Counter(word.language for word in utterance.words).most_common(1)[0][0]
            events.append(
                Final(
                    *span,
                    text,
                    language or stream.language,
                    tuple(utterance.words),
                    self._now / SAMPLE_RATE,
                    self._timeline.allowed_mass(*span),
                )
            )
        return events

    def _open(self, sample: int) -> _Utterance:
        """A stream from a sample on, in the current language; the first allowed one while none is known."""
        if self._is_parallel:
            return _Utterance(
                ParallelStream(
                    self._backend,
                    self._tokenizer,
                    self._options.stream,
                    self._options.parallel,
                    self._timeline,
                    start_sample=sample,
                    contexts=self._contexts,
                )
            )
        language = self._timeline.current or self._languages[0]
        stream = Stream(
            self._backend,
            self._tokenizer.with_language(language),
            self._options.stream,
            start_sample=sample,
            context=self._contexts.get(language, ()),
            end_of_word=self._end_of_word,
        )
        return _Utterance(stream)

    def _feed(self, stream: Stream | ParallelStream, until: int) -> None:
        if until > stream.end_sample:
            stream.append(self._buffer.view(stream.end_sample, until).copy())

    def _forget(self) -> None:
        """Drop audio that no stream will need: a change point never lies before the committed words."""
        if self._utterance is None:
            self._buffer.drop_before(self._buffer.end - round(IDLE_KEPT_S * SAMPLE_RATE))
        else:
            stream = self._utterance.stream
            needed = min(
                stream.end_sample, max(stream.start_sample, round(stream.committed_until_s * SAMPLE_RATE))
            )
            self._buffer.drop_before(needed)


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
