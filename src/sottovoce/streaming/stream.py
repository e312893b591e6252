"""A stream of speech in one language: audio in, committed words out.

`append` audio, `encode` what is held, `commit` the words that are safe; `finish` the rest. Nothing that
was committed is taken back: it is the prefix of the next update. When the audio held grows past its
limit, it is cut at a pause between committed words, whose text moves into the prompt.

Not known here: other languages, voice activity, and when updates are due (see `session`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from sottovoce.backends.base import Backend
from sottovoce.streaming.alignatt import Reader
from sottovoce.streaming.context import TextContext
from sottovoce.streaming.endofword import EndOfWord
from sottovoce.streaming.held import HeldSpeech
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.reading import MAX_TOKENS, Ending, Prefix, Reading, ReadingRules, most_tokens
from sottovoce.streaming.vocabulary import LiveVocabulary
from sottovoce.streaming.window import Window
from sottovoce.streaming.words import ReadWord, WordMaker
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import FRAMES_PER_SECOND, Samples, Word


class Stream:
    """One language's words from audio that is still coming.

    context: text tokens said before, for the prompt (see `contexts` of the stream before).
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        options: StreamOptions,
        *,
        start_sample: int = 0,
        context: Sequence[int] = (),
        end_of_word: EndOfWord | None = None,
    ) -> None:
        tokenizer = tokenizer.with_task(options.task)
        self._language = tokenizer.language or "en"
        self._options = options
        self._maker = WordMaker(tokenizer, end_of_word)
        self._held = HeldSpeech(backend, options, start_sample)
        self._context = TextContext(tokenizer, options, context)
        self._waiting: list[Word] = []
        self._guess: tuple[int, ...] = ()
        self._finished = False
        self._reader = Reader(
            backend,
            tokenizer.eot,
            LiveVocabulary.of(tokenizer, backend.dims.n_vocab, backend.device),
            options.beam_size,
            options.fusion,
        )

    @property
    def language(self) -> str:
        return self._language

    @property
    def start_sample(self) -> int:
        """First sample held."""
        return self._held.start_sample

    @property
    def end_sample(self) -> int:
        """Sample after the last one appended."""
        return self._held.end_sample

    @property
    def committed_until_s(self) -> float:
        """End of the last committed word, or the start of the stream."""
        return self._held.committed.until_s

    @property
    def waiting(self) -> tuple[Word, ...]:
        """Words that the last update read but did not commit."""
        return tuple(self._waiting)

    @property
    def contexts(self) -> dict[str, tuple[int, ...]]:
        """By language, tokens for the prompt of a stream that goes on from here."""
        return {self._language: self._context.followed_by(self._held.committed.tokens())}

    @property
    def is_ready(self) -> bool:
        """Whether an update can say more: some audio after the committed words is far enough from the end."""
        return self._held.unread_s * FRAMES_PER_SECOND > self._options.frame_threshold

    def append(self, samples: Samples) -> None:
        """Take audio (n,) float32 that follows what was appended before."""
        assert not self._finished
        self._held.append(samples)

    def encode(self, *, final: bool = False, until_sample: int | None = None) -> Window | None:
        """Encode the audio held, cutting it first if it is too long; None without a frame of audio."""
        self._move_out(self._held.trim())
        return self._held.encode(final=final, until_sample=until_sample)

    def commit(
        self,
        window: Window,
        *,
        settled_until_s: float = math.inf,
        final: bool = False,
        bias: Tensor | None = None,
    ) -> list[Word]:
        """Read a window and commit the words that are complete and end before `settled_until_s`.

        final: no more audio comes; unfinished words count. bias: (n_frames,) on cross-attention.
        """
        return self._take(self.read(window, final=final, bias=bias), settled_until_s)

    def read(self, window: Window, *, final: bool = False, bias: Tensor | None = None) -> list[ReadWord]:
        """What a window says after the committed words, without committing it."""
        threshold = self._options.final_frame_threshold if final else self._options.frame_threshold
        if threshold >= window.n_frames:
            return []
        rules = ReadingRules(
            threshold,
            self._options.rewind_threshold,
            self._options.max_repeats,
            MAX_TOKENS if final else most_tokens(window.end_s - self.committed_until_s),
        )
        reading = self._reader.read(window.encoded, self.prefix(), rules, bias=bias, guess=self._guess)
        self._guess = ()
        if reading.ending is Ending.REWOUND or self._is_no_speech(reading):
            return []
        self._guess = reading.tokens if reading.refused is None else (*reading.tokens, reading.refused)
        if reading.ending is Ending.REPEATED:
            self._start_afresh()
        return self._maker.words(reading, window, after_s=self.committed_until_s, final=final)

    def finish(self, until_sample: int | None = None, *, settled_until_s: float = math.inf) -> list[Word]:
        """Commit what is left of the audio, or of the audio up to a sample; nothing may be appended after."""
        window = self.encode(final=True, until_sample=until_sample)
        self._finished = True
        return [] if window is None else self.commit(window, settled_until_s=settled_until_s, final=True)

    def prefix(self) -> Prefix:
        """What the decoder says first in the next update."""
        return self._context.prefix(self._held.committed.tokens())

    def _take(self, words: Sequence[ReadWord], settled_until_s: float) -> list[Word]:
        taken: list[Word] = []
        for word in words:
            if word.word.end > settled_until_s:
                break
            self._held.committed.add(word)
            self._guess = self._guess[len(word.tokens) :]
            taken.append(word.word)
        self._waiting = [word.word for word in words[len(taken) :]]
        return taken

    def _move_out(self, words: Sequence[ReadWord]) -> None:
        """Let words whose audio was dropped be the prompt."""
        self._context.add([token for word in words for token in word.tokens])

    def _start_afresh(self) -> None:
        """Break a loop: the prompt goes, and the audio up to the last committed word."""
        if len(self._held.committed):
            self._held.drop_before(self.committed_until_s)
        self._context.clear()

    def _is_no_speech(self, reading: Reading) -> bool:
        silent = reading.no_speech_prob > self._options.no_speech_threshold
        return silent and reading.avg_logprob < self._options.logprob_threshold
