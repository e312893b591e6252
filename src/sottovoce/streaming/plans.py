"""How a session's utterances are read: one place where readers, words and plans are put together.

Not known here: when an utterance begins, and which language it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sottovoce.backends.base import Backend, EncoderMode
from sottovoce.language.timeline import LanguageTimeline
from sottovoce.streaming.alignatt import Reader
from sottovoce.streaming.by_timeline import ByTimeline
from sottovoce.streaming.endofword import EndOfWord
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.plan import OneLanguage
from sottovoce.streaming.session_options import SessionOptions
from sottovoce.streaming.utterance import Utterance
from sottovoce.streaming.vocabulary import LiveVocabulary
from sottovoce.streaming.words import WordMaker
from sottovoce.text.tokenizer import Tokenizer


class Plans:
    """Makes utterances and plans of one session; what they share is made once, and per language at first use.

    timeline: followed by plans of several languages, not changed.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        options: SessionOptions,
        timeline: LanguageTimeline,
        end_of_word: EndOfWord | None = None,
    ) -> None:
        stream = options.stream
        self._backend = backend
        self._options = options
        self._timeline = timeline
        self._tokenizer = tokenizer.with_task(stream.task)
        self._end_of_word = end_of_word
        self._makers: dict[str, WordMaker] = {}
        vocabulary = LiveVocabulary.of(tokenizer, backend.dims.n_vocab, backend.device)
        self._reader = Reader(backend, tokenizer.eot, vocabulary, stream.beam_size, stream.fusion)
        self.mode = encoder_mode(stream, backend)

    def utterance(self, start_sample: int, said: Mapping[str, tuple[int, ...]] | None) -> Utterance:
        """One that begins at a sample; said: see `Utterance`."""
        return Utterance(
            lambda language: self.maker(language).tokenizer,
            self._options.stream,
            n_mels=self._backend.dims.n_mels,
            device=self._backend.device,
            start_sample=start_sample,
            said=said,
        )

    def of(self, language: str) -> OneLanguage:
        """A plan for one language."""
        return OneLanguage(self._reader, self.maker(language), self._options.stream)

    def by_timeline(self) -> ByTimeline:
        """A plan for several languages at once."""
        options = self._options.suited_to(self._backend.encoder_mode)
        assert options.parallel is not None, "suited_to fills it"
        return ByTimeline(
            self._reader, self.maker, options.stream, options.parallel, self._timeline, self.mode
        )

    def maker(self, language: str) -> WordMaker:
        """What makes words of a language."""
        if language not in self._makers:
            self._makers[language] = WordMaker(self._tokenizer.with_language(language), self._end_of_word)
        return self._makers[language]


def encoder_mode(options: StreamOptions, backend: Backend) -> EncoderMode:
    """How growing audio is encoded: as the checkpoint bears it, or as the options say.

    How padding is thinned was measured for the full window, and is of no use to a shorter tail.
    """
    mode = options.encoder or backend.encoder_mode
    if options.tail_s is None:
        return mode
    dense = replace(mode, stride=1, anchors=()) if mode.is_thin else mode
    return replace(dense, tail_s=options.tail_s)
