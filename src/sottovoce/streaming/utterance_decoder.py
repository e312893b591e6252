"""Decode an utterance: encode, decode, commit, and recover when decoding fails.

A `DecodingStrategy` decodes in one language (here) or several (`parallel`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from sottovoce.backends.base import EXACT, Backend, EncoderMode, IncrementalWindow
from sottovoce.engine.runtime import Runtime
from sottovoce.language.timeline import LanguageTimeline
from sottovoce.models.dims import FULL_WINDOW_S
from sottovoce.streaming.alignatt import AlignAttDecoder, AlignAttRequest, LiveVocabulary
from sottovoce.streaming.audio_window import MELS_PER_FRAME, AudioWindow
from sottovoce.streaming.commit_policy import CommitPolicy, may_hold_words
from sottovoce.streaming.events import UnstableText
from sottovoce.streaming.hypothesis import AlignAttHypothesis, PrefixCache
from sottovoce.streaming.options import SessionOptions, StreamOptions
from sottovoce.streaming.parallel import MultiLanguage
from sottovoce.streaming.utterance import LiveUtterance
from sottovoce.streaming.words import HypothesisWord, WordBuilder
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE, Word

LOST_S = 0.8
"""Seconds of speech without words after the last word that are decoded again."""
NEWEST_S = 2.0
"""Seconds of audio kept if none of it gives words."""
REST_OF_WORD_S = 0.3
"""A word ends within this time after its last attended frame."""


class SingleLanguage:
    """Decode all of the audio in one language, that of the builder."""

    def __init__(
        self,
        runtime: Runtime,
        decoder: AlignAttDecoder,
        builder: WordBuilder,
        options: StreamOptions,
        policy: CommitPolicy,
    ) -> None:
        self._runtime = runtime
        self._decoder = decoder
        self._builder = builder
        self._options = options
        self.policy = policy
        self._draft_tokens: tuple[int, ...] = ()
        """Tokens of the last hypothesis that were not committed."""
        self._cached: tuple[int, PrefixCache | None] = (0, None)
        """First sample of the last window, and the cache of its decode."""

    @property
    def language(self) -> str:
        return self._builder.language

    def decode(
        self,
        utterance: LiveUtterance,
        window: AudioWindow,
        *,
        certain_until_s: float = math.inf,
        final: bool = False,
    ) -> list[HypothesisWord]:
        """Return the words to commit after the committed ones.

        window: the last one encoded of the utterance. certain_until_s: see `CommitPolicy.decide`. final:
        no more audio comes.
        """
        after_s = utterance.committed.until_s
        rules = self.policy.stop_rules(
            window.end_s - after_s,
            final=final,
            committed_until=window.frame(after_s) if len(utterance.committed) else None,
        )
        if rules.frame_threshold >= window.n_frames:
            return []
        start_sample, cache = self._cached
        request = AlignAttRequest(
            utterance.prefix(self.language),
            rules,
            draft_tokens=self._draft_tokens,
            prefix_cache=None if final or start_sample != window.start_sample else cache,
            n_recomputed=None if final else self._options.reread_tokens,
        )
        hypotheses = self._runtime.decode_continuously(self._decoder, [window.encoded], [request])
        self._cached = window.start_sample, hypotheses[0].prefix_cache
        return self._words_to_commit(hypotheses[0], window, after_s, certain_until_s, final=final)

    def _words_to_commit(
        self,
        hypothesis: AlignAttHypothesis,
        window: AudioWindow,
        after_s: float,
        certain_until_s: float,
        *,
        final: bool,
    ) -> list[HypothesisWord]:
        if not self.policy.is_usable(hypothesis):
            self._draft_tokens = ()
            self.policy.discard(hypothesis)
            return []
        words = self.policy.usable_words(hypothesis, window, self._builder, after_s=after_s, final=final)
        n_committed = self.policy.decide(
            words, window, is_stuck=hypothesis.is_stuck, certain_until_s=certain_until_s, final=final
        )
        held_back = hypothesis.held_back_token
        tokens = hypothesis.tokens if held_back is None else (*hypothesis.tokens, held_back)
        self._draft_tokens = tokens[sum(len(one.tokens) for one in words[:n_committed]) :]
        return words[:n_committed]


DecodingStrategy: TypeAlias = SingleLanguage | MultiLanguage


class StrategyFactory:
    """Makes the utterances and strategies of one session; word builders are cached by language.

    options: suited to the checkpoint. timeline: for strategies of several languages.
    """

    def __init__(
        self,
        runtime: Runtime,
        tokenizer: Tokenizer,
        options: SessionOptions,
        timeline: LanguageTimeline,
    ) -> None:
        stream, backend = options.stream, runtime.backend
        self._runtime = runtime
        self._options = options
        self._timeline = timeline
        self._tokenizer = tokenizer.with_task(stream.task)
        self._builders: dict[str, WordBuilder] = {}
        vocabulary = LiveVocabulary.of(tokenizer, backend.dims.n_vocab, backend.device)
        self._decoder = AlignAttDecoder(backend, tokenizer.eot, vocabulary, stream.beam_size, stream.fusion)
        self.encoder_mode = encoder_mode(stream, backend)

    def utterance(self, start_sample: int, history: Mapping[str, tuple[int, ...]] | None) -> LiveUtterance:
        return LiveUtterance(
            lambda language: self.builder(language).tokenizer,
            self._options.stream,
            n_mels=self._runtime.backend.dims.n_mels,
            device=self._runtime.backend.device,
            start_sample=start_sample,
            history=history,
        )

    def single(self, language: str) -> SingleLanguage:
        return SingleLanguage(
            self._runtime, self._decoder, self.builder(language), self._options.stream, self._new_policy()
        )

    def multi(self) -> MultiLanguage:
        parallel = self._options.suited_to(self._runtime.backend.encoder_mode).parallel
        assert parallel is not None, "suited_to fills it"
        return MultiLanguage(
            self._runtime,
            self._decoder,
            self.builder,
            self._new_policy(),
            parallel,
            self._timeline,
            self.encoder_mode,
        )

    def builder(self, language: str) -> WordBuilder:
        if language not in self._builders:
            self._builders[language] = WordBuilder(self._tokenizer.with_language(language))
        return self._builders[language]

    def _new_policy(self) -> CommitPolicy:
        return CommitPolicy(self._options.stream)


def encoder_mode(options: StreamOptions, backend: Backend) -> EncoderMode:
    """Return how growing audio is encoded: by the options, or the checkpoint's default.

    Sparse padding was measured for the full window only, so another `tail_s` is computed in full.
    """
    mode = options.encoder or backend.encoder_mode
    if options.tail_s is None:
        return mode
    dense = replace(mode, stride=1, anchors=()) if mode.has_sparse_padding else mode
    return replace(dense, tail_s=options.tail_s)


class UtteranceDecoder:
    """Decode an utterance during speech, and keep it through a pause.

    mode: how growing audio is encoded. on_words: called at once with committed words and the language.
    lost_s: see `LOST_S`; inf if the audio may hold silence.
    """

    def __init__(
        self,
        runtime: Runtime,
        utterance: LiveUtterance,
        strategy: DecodingStrategy,
        mode: EncoderMode,
        on_words: Callable[[Sequence[Word], str], None],
        *,
        options: StreamOptions,
        lost_s: float = LOST_S,
    ) -> None:
        self._runtime = runtime
        self.utterance = utterance
        self.strategy = strategy
        self.is_open = True
        """Whether speech continues; False in a pause."""
        self._mode = mode
        self._on_words = on_words
        self._options = options
        self._lost_s = lost_s
        self._from_s = utterance.start_sample / SAMPLE_RATE
        """Where speech began, after the last pause or after skipped audio."""
        self._was_stuck = False
        self._full_encode = (utterance.start_sample, 0.0)
        """First sample of the buffer and end (s) of the last window that was encoded as a whole."""

    def resume(self, from_s: float) -> None:
        self.is_open, self._from_s = True, from_s

    def undecoded_s(self, end_s: float) -> float:
        """Return the seconds of speech from the last word to end_s."""
        return end_s - max(self.utterance.committed.until_s, self._from_s)

    @property
    def is_long_enough(self) -> bool:
        """Whether the buffer has enough audio for a first update."""
        n_samples = self.utterance.end_sample - self.utterance.start_sample
        return n_samples / SAMPLE_RATE >= self._options.audio_min_len_s

    def may_commit(self, certain_until_s: float) -> bool:
        """Return whether an update can commit a word; certain_until_s: see `CommitPolicy.decide`."""
        committed_s = self.utterance.committed.until_s
        undecoded_s = self.utterance.end_sample / SAMPLE_RATE - committed_s
        return may_hold_words(self._options, undecoded_s) and certain_until_s > committed_s

    def update(self, certain_until_s: float) -> AudioWindow | None:
        """Encode and decode new audio, and commit words; return the window, None without audio.

        certain_until_s: see `CommitPolicy.decide`.
        """
        window = self._encode()
        if window is not None and certain_until_s > self.utterance.committed.until_s:
            self._decode(window, certain_until_s=certain_until_s)
            self._trim_stalled(window)
        return window

    def flush(self, until_sample: int, *, is_last: bool = False) -> None:
        """Commit all words of the audio up to a sample.

        If much of the audio gave no word, the rest after the last word is decoded once more, without a
        prompt, in the full window; if that fails too, agreed words are committed. is_last: the session has
        no more audio.
        """
        for is_retry, mode in ((False, self._flush_mode(until_sample)), (True, EXACT)):
            window = self._encode(mode, until_sample=until_sample, is_last=is_last)
            if window is None:
                return
            self._decode(window, final=True)
            if is_retry:
                self._commit_agreed(window.end_s)
            if not self.strategy.policy.is_stuck and self.undecoded_s(window.end_s) < self._lost_s:
                return
            self._restart_after_last_word(window)

    def _flush_mode(self, until_sample: int) -> EncoderMode:
        """Return how a flush encodes audio up to a sample.

        Audio since the last full encode is computed at once, with as much before it as in every update.
        """
        start_sample, encoded_s = self._full_encode
        if self._mode.recompute_s is None or start_sample != self.utterance.start_sample:
            return self._mode.whole()
        since_s = max(0.0, until_sample / SAMPLE_RATE - encoded_s)
        newest_s = min(FULL_WINDOW_S, since_s + self._mode.recompute_s)
        return replace(self._mode, recompute_s=newest_s, refresh_s=0.0)

    @property
    def unstable_text(self) -> UnstableText:
        words = self.strategy.policy.unstable
        if not words:
            committed_s = self.utterance.committed.until_s
            return UnstableText("", committed_s, committed_s)
        return UnstableText("".join(word.word for word in words), words[0].start, words[-1].end)

    def _encode(
        self, mode: EncoderMode | None = None, *, until_sample: int | None = None, is_last: bool = False
    ) -> AudioWindow | None:
        """Encode the buffer, unless a language probe just did; None without a frame of audio.

        mode: None: as audio grows.
        """
        utterance = self.utterance
        log_mel = utterance.log_mel(final=is_last, until_sample=until_sample)
        if log_mel.shape[1] < MELS_PER_FRAME:
            return None
        result = utterance.probed_in(mode or self._mode, log_mel.shape[1])
        is_full = mode is not None or result is not None or utterance.encoder_state is None
        if result is None:
            utterance.probed = None
            windows = [IncrementalWindow(log_mel, mode or self._mode, utterance.encoder_state)]
            (result,) = self._runtime.encode_incremental(windows)
        utterance.encoder_state = result.state
        encoded = replace(result.encoded, n_content_frames=(log_mel.shape[1] // MELS_PER_FRAME,))
        window = AudioWindow(encoded, log_mel, utterance.start_sample)
        if is_full:
            self._full_encode = window.start_sample, window.end_s
        return window

    def _decode(self, window: AudioWindow, *, certain_until_s: float = math.inf, final: bool = False) -> None:
        words = self.strategy.decode(self.utterance, window, certain_until_s=certain_until_s, final=final)
        self._commit(words)

    def _commit(self, words: Sequence[HypothesisWord]) -> None:
        self.utterance.commit(words)
        self._on_words([one.word for one in words], self.strategy.language)

    def _commit_agreed(self, until_s: float) -> None:
        """Commit agreed words of audio up to until_s, which is not decoded again."""
        committed_s = self.utterance.committed.until_s
        self._commit(self.strategy.policy.take_agreed(committed_s, until_s))

    def _trim_stalled(self, window: AudioWindow) -> None:
        """Drop audio where decoding fails: first what precedes the undecoded part, then most of that."""
        policy = self.strategy.policy
        is_again, self._was_stuck = self._was_stuck and policy.is_stuck, policy.is_stuck
        is_overdue = self.undecoded_s(window.end_s) > self._options.wordless_s
        is_wordless = is_overdue and not policy.unstable
        if not (is_wordless or policy.is_stuck):
            return
        has_words = self.utterance.committed.last is not None
        if has_words:
            self._restart_after_last_word(window)
        if is_overdue and (is_again or not has_words):
            self._commit_agreed(window.end_s - NEWEST_S)
            self._from_s = max(self._from_s, window.end_s - NEWEST_S)
            self.utterance.drop_before(window.end_s - NEWEST_S)

    def _restart_after_last_word(self, window: AudioWindow) -> None:
        """Drop the audio up to the end of the last committed word, and the prompt.

        Attention leaves a word before it ends; the rest of it would be decoded as another word.
        """
        committed_s = self.utterance.committed.until_s
        self.utterance.drop_before(window.quietest_s(committed_s, committed_s + REST_OF_WORD_S))
        self.utterance.clear_prompt()
