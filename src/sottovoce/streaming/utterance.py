"""An utterance: its buffered audio, committed words, and the text before it as a prompt.

It continues across short pauses. Long audio is cut at a pause between committed words, whose text moves
into the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sottovoce.models.backend import EncoderMode, EncoderState, IncrementalResult
from sottovoce.streaming.audio_window import (
    SAMPLES_PER_FRAME,
    SNAP_S,
    MelBuffer,
    loudness,
    quiet_frames,
    quietest_border,
    quietest_frame,
)
from sottovoce.streaming.hypothesis import DecoderPrefix
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.words import HypothesisWord
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, Samples, Word

MOST_TOKENS = 160
"""Most committed tokens of the buffered audio: with a prompt of 223 tokens, new ones still fit."""


@dataclass(frozen=True, slots=True, eq=False)
class WholeEncoding:
    """All frames of a buffer, encoded at once for a language probe.

    start_sample, n_columns: of the buffer, in samples and log-mel frames.
    """

    mode: EncoderMode
    start_sample: int
    n_columns: int
    result: IncrementalResult


class LiveUtterance:
    """Audio from a sample on, its committed words, and the text before it in each language.

    tokenizer_of: of a language code, with language and task. history: by language, text tokens before this
    utterance; None: none yet in the session, so `init_prompt` is used.
    """

    def __init__(
        self,
        tokenizer_of: Callable[[str], Tokenizer],
        options: StreamOptions,
        *,
        n_mels: int,
        device: torch.device,
        start_sample: int = 0,
        history: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._options = options
        self._mels = MelBuffer(n_mels, start_sample, device)
        self._tokenizer_of = tokenizer_of
        self._history = history
        self._is_first = history is None
        """Whether nothing was committed in the session yet."""
        self._contexts: dict[str, PromptContext] = {}
        self.committed = CommittedWords(start_sample / SAMPLE_RATE)
        self.encoder_state: EncoderState | None = None
        """The encoder's cache of the buffered audio, set by the decoder, or None."""
        self.probed: WholeEncoding | None = None
        """The buffer as last encoded by a language probe, or None."""

    @property
    def start_sample(self) -> int:
        return self._mels.start_sample

    @property
    def end_sample(self) -> int:
        return self._mels.end_sample

    @property
    def history(self) -> dict[str, tuple[int, ...]] | None:
        """By language, text tokens for the prompt of the next utterance; None: none yet."""
        if self._is_first:
            return None
        tokens = self.committed.tokens
        here = {code: context.followed_by(tokens(code)) for code, context in self._contexts.items()}
        return {**(self._history or {}), **here}

    def append(self, samples: Samples) -> None:
        """Append audio (n,) float32; trim the buffer if it becomes too long."""
        self._mels.append(samples)
        self._trim()

    def log_mel(self, *, final: bool = False, until_sample: int | None = None) -> Tensor:
        return self._mels.frames(final=final, until_sample=until_sample)

    def border_s(self, around_s: float, reach_s: float) -> float:
        """Return the quietest time at most reach_s from around_s and after the committed words."""
        start_s, until_s = self.start_sample / SAMPLE_RATE, self.committed.until_s
        around_s = max(around_s, until_s)
        border, least, reach = (
            math.ceil(seconds * FRAMES_PER_SECOND)
            for seconds in (around_s - start_s, until_s - start_s, reach_s)
        )
        quiet = quietest_border(loudness(self.log_mel()), border, reach, least=least)
        return max(until_s, start_s + quiet / FRAMES_PER_SECOND)

    def quietest_sample(self, start: int, end: int) -> int:
        loud = loudness(self.log_mel_between(start, end))
        return start + SAMPLES_PER_FRAME * quietest_frame(loud)

    def quiet_samples(self, near: int, reach: range, n_most: int) -> list[int]:
        """Return quiet samples of a part of the buffer, quietest first.

        near: ties go to the nearest to this sample. reach: the samples of the part.
        """
        at = (near - reach.start) // SAMPLES_PER_FRAME
        frames = quiet_frames(loudness(self.log_mel_between(reach.start, reach.stop)), at, n_most)
        return [reach.start + SAMPLES_PER_FRAME * frame for frame in frames]

    def log_mel_between(self, start: int, end: int) -> Tensor:
        """Return the log-mel frames (n_mels, n) between two samples."""
        first, last = ((sample - self.start_sample) // HOP_SAMPLES for sample in (start, end))
        return self.log_mel()[:, first:last]

    def prefix(self, language: str) -> DecoderPrefix:
        """Return the decoder prefix of a language: its prompt, and all its committed words."""
        return self._context(language).prefix(self.committed.tokens(language))

    def prefix_since_change(self, language: str) -> DecoderPrefix:
        """Return the prefix with the words since the last one of another language; earlier ones are
        prompt.
        """
        _, before, since = self.committed.run_of(language)
        return self._context(language).prefix(since, before)

    def probed_in(self, mode: EncoderMode, n_columns: int) -> IncrementalResult | None:
        """Return the probe's encoding of the first n_columns log-mel frames; None for another mode or
        other frames.
        """
        found = self.probed
        if found is None or (found.start_sample, found.n_columns) != (self.start_sample, n_columns):
            return None
        return found.result if found.mode == mode.whole() else None

    def commit(self, words: Sequence[HypothesisWord]) -> None:
        if words and self._is_first:
            self._is_first = False
            for language, context in self._contexts.items():
                if language != words[0].word.language:
                    context.clear()
        for word in words:
            self.committed.add(word)

    def drop_before(self, cut_s: float, *, words_until_s: float | None = None) -> None:
        """Drop audio before a time; the text of its words moves into the prompt.

        words_until_s: move words that end by this time; None: by the same.
        """
        for one in self.committed.drop_before(cut_s if words_until_s is None else words_until_s):
            self._context(one.word.language or "").add(one.tokens)
        self._mels.cut(round(cut_s * SAMPLE_RATE))
        self.encoder_state = self.probed = None

    def clear_prompt(self) -> None:
        """Drop the text before the audio; `static_prompt` stays."""
        for context in self._contexts.values():
            context.clear()

    def _trim(self) -> None:
        """Cut the buffer to its limits of time and tokens, at the widest gap between words near them."""
        limit = round(self._options.audio_max_len_s * SAMPLE_RATE)
        if self.end_sample - self.start_sample > limit:
            # A cut is rounded down to a whole encoder frame.
            earliest_s = (self.end_sample - limit + SAMPLES_PER_FRAME) / SAMPLE_RATE
            latest_s = earliest_s + self._options.trim_step_s
            self.drop_before(self.committed.cut_point(earliest_s, latest_s))
        elif len(self.committed.tokens()) > MOST_TOKENS:
            self.drop_before(self.committed.half_point())

    def _context(self, language: str) -> PromptContext:
        if language not in self._contexts:
            history = None if self._is_first else (self._history or {}).get(language, ())
            self._contexts[language] = PromptContext(self._tokenizer_of(language), self._options, history)
        return self._contexts[language]


class CommittedWords:
    """Committed words of the buffered audio, in order; until_s: end of the last one ever committed."""

    def __init__(self, start_s: float) -> None:
        self._words: list[HypothesisWord] = []
        self.until_s = start_s

    def __iter__(self) -> Iterator[HypothesisWord]:
        return iter(self._words)

    def __len__(self) -> int:
        return len(self._words)

    @property
    def last(self) -> Word | None:
        return self._words[-1].word if self._words else None

    @property
    def earliest_border_s(self) -> float:
        """The earliest time (s) of a border after the words: the middle of the last one, as its end is
        inexact, or `SNAP_S` before that end.
        """
        last = self.last
        return self.until_s if last is None else max(self.until_s - SNAP_S, (last.start + last.end) / 2)

    def add(self, word: HypothesisWord) -> None:
        self._words.append(word)
        self.until_s = max(self.until_s, word.word.end)

    def tokens(self, language: str | None = None) -> tuple[int, ...]:
        return _tokens([word for word in self._words if language in (None, word.word.language)])

    def run_of(self, language: str) -> tuple[float | None, tuple[int, ...], tuple[int, ...]]:
        """Split the words of a language at the last word of another one.

        Returns the end (s) of that word or None, and the tokens before and after it.
        """
        others = [i for i, one in enumerate(self._words) if one.word.language != language]
        if not others:
            return None, (), self.tokens(language)
        until = others[-1]
        before = [one for one in self._words[:until] if one.word.language == language]
        after = self._words[until + 1 :]
        return self._words[until].word.end, _tokens(before), _tokens(after)

    def cut_point(self, earliest_s: float, target_s: float) -> float:
        """Return where to cut the buffer: the middle of the widest gap after a word, from earliest_s to
        target_s + 2 s.

        Without a gap: target_s if all words before it are committed, else earliest_s.
        """
        words = [word.word for word in self._words]
        ends = [word.end for word in words]
        starts = [*(word.start for word in words[1:]), *([self.until_s + 0.2] if words else [])]
        gaps = [
            (after - before, (before + after) / 2)
            for before, after in zip(ends, starts, strict=True)
            if earliest_s <= (before + after) / 2 <= target_s + 2.0
        ]
        if gaps:
            return max(gaps)[1]
        return target_s if self.until_s >= target_s else earliest_s

    def half_point(self) -> float:
        """Return the middle of the widest gap in the middle third of the tokens; without one the end."""
        n_tokens = [len(one.tokens) for one in self._words]
        total, so_far, gaps = sum(n_tokens), 0, []
        for one, after, n in zip(self._words, self._words[1:], n_tokens, strict=False):
            so_far += n
            if total / 3 <= so_far <= 2 * total / 3:
                gaps.append((after.word.start - one.word.end, (one.word.end + after.word.start) / 2))
        return max(gaps)[1] if gaps else self.until_s

    def drop_before(self, cut_s: float) -> list[HypothesisWord]:
        """Remove the words that end by cut_s, and return them."""
        n_dropped = 0
        while n_dropped < len(self._words) and self._words[n_dropped].word.end <= cut_s + 1e-6:
            n_dropped += 1
        dropped, self._words = self._words[:n_dropped], self._words[n_dropped:]
        return dropped


def _tokens(words: Sequence[HypothesisWord]) -> tuple[int, ...]:
    return tuple(token for word in words for token in word.tokens)


class PromptContext:
    """The prompt of one language: `static_prompt`, and the newest text, `max_context_tokens` in all.

    history: text tokens before the utterance; None: none yet, so `init_prompt` is used.
    """

    def __init__(
        self, tokenizer: Tokenizer, options: StreamOptions, history: Sequence[int] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._limit = options.max_context_tokens
        self._static = self._encode(options.static_prompt)
        self._history = self._encode(options.init_prompt) if history is None else tuple(history)

    def add(self, tokens: Sequence[int]) -> None:
        self._history = (*self._history, *tokens)[-223:]

    def clear(self) -> None:
        self._history = ()

    def followed_by(self, committed: Sequence[int]) -> tuple[int, ...]:
        """Return the text with these committed tokens, for the next utterance."""
        return (*self._history, *committed)[-self._limit :] if self._limit else ()

    def prefix(self, committed: Sequence[int], before: Sequence[int] = ()) -> DecoderPrefix:
        """Return prompt, start-of-transcript sequence and committed tokens.

        before: tokens of committed words that this row's audio does not include; they end the prompt.
        """
        room = max(0, self._limit - len(self._static))
        history = (*self._history, *before)[-room:] if room else ()
        static = self._static[: self._limit]
        prompt = (self._tokenizer.sot_prev, *static, *history) if static or history else ()
        start = self._tokenizer.sot_sequence_including_notimestamps
        return DecoderPrefix((*prompt, *start, *committed), len(prompt), len(committed))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode_prompt(text))
