"""A live session: samples in, events out, across pauses and changes of language.

Received samples are the only clock, so events do not depend on the sizes of pushes. Stages: schedule,
language, audio window, AlignAtt, words and commit policy, events.

After a short pause an utterance is resumed. At a change of language it is decoded to the change point and
continues in the new language; in doubt, words wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from sottovoce.audio.vad import VadStream
from sottovoce.decoding.filters import LiveVocabulary
from sottovoce.language.chain import LanguageChange, LanguageTimeline
from sottovoce.models.backend import Backend
from sottovoce.models.dims import EncoderMode
from sottovoce.runtime.calls import DirectRuntime, Runtime, Steps
from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.streaming.alignatt import AlignAttDecoder
from sottovoce.streaming.audio_window import SNAP_S
from sottovoce.streaming.commit_policy import WordBuilder
from sottovoce.streaming.language_tracker import LiveLanguageTracker
from sottovoce.streaming.live_session import EventEmitter, LiveSession, UpdateSchedule
from sottovoce.streaming.options import USUAL_PAUSE_S, LiveOptions, StreamOptions, TextEnd
from sottovoce.streaming.second_pass import SecondPass
from sottovoce.streaming.utterance import RETRY_AFTER_S, LiveUtterance, UtteranceDecoder
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import (
    SAMPLE_RATE,
    LanguageChanged,
    SpeechEnded,
    TurnEnded,
    Word,
)


def encoder_mode(options: StreamOptions, backend: Backend) -> EncoderMode:
    """Return how growing audio is encoded; with a `tail_s`, all frames of padding are computed."""
    mode = options.encoder or backend.encoder_mode
    if options.tail_s is None:
        return mode
    dense = replace(mode, stride=1, anchors=()) if mode.has_sparse_padding else mode
    return replace(dense, tail_s=options.tail_s)


class Session(LiveSession):
    """Turns speech into events as it comes.

    vad: None: everything is speech until `close`. speakers: an unused speaker labeller. runtime: runs the
    calls of the model; None: this backend. second_pass: transcribes finished utterances again.

    Raises:
        OptionError: languages that the model does not have.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        options: LiveOptions | None = None,
        *,
        vad: VadStream | None = None,
        speakers: LiveSpeakers | None = None,
        runtime: Runtime | None = None,
        second_pass: SecondPass | None = None,
    ) -> None:
        self._options = options or LiveOptions()
        runtime = runtime or DirectRuntime(backend)
        stream, backend = self._options.stream, runtime.backend
        self._turns = stream.turn_rule
        self._text_end: TextEnd | None = None
        self._tracker = LiveLanguageTracker(backend, tokenizer, self._options)
        of_task = tokenizer.with_task(stream.task)
        self._builder = cache(lambda language: WordBuilder(of_task.with_language(language)))
        vocabulary = LiveVocabulary.of(tokenizer, backend.dims.n_vocab)
        self._aligner = AlignAttDecoder(backend, tokenizer.eot, vocabulary, stream.beam_size, stream.fusion)
        super().__init__(
            runtime,
            UpdateSchedule(vad, stream.chunk_s, stream.max_pause_s, with_pauses=self._turns is not None),
            EventEmitter(
                stream.sentence_s,
                stream.longest_final_s,
                joins_languages=second_pass is not None,
                allowed_mass=self.timeline.allowed_mass,
                filters=self._options.text_filters,
                written="en" if stream.task == "translate" else None,
            ),
            speakers,
            second_pass,
        )
        self._decoder: UtteranceDecoder | None = None

    @property
    def languages(self) -> tuple[str, ...]:
        return self._tracker.languages

    @property
    def timeline(self) -> LanguageTimeline:
        """The languages over time; read only."""
        return self._tracker.timeline

    @property
    def is_in_speech(self) -> bool:
        return self._decoder is not None and self._decoder.is_open

    def _release(self) -> int | None:
        if self._decoder is None:
            return None
        taken = self._decoder.utterance.end_sample
        if not self._decoder.is_open and not self._schedule.resumes(taken, self._schedule.onset):
            self._decoder.release()
            return None
        return taken

    def _feed(self, decoder: UtteranceDecoder, until: int) -> None:
        end = decoder.utterance.end_sample
        if until > end:
            decoder.utterance.append(self._schedule.buffer.view(end, until))

    def _start_speech(self, sample: int) -> None:
        self._tracker.begin(sample)
        last = self._decoder
        if last is not None and self._schedule.resumes(last.utterance.end_sample, sample):
            last.resume(sample / SAMPLE_RATE)
        else:
            self._decoder = self._new_decoder(sample, None if last is None else last.utterance.history)

    def _new_decoder(self, sample: int, history: Mapping[str, tuple[int, ...]] | None) -> UtteranceDecoder:
        stream = self._options.stream
        utterance = LiveUtterance(
            lambda language: self._builder(language).tokenizer,
            stream,
            encoder_mode(stream, self.runtime.backend),
            self.runtime.backend.dims.n_mels,
            start_sample=sample,
            history=history,
        )
        return UtteranceDecoder(
            utterance,
            self._aligner,
            self._builder(self._tracker.language),
            lambda words, language: self._events.emit_words(words, language, self._schedule.now_s),
            options=stream,
            on_window=lambda window: self._add_window(window),
            retry_after_s=RETRY_AFTER_S if self._schedule.has_vad else math.inf,
            reads_ahead=self._options.captions == "revisable",
        )

    def _pause_speech(self) -> Steps[None]:
        """Predict how the text goes on, which decides how long a pause ends the turn."""
        assert self._decoder is not None
        assert self._turns is not None
        self._text_end = None
        with self._attempt:
            self._feed(self._decoder, self._schedule.now)
            self._text_end = yield from self._decoder.text_end()
        pause_s = USUAL_PAUSE_S if self._text_end is None else self._turns.pause_s(self._text_end)
        self._schedule.end_after(pause_s)

    def _end_speech(self, sample: int) -> Steps[None]:
        assert self._decoder is not None
        yield from self._flush(sample)
        self._decoder.is_open = False
        now_s = self._schedule.now_s
        self._events.emit(SpeechEnded(sample / SAMPLE_RATE, now_s))
        pause_s = self._schedule.pause_s
        if self._turns is not None and self._text_end is not None and pause_s is not None:
            probability = self._turns.probability(self._text_end, pause_s)
            self._events.emit(TurnEnded(sample / SAMPLE_RATE, probability, now_s))

    def _update(self, sample: int, *, greedy: bool) -> Steps[None]:
        decoder = self._decoder
        assert decoder is not None
        self._feed(decoder, sample)
        pause_s = self._schedule.pause_s
        if pause_s is not None and decoder.read_until_s >= self._schedule.now_s - pause_s:
            return  # nothing was spoken since all words were committed
        if not decoder.is_long_enough:
            return
        if self._tracker.is_following:
            yield from self._follow_language(decoder, self._schedule.now)
        if decoder.may_commit(self._tracker.certain_until_s):
            yield from decoder.update(self._tracker.certain_until_s, greedy=greedy)
            self._emit_unstable(decoder, decoder.policy.unstable)

    def _flush(self, sample: int) -> Steps[None]:
        decoder = self._decoder
        assert decoder is not None
        with self._attempt:
            self._feed(decoder, min(sample, self._schedule.buffer.end))
            yield from self._follow_language(decoder, sample, final=True)
        with self._attempt:
            yield from self._commit_rest(decoder, sample)
        self._events.emit_final(decoder.language, self._schedule.now_s)

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
            with self._attempt:
                yield from self._commit_rest(decoder, round(at_s * SAMPLE_RATE))
        self._events.emit_final(decoder.language, self._schedule.now_s, is_change=True)
        until_s = max(at_s, utterance.committed.until_s)
        utterance.drop_before(at_s, words_until_s=until_s)
        utterance.committed.until_s = until_s
        return at_s

    def _emit_unstable(self, decoder: UtteranceDecoder, words: Sequence[Word]) -> None:
        if self._options.captions == "revisable":
            language, committed_s = decoder.language, decoder.utterance.committed.until_s
            self._events.emit_unstable(words, language, self._schedule.now_s, committed_s=committed_s)
