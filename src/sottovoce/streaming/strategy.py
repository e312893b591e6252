"""How an utterance is decoded: by one language (here), or by several (`multilingual`); and what makes
strategies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from sottovoce.backends.base import Backend, EncoderMode
from sottovoce.engine.calls import AlignAttCall, CallGenerator
from sottovoce.language.timeline import LanguageTimeline
from sottovoce.streaming.alignatt import AlignAttDecoder
from sottovoce.streaming.audio_window import AudioWindow
from sottovoce.streaming.beams import AlignAttRequest
from sottovoce.streaming.commit_policy import CommitPolicy
from sottovoce.streaming.hypothesis import AlignAttHypothesis, PrefixCache
from sottovoce.streaming.multilingual.multi_language import MultiLanguage
from sottovoce.streaming.options import SessionOptions, StreamOptions
from sottovoce.streaming.utterance import LiveUtterance
from sottovoce.streaming.vocabulary import LiveVocabulary
from sottovoce.streaming.words import HypothesisWord, WordBuilder
from sottovoce.text.tokenizer import Tokenizer


class DecodingStrategy(Protocol):
    """A way to decode an utterance from update to update."""

    @property
    def language(self) -> str:
        """The language that is spoken now; words carry their own."""
        ...

    @property
    def policy(self) -> CommitPolicy:
        """What decides which words are committed; it knows those that are not."""
        ...

    def decode(
        self,
        utterance: LiveUtterance,
        window: AudioWindow,
        *,
        certain_until_s: float = math.inf,
        final: bool = False,
    ) -> CallGenerator[list[HypothesisWord]]:
        """Return the words to commit after those that are.

        window: the last one encoded of the utterance. certain_until_s: see `CommitPolicy.decide`. final: no
        more audio comes.
        """
        ...


class SingleLanguage:
    """Decode all of the audio in one language, that of the builder."""

    def __init__(
        self, decoder: AlignAttDecoder, builder: WordBuilder, options: StreamOptions, policy: CommitPolicy
    ) -> None:
        self._decoder = decoder
        self._builder = builder
        self._options = options
        self.policy = policy
        self._draft_tokens: tuple[int, ...] = ()
        """Tokens of the last hypothesis that were not committed."""
        self._cached: tuple[int, PrefixCache | None] = (0, None)
        """First sample of the last window, and what its decode left."""

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
    ) -> CallGenerator[list[HypothesisWord]]:
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
        hypotheses: list[AlignAttHypothesis] = yield AlignAttCall(self._decoder, [window.encoded], [request])
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


class StrategyFactory:
    """Make the utterances and strategies of one session; word builders are made once a language.

    options: suited to the checkpoint. timeline: read by strategies of several languages.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        options: SessionOptions,
        timeline: LanguageTimeline,
    ) -> None:
        stream = options.stream
        self._backend = backend
        self._options = options
        self._timeline = timeline
        self._tokenizer = tokenizer.with_task(stream.task)
        self._builders: dict[str, WordBuilder] = {}
        vocabulary = LiveVocabulary.of(tokenizer, backend.dims.n_vocab, backend.device)
        self._decoder = AlignAttDecoder(backend, tokenizer.eot, vocabulary, stream.beam_size, stream.fusion)
        self.encoder_mode = encoder_mode(stream, backend)

    def utterance(self, start_sample: int, history: Mapping[str, tuple[int, ...]] | None) -> LiveUtterance:
        """Make an utterance that begins at a sample; history: see `LiveUtterance`."""
        return LiveUtterance(
            lambda language: self.builder(language).tokenizer,
            self._options.stream,
            n_mels=self._backend.dims.n_mels,
            device=self._backend.device,
            start_sample=start_sample,
            history=history,
        )

    def single(self, language: str) -> SingleLanguage:
        """Make a strategy of one language."""
        return SingleLanguage(self._decoder, self.builder(language), self._options.stream, self._new_policy())

    def multi(self) -> MultiLanguage:
        """Make a strategy of several languages at once."""
        parallel = self._options.suited_to(self._backend.encoder_mode).parallel
        assert parallel is not None, "suited_to fills it"
        return MultiLanguage(
            self._decoder, self.builder, self._new_policy(), parallel, self._timeline, self.encoder_mode
        )

    def builder(self, language: str) -> WordBuilder:
        """Return the builder of a language's words."""
        if language not in self._builders:
            self._builders[language] = WordBuilder(self._tokenizer.with_language(language))
        return self._builders[language]

    def _new_policy(self) -> CommitPolicy:
        return CommitPolicy(self._options.stream)


def encoder_mode(options: StreamOptions, backend: Backend) -> EncoderMode:
    """Return how growing audio is encoded: as the options say, else the checkpoint's default.

    Thinned padding was measured for the full window only, so another `tail_s` is computed in full.
    """
    mode = options.encoder or backend.encoder_mode
    if options.tail_s is None:
        return mode
    dense = replace(mode, stride=1, anchors=()) if mode.has_sparse_padding else mode
    return replace(dense, tail_s=options.tail_s)
