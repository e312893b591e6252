"""A stream of speech in one language: audio in, committed words out.

`append` audio, `encode` what is held, `commit` the words that are safe; `finish` the rest. Nothing that
was committed is taken back: it is the prefix of the next update. When the audio held grows past its
limit, it is cut at a pause between committed words, whose text moves into the prompt.

Not known here: other languages, voice activity, and when updates are due (see `session`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sottovoce.audio.mel import window_features
from sottovoce.backends.base import Backend
from sottovoce.decoding.filters import LogitFilter, SuppressBlank, SuppressTokens, suppressed_tokens
from sottovoce.decoding.options import NON_SPEECH
from sottovoce.streaming.alignatt import (
    MAX_TOKENS,
    Ending,
    Prefix,
    Reader,
    Reading,
    ReadingRules,
    most_tokens,
)
from sottovoce.streaming.committed import CommittedWords
from sottovoce.streaming.endofword import EndOfWord
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.window import MELS_PER_FRAME, MelBuffer, Window
from sottovoce.streaming.words import ReadWord, WordMaker
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, Samples, Word


class Stream:
    """One language's words from audio that is still coming.

    context: text tokens said before, for the prompt (see `context` of the stream before).
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
        self._backend = backend
        self._tokenizer = tokenizer.with_task(options.task)
        self._options = options
        self._maker = WordMaker(self._tokenizer, end_of_word)
        self._mels = MelBuffer(backend.dims.n_mels, start_sample, backend.device)
        self._static = tuple(self._encode_text(options.static_prompt))
        self._context = tuple(context) or tuple(self._encode_text(options.init_prompt))
        self._committed = CommittedWords(start_sample / SAMPLE_RATE)
        self._waiting: list[Word] = []
        self._finished = False
        self._reader = Reader(
            backend,
            self._tokenizer.eot,
            self._tokenizer.no_speech if self._tokenizer.is_multilingual else None,
            live_filters(self._tokenizer, backend.dims.n_vocab, backend.device),
            options.beam_size,
        )

    @property
    def language(self) -> str:
        return self._tokenizer.language or "en"

    @property
    def start_sample(self) -> int:
        """First sample held."""
        return self._mels.start_sample

    @property
    def end_sample(self) -> int:
        """Sample after the last one appended."""
        return self._mels.end_sample

    @property
    def committed_until_s(self) -> float:
        """End of the last committed word, or the start of the stream."""
        return self._committed.until_s

    @property
    def waiting(self) -> tuple[Word, ...]:
        """Words that the last update read but did not commit."""
        return tuple(self._waiting)

    @property
    def context(self) -> tuple[int, ...]:
        """Tokens for the prompt of a stream that goes on from here in the same language."""
        said = (*self._context, *self._committed.tokens())
        return said[-self._options.max_context_tokens :] if self._options.max_context_tokens else ()

    def append(self, samples: Samples) -> None:
        """Take audio (n,) float32 that follows what was appended before."""
        assert not self._finished
        self._mels.append(samples)

    def encode(self, *, final: bool = False, until_sample: int | None = None) -> Window | None:
        """Encode the audio held, cutting it first if it is too long; None without a frame of audio."""
        self._trim()
        frames = self._mels.frames(final=final, until_sample=until_sample)
        n_frames = frames.shape[1]
        if n_frames < MELS_PER_FRAME:
            return None
        encoded = self._backend.encode(
            window_features([frames], context_frames(n_frames, self._options, self._backend.dims.n_audio_ctx))
        )
        n_content = n_frames // MELS_PER_FRAME
        return Window(replace(encoded, n_content_frames=(n_content,)), self._mels.start_sample)

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
            MAX_TOKENS if final else most_tokens(window.end_s - self._committed.until_s),
        )
        prefix = self.prefix()
        reading = self._reader.read(window.encoded, prefix, rules, bias=bias)
        if reading.ending is Ending.REWOUND or self._is_no_speech(reading):
            return []
        if reading.ending is Ending.REPEATED:
            self._start_afresh()
        return self._maker.words(reading, window, after_s=self._committed.until_s, final=final)

    def finish(self, until_sample: int | None = None, *, settled_until_s: float = math.inf) -> list[Word]:
        """Commit what is left of the audio, or of the audio up to a sample; nothing may be appended after."""
        window = self.encode(final=True, until_sample=until_sample)
        self._finished = True
        return [] if window is None else self.commit(window, settled_until_s=settled_until_s, final=True)

    def prefix(self) -> Prefix:
        """What the decoder says first in the next update."""
        room = max(0, self._options.max_context_tokens - len(self._static))
        context = self._context[-room:] if room else ()
        static = self._static[: self._options.max_context_tokens]
        prompt = (self._tokenizer.sot_prev, *static, *context) if static or context else ()
        committed = self._committed.tokens()
        start = self._tokenizer.sot_sequence_including_notimestamps
        return Prefix((*prompt, *start, *committed), len(prompt), len(committed))

    def _take(self, words: Sequence[ReadWord], settled_until_s: float) -> list[Word]:
        taken: list[Word] = []
        for word in words:
            if word.word.end > settled_until_s:
                break
            self._committed.add(word)
            taken.append(word.word)
        self._waiting = [word.word for word in words[len(taken) :]]
        return taken

    def _trim(self) -> None:
        """Cut the audio held to its limit, at the widest gap between words near it."""
        limit = round(self._options.audio_max_len_s * SAMPLE_RATE)
        crowded = len(self._committed.tokens()) > self._backend.dims.n_text_ctx // 2 - 64
        if self._mels.end_sample - self._mels.start_sample <= limit and not crowded:
            return
        earliest_s = (self._mels.end_sample - limit) / SAMPLE_RATE
        self._drop_before(self._committed.cut_point(earliest_s, earliest_s + self._options.audio_trim_s))

    def _drop_before(self, cut_s: float) -> None:
        gone = self._committed.drop_before(cut_s)
        self._context = (*self._context, *(token for word in gone for token in word.tokens))[-223:]
        self._mels.cut(round(cut_s * SAMPLE_RATE))

    def _start_afresh(self) -> None:
        """Break a loop: the prompt goes, and the audio up to the last committed word."""
        if self._committed:
            self._drop_before(self._committed.until_s)
        self._context = ()

    def _is_no_speech(self, reading: Reading) -> bool:
        silent = reading.no_speech_prob > self._options.no_speech_threshold
        return silent and reading.avg_logprob < self._options.logprob_threshold

    def _encode_text(self, text: str) -> list[int]:
        return self._tokenizer.encode(" " + text.strip()) if text.strip() else []


def context_frames(n_frames: int, options: StreamOptions, n_audio_ctx: int) -> int:
    """Log-mel frames of the encoder's window for this many frames of audio."""
    full = 2 * n_audio_ctx
    if options.context_bucket_s is None:
        return full
    bucket = MELS_PER_FRAME * max(1, round(options.context_bucket_s * FRAMES_PER_SECOND))
    return min(full, -(-n_frames // bucket) * bucket)


def live_filters(tokenizer: Tokenizer, n_vocab: int, device: torch.device) -> tuple[LogitFilter, ...]:
    """No special token but the end of text, no non-speech signs; no space where a stream begins.

    The end of text may come at once: forbidding it, as offline decoding does, invites hallucination.
    """
    special = set(range(tokenizer.eot + 1, n_vocab))
    suppressed = sorted(special | set(suppressed_tokens((NON_SPEECH,), tokenizer)))
    blank = tokenizer.encode(" ")
    return (
        SuppressTokens(torch.tensor(suppressed, device=device)),
        SuppressBlank(torch.tensor(blank, device=device)),
    )
