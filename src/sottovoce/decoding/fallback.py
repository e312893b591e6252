"""Decoding again at higher temperatures when a window's text looks wrong.

Source: openai-whisper 20250625 `decode_with_fallback`; of windows where every temperature fails,
faster-whisper 1.2.1 keeps the likeliest reading that does not repeat itself rather than the last one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from sottovoce.backends.base import Backend
from sottovoce.decoding.beam import Fusion
from sottovoce.decoding.decode import DecodingResult, decode, select_windows
from sottovoce.decoding.options import DecodingOptions, check_temperature
from sottovoce.errors import OptionError
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput

State = TypeVar("State")
ENTROPY_TOKENS = 32
"""Over which the entropy of a text is taken."""


@dataclass(frozen=True, slots=True)
class FallbackOptions:
    """When to decode again, and at which temperatures.

    temperatures: tried in this order until one is good enough.
    compression_ratio_threshold: a text that compresses better than this repeats itself; None: no limit.
    logprob_threshold: an avg_logprob below this is a guess; None: no limit.
    no_speech_threshold: a guess, or a text that repeats itself, with a no_speech_prob above this is silence,
        and not tried again.
    max_loops: a run of up to 16 tokens that the text ends with more often than this, one after the other,
        is a loop; None: no limit.
    entropy_threshold: a text of more than 32 tokens, the last 32 of which have an entropy (nats) below this,
        repeats itself; None: no limit. whisper.cpp, which has it instead of the compression ratio, takes 2.4.
    best_of: draws at temperatures above 0; None leaves it to the decoding options.

    Raises: OptionError for no temperature or thresholds out of range.
    """

    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio_threshold: float | None = 2.4
    logprob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    max_loops: int | None = None
    entropy_threshold: float | None = None
    best_of: int | None = None

    def __post_init__(self) -> None:
        if self.best_of is not None and self.best_of < 1:
            raise OptionError(f"best_of: expected at least 1, got {self.best_of}")
        if not self.temperatures:
            raise OptionError("temperatures: expected one or more, got none")
        for one in self.temperatures:
            check_temperature("temperatures", one)
        if self.no_speech_threshold is not None and not 0.0 <= self.no_speech_threshold <= 1.0:
            raise OptionError(f"no_speech_threshold: expected 0 to 1, got {self.no_speech_threshold}")
        if self.entropy_threshold is not None and not 0.0 <= self.entropy_threshold < math.inf:
            raise OptionError(f"entropy_threshold: expected 0 or more, got {self.entropy_threshold}")
        if self.max_loops is not None and self.max_loops < 1:
            raise OptionError(f"max_loops: expected at least 1, got {self.max_loops}")

    def at_temperature(self, options: DecodingOptions, temperature: float, seed: int) -> DecodingOptions:
        """How to decode a window at one of the temperatures."""
        chosen = replace(options.at_temperature(temperature), seed=seed)
        return chosen if self.best_of is None else replace(chosen, best_of=self.best_of)

    def repeats(self, result: DecodingResult) -> bool:
        """Whether the text repeats itself too much."""
        limit = self.compression_ratio_threshold
        if limit is not None and result.compression_ratio > limit:
            return True
        least, tokens = self.entropy_threshold, result.tokens
        is_long = len(tokens) > ENTROPY_TOKENS
        if least is not None and is_long and token_entropy(tokens[-ENTROPY_TOKENS:]) < least:
            return True
        return self.max_loops is not None and count_loops(result.tokens) > self.max_loops

    def is_guess(self, result: DecodingResult) -> bool:
        """Whether the text is improbable."""
        return self.logprob_threshold is not None and result.avg_logprob < self.logprob_threshold

    def is_silence(self, result: DecodingResult) -> bool:
        """Whether the window holds no speech: likely so, and its text is unlikely or repeats itself."""
        if self.no_speech_threshold is None or result.no_speech_prob <= self.no_speech_threshold:
            return False
        if self.logprob_threshold is None or self.repeats(result):
            return True
        return result.avg_logprob <= self.logprob_threshold

    def fails(self, result: DecodingResult) -> bool:
        """Whether to decode again."""
        return (self.is_guess(result) or self.repeats(result)) and not self.is_silence(result)


@dataclass(frozen=True, slots=True)
class Attempt:
    """The reading that was kept for a window, and the last temperature that was tried."""

    result: DecodingResult
    last_temperature: float


def decode_with_fallback(
    backend: Backend,
    tokenizer: Tokenizer,
    encoded: EncoderOutput,
    options: Sequence[DecodingOptions],
    fallback: FallbackOptions,
    *,
    divisible: Sequence[bool] | None = None,
    fusion: Fusion[State] | None = None,
) -> list[Attempt]:
    """Decode every window, those that fail again at the next temperature.

    options: as for `decode`; their temperature is not looked at, beam_size and patience count at
    temperature 0 only, best_of above 0 only. divisible: of each window, whether it will be read in parts if
    its first text repeats itself, so that it is not tried again as it is; None: of none. fusion: language
    models, at every temperature.
    """
    tried: list[list[DecodingResult]] = [[] for _ in options]
    last = [0.0] * len(options)
    open_windows = list(range(len(options)))
    for index, temperature in enumerate(fallback.temperatures):
        chosen = [
            fallback.at_temperature(options[window], temperature, mix_seed(options[window].seed, index))
            for window in open_windows
        ]
        windows = select_windows(encoded, open_windows)
        results = decode(backend, tokenizer, windows, chosen, fusion=fusion)
        for window, result in zip(open_windows, results, strict=True):
            tried[window].append(result)
            last[window] = temperature
        open_windows = [
            window
            for window in open_windows
            if fallback.fails(tried[window][-1])
            and not (index == 0 and divisible and divisible[window] and fallback.repeats(tried[window][0]))
        ]
        if not open_windows:
            break
    return [
        Attempt(_choose(results, fallback), temperature)
        for results, temperature in zip(tried, last, strict=True)
    ]


def mix_seed(*parts: int) -> int:
    """One seed of several numbers: different ones nearly always give different seeds."""
    seed = 0
    for part in parts:
        seed = (seed * 6364136223846793005 + part + 1442695040888963407) % 2**63
    return seed


def count_loops(tokens: Sequence[int], longest: int = 16) -> int:
    """How often the text ends with the same run of at most `longest` tokens, one after the other."""
    most = 0
    for period in range(1, min(longest, len(tokens)) + 1):
        run = tokens[-period:]
        loops = 1
        while tuple(tokens[-period * (loops + 1) : -period * loops]) == tuple(run):
            loops += 1
        most = max(most, loops)
    return most


def token_entropy(tokens: Sequence[int]) -> float:
    """How varied the tokens are, in nats: 0 for one that repeats, log(n) for n different ones.

    Source: whisper.cpp, `whisper_sequence_score`.
    """
    shares = [count / len(tokens) for count in Counter(tokens).values()]
    return -sum(share * math.log(share) for share in shares)


def _choose(tried: Sequence[DecodingResult], fallback: FallbackOptions) -> DecodingResult:
    """The last reading if it is good, else the likeliest of those that do not repeat themselves."""
    if not fallback.fails(tried[-1]):
        return tried[-1]
    fresh = [result for result in tried if not fallback.repeats(result)]
    return max(fresh or tried, key=lambda result: result.avg_logprob)
