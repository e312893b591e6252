"""What a caller can ask of the decoder for one window of audio, checked when it is made.

Knows nothing of recordings: seeking, fallback and word times have their own options.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sottovoce.errors import OptionError
from sottovoce.types import Task

NON_SPEECH = -1
"""In `suppress_tokens`: the tokenizer's brackets, tags and music signs."""


HOTTEST = 1.0
"""The highest temperature: there the model's own probabilities are drawn from, above it flatter ones.
Source: the range of OpenAI's transcription API."""


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """How to decode one window of at most 30 s. Names and defaults are openai-whisper's.

    language: code or English name; None detects it, among `allowed_languages` if those are given.
    temperature: 0 takes the best token, above 0 draws tokens. seed: of the draws, with temperature > 0.
        Of a recording, 0 leaves it to the fallback's temperatures, and one above 0 is the only one tried.
    sample_len: tokens to sample at most; None is half of the model's text context (224).
    best_of: independent draws of which the most probable is taken; counts at temperatures above 0 only.
    beam_size: hypotheses kept by beam search; None is greedy search.
    patience: beam search ends at round(beam_size * patience) finished hypotheses; None is 1.
        Source: Kasai et al. 2022, https://arxiv.org/abs/2204.05424.
    length_penalty: alpha of ((5 + n) / 6) ** alpha, 0 to 1; None divides by the length n.
        Source: Wu et al. 2016, https://arxiv.org/abs/1609.08144.
    prompt: text or tokens of what was said before. hotwords: words likely to be said, put before the
        prompt. prefix: text or tokens that the transcript of this window begins with, and which is not
        written again. Of a recording it is the beginning of the first window only, as in faster-whisper;
        openai-whisper puts it before every window.
    suppress_tokens: ids never sampled; -1 stands for the non-speech signs. Empty: nothing, not even
        special tokens, is suppressed.
    speaker_turns: let the model write its token for "somebody else speaks" (`<|startoflm|>`), which
        tinydiarize's checkpoints have learnt. Others write it nowhere, or anywhere.
    suppress_regex: text tokens whose whole text it matches (its space included) are never sampled.
    max_initial_timestamp: latest first timestamp in seconds; None or 0 sets no limit.
    repetition_penalty: above 1 makes text tokens that were sampled already less likely.
    no_repeat_ngram_size: no n-gram of this many tokens is sampled twice; 0 allows all.

    Raises: OptionError for values out of range or that exclude each other.
    """

    language: str | None = None
    task: Task = "transcribe"
    temperature: float = 0.0
    sample_len: int | None = None
    best_of: int | None = None
    beam_size: int | None = None
    patience: float | None = None
    length_penalty: float | None = None
    prompt: str | tuple[int, ...] | None = None
    prefix: str | tuple[int, ...] | None = None
    hotwords: str | None = None
    suppress_tokens: tuple[int, ...] = (NON_SPEECH,)
    suppress_regex: str | None = None
    speaker_turns: bool = False
    suppress_blank: bool = True
    without_timestamps: bool = False
    max_initial_timestamp: float | None = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    allowed_languages: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_search()

    def _check_ranges(self) -> None:
        if self.task not in ("transcribe", "translate"):
            raise OptionError(f"task: expected 'transcribe' or 'translate', got '{self.task}'")
        check_temperature("temperature", self.temperature)
        _at_least("sample_len", self.sample_len, 1)
        _at_least("best_of", self.best_of, 1)
        _at_least("beam_size", self.beam_size, 1)
        if self.suppress_regex is not None:
            _check_regex(self.suppress_regex)
        _at_least("no_repeat_ngram_size", self.no_repeat_ngram_size, 0)
        if self.length_penalty is not None and not 0.0 <= self.length_penalty <= 1.0:
            raise OptionError(f"length_penalty: expected 0 to 1, got {self.length_penalty}")
        if self.max_initial_timestamp is not None and not 0.0 <= self.max_initial_timestamp <= 30.0:
            raise OptionError(
                f"max_initial_timestamp: expected 0 to 30 seconds, got {self.max_initial_timestamp}"
            )
        if not self.repetition_penalty > 0.0:
            raise OptionError(f"repetition_penalty: expected more than 0, got {self.repetition_penalty}")

    def _check_search(self) -> None:
        if self.beam_size is not None and self.temperature > 0.0:
            raise OptionError(f"beam_size {self.beam_size}: beam search needs temperature 0")
        if self.patience is None:
            return
        if self.beam_size is None:
            raise OptionError(f"patience {self.patience}: needs a beam_size")
        if round(self.beam_size * self.patience) < 1:
            raise OptionError(
                f"patience {self.patience}: expected beam_size * patience of at least 1, "
                f"got {self.beam_size * self.patience}"
            )

    @property
    def n_hypotheses(self) -> int:
        """Rows that the search keeps for one window."""
        if self.temperature > 0.0:
            return self.best_of or 1
        return self.beam_size or 1

    def at_temperature(self, temperature: float) -> DecodingOptions:
        """The same wish at another temperature: beam search at 0 only, best_of above 0 only."""
        if temperature > 0.0:
            return replace(self, temperature=temperature, beam_size=None, patience=None)
        return replace(self, temperature=0.0, best_of=None)


def shared_options(options: Sequence[DecodingOptions]) -> DecodingOptions:
    """What the options of one batch have in common; prompt, hotwords, language and seed may differ.

    Raises: OptionError when there are none or they differ in anything else.
    """
    if not options:
        raise OptionError("decoding options: expected one for every window, got none")
    common = [replace(one, prompt=None, hotwords=None, language=None, seed=0) for one in options]
    if any(one != common[0] for one in common):
        raise OptionError(
            "decoding options of one batch may differ in prompt, hotwords, language and seed only"
        )
    return common[0]


def check_temperature(name: str, value: float) -> None:
    """Raises: OptionError outside of 0 to 1."""
    if not 0.0 <= value <= HOTTEST:
        raise OptionError(f"{name}: expected 0 to {HOTTEST:g}, got {value:g}")


def _check_regex(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(
            f"suppress_regex: expected a regular expression, got '{pattern}' ({error})"
        ) from None


def _at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise OptionError(f"{name}: expected at least {least}, got {value}")
