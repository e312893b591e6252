"""What is being said: the audio held, the words committed of it, and the text before it.

An utterance goes on over short pauses: what was said before one is what the model hears and reads before
the next words. When the audio grows past its limit it is cut at a pause between committed words, whose text
moves into the prompt. Not known here: models, decoding, and when an utterance begins or ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from sottovoce.backends.base import EncoderState
from sottovoce.streaming.committed import CommittedWords
from sottovoce.streaming.context import TextContext
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.reading import Prefix
from sottovoce.streaming.window import SAMPLES_PER_FRAME, MelBuffer, loudness, quietest_border
from sottovoce.streaming.words import ReadWord
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE, Samples

MOST_TOKENS = 160
"""Committed text beside the audio held: with a prompt of 223 tokens, there is room for what comes."""


class Utterance:
    """Audio from a sample on, words committed of it, and what was said before, by language.

    tokenizer_of: of a language code, told language and task. said: by language, text tokens said before;
    None: nothing was said in the session yet.
    """

    def __init__(
        self,
        tokenizer_of: Callable[[str], Tokenizer],
        options: StreamOptions,
        *,
        n_mels: int,
        device: torch.device,
        start_sample: int = 0,
        said: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._options = options
        self._mels = MelBuffer(n_mels, start_sample, device)
        self._tokenizer_of = tokenizer_of
        self._before = said
        self._says_nothing = said is None
        self._contexts: dict[str, TextContext] = {}
        self.committed = CommittedWords(start_sample / SAMPLE_RATE)
        self.encoder_state: EncoderState | None = None
        """What the encoder keeps of the audio held; the session's to set."""

    @property
    def start_sample(self) -> int:
        """First sample held."""
        return self._mels.start_sample

    @property
    def end_sample(self) -> int:
        """Sample after the last one appended."""
        return self._mels.end_sample

    @property
    def said(self) -> dict[str, tuple[int, ...]] | None:
        """By language, text tokens for the prompt of an utterance that goes on from here; None: nothing was
        said in the session yet."""
        if self._says_nothing:
            return None
        tokens = self.committed.tokens
        here = {code: context.followed_by(tokens(code)) for code, context in self._contexts.items()}
        return {**(self._before or {}), **here}

    def append(self, samples: Samples) -> None:
        """Take audio (n,) float32 that follows what was appended before; what is too much then is cut."""
        self._mels.append(samples)
        self._trim()

    def log_mel(self, *, final: bool = False, until_sample: int | None = None) -> Tensor:
        """Un-normalised frames (n_mels, n) of the audio held; see `MelBuffer.frames`."""
        return self._mels.frames(final=final, until_sample=until_sample)

    def border_s(self, around_s: float, reach_s: float) -> float:
        """Where words can be parted: the quietest moment at most `reach_s` from another, behind the committed
        words, whose last one ends a little after its last attended frame."""
        start_s, until_s = self.start_sample / SAMPLE_RATE, self.committed.until_s
        around_s = max(around_s, until_s)
        border, least, reach = (
            math.ceil(seconds * FRAMES_PER_SECOND)
            for seconds in (around_s - start_s, until_s - start_s, reach_s)
        )
        quiet = quietest_border(loudness(self.log_mel()), border, reach, least=least)
        return max(until_s, start_s + quiet / FRAMES_PER_SECOND)

    def prefix(self, language: str) -> Prefix:
        """What the decoder of a language says first: its prompt, and all its committed words."""
        return self._context(language).prefix(self.committed.tokens(language))

    def prefix_since(self, language: str) -> Prefix:
        """The same, of its words since another language was said; those before are its prompt."""
        _, before, since = self.committed.run_of(language)
        return self._context(language).prefix(since, before)

    def commit(self, words: Sequence[ReadWord]) -> None:
        if words and self._says_nothing:
            self._says_nothing = False
            for language, context in self._contexts.items():
                if language != words[0].word.language:
                    context.clear()
        for word in words:
            self.committed.add(word)

    def drop_before(self, cut_s: float) -> None:
        """Drop audio before a moment; the words in it move into the prompt."""
        for read in self.committed.drop_before(cut_s):
            self._context(read.word.language or "").add(read.tokens)
        self._mels.cut(round(cut_s * SAMPLE_RATE))
        self.encoder_state = None

    def forget_text(self) -> None:
        """Let prompts go: terms that stay remain."""
        for context in self._contexts.values():
            context.clear()

    def _trim(self) -> None:
        """Cut what is held to its limits of time and of text, at the widest gap between words near them."""
        limit = round(self._options.audio_max_len_s * SAMPLE_RATE)
        too_long = self.end_sample - self.start_sample > limit
        crowded = len(self.committed.tokens()) > MOST_TOKENS
        if too_long:
            # A cut is rounded down to a whole encoder frame.
            earliest_s = (self.end_sample - limit + SAMPLES_PER_FRAME) / SAMPLE_RATE
            latest_s = earliest_s + self._options.trim_s
            self.drop_before(self.committed.cut_point(earliest_s, latest_s))
        elif crowded:
            self.drop_before(self.committed.half_point())

    def _context(self, language: str) -> TextContext:
        if language not in self._contexts:
            said = None if self._says_nothing else (self._before or {}).get(language, ())
            self._contexts[language] = TextContext(self._tokenizer_of(language), self._options, said)
        return self._contexts[language]
