"""Rules for decoding a window again, at other temperatures or by another model.

Sources: openai-whisper 20250625 `decode_with_fallback`; deferral: Narasimhan et al. 2022, "Post-hoc
estimators for learning to defer to an expert".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from sottovoce.errors import OptionError
from sottovoce.options.decoding import HOTTEST, MOST_BEAM, DecodingOptions
from sottovoce.options.schema import ApiField, Option, check_options, in_python
from sottovoce.types import Segment

ENTROPY_TOKENS = 32
"""Last tokens over which the entropy is computed."""

_fallback = partial(Option, group="Fallback")


class ScoredText(Protocol):
    @property
    def tokens(self) -> tuple[int, ...]: ...
    @property
    def avg_logprob(self) -> float: ...
    @property
    def no_speech_prob(self) -> float: ...
    @property
    def compression_ratio(self) -> float: ...


@dataclass(frozen=True, slots=True)
class FallbackOptions:
    """Conditions and temperatures of decoding again. Raises: OptionError."""

    temperatures: tuple[float, ...] = _fallback(
        "Temperatures, tried in turn while the result looks wrong.",
        key="temperature",
        kind="numbers",
        metavar="T[,T…]",
        least=0.0,
        most=HOTTEST,
        apis={
            "openai": ApiField(
                "temperature",
                "0 or none: higher ones are tried if the result looks wrong; above 0: only this one",
                kind="number",
                reads=lambda first: (first,) if first else None,
            )
        },
    ).as_field((0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    compression_ratio_threshold: float | None = _fallback(
        "Text with a higher compression ratio is repetitive: try the next temperature."
    ).as_field(2.4)
    logprob_threshold: float | None = _fallback(
        "With a lower mean log-probability, try the next temperature.",
        apis={
            "whisper_cpp": ApiField(
                "logprob_thold",
                "a result with a lower mean log-probability looks wrong",
                least=-1e3,
                most=1.0,
            )
        },
    ).as_field(-1.0)
    no_speech_threshold: float | None = _fallback(
        "With a higher no-speech probability, and below --logprob-threshold, the window is silent.",
        least=0.0,
        most=1.0,
        apis={
            "whisper_cpp": ApiField(
                "no_speech_thold", "silence: a higher no-speech probability, and a text that looks wrong"
            )
        },
    ).as_field(0.6)
    """None: no window is silent."""
    max_loops: int | None = in_python(
        "How often the same run of up to 16 tokens may end a text, one after the other.",
        unset="any number",
        least=1,
    ).as_field(None)
    entropy_threshold: float | None = _fallback(
        "Text whose last 32 tokens have a lower entropy is repetitive too (2.4 in whisper.cpp).",
        unset="off",
        least=0.0,
        apis={
            "whisper_cpp": ApiField(
                "entropy_thold", "a text with a lower entropy looks wrong; default off", least=0.0, most=1e3
            )
        },
    ).as_field(None)
    """In nats; None: no limit."""
    best_of: int | None = Option(
        "Samples at temperatures above 0.",
        group="Search",
        cli_default=5,
        least=1,
        apis={
            "whisper_cpp": ApiField(
                "best_of", "samples at temperatures above 0, up to 16", least=-1, most=MOST_BEAM, none_upto=0
            )
        },
    ).as_field(None)
    """None uses the decoding options' value."""

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise OptionError("temperatures: expected one or more, got none")
        check_options(self)

    def at_temperature(self, options: DecodingOptions, temperature: float, seed: int) -> DecodingOptions:
        chosen = replace(options.at_temperature(temperature), seed=seed)
        return chosen if self.best_of is None else replace(chosen, best_of=self.best_of)

    def repeats(self, result: ScoredText) -> bool:
        limit = self.compression_ratio_threshold
        if limit is not None and result.compression_ratio > limit:
            return True
        least, tokens = self.entropy_threshold, result.tokens
        is_long = len(tokens) > ENTROPY_TOKENS
        if least is not None and is_long and token_entropy(tokens[-ENTROPY_TOKENS:]) < least:
            return True
        return self.max_loops is not None and count_loops(result.tokens) > self.max_loops

    def is_guess(self, result: ScoredText) -> bool:
        return self.logprob_threshold is not None and result.avg_logprob < self.logprob_threshold

    def is_silence(self, result: ScoredText) -> bool:
        if self.no_speech_threshold is None or result.no_speech_prob <= self.no_speech_threshold:
            return False
        if self.logprob_threshold is None or self.repeats(result):
            return True
        return result.avg_logprob <= self.logprob_threshold

    def fails(self, result: ScoredText) -> bool:
        return (self.is_guess(result) or self.repeats(result)) and not self.is_silence(result)


def count_loops(tokens: Sequence[int], longest: int = 16) -> int:
    """Count the repeats of the same run of at most `longest` tokens at the end."""
    most = 0
    for period in range(1, min(longest, len(tokens)) + 1):
        run = tokens[-period:]
        loops = 1
        while tuple(tokens[-period * (loops + 1) : -period * loops]) == tuple(run):
            loops += 1
        most = max(most, loops)
    return most


def token_entropy(tokens: Sequence[int]) -> float:
    """Return the entropy of the tokens in nats.

    Source: whisper.cpp, `whisper_sequence_score`.
    """
    shares = [count / len(tokens) for count in Counter(tokens).values()]
    return -sum(share * math.log(share) for share in shares)


@dataclass(frozen=True, slots=True)
class DeferralOptions:
    """Which segments the second model transcribes again, beside skipped speech. Raises: OptionError."""

    min_avg_logprob: float = Option(
        "Windows with a lower mean log-probability are uncertain.",
        group="Second model",
        key="defer_logprob",
        most=0.0,
    ).as_field(-0.6)
    min_word_prob: float = Option(
        "Segments with a word of lower probability are uncertain; above 0, words are timed for this.",
        group="Second model",
        key="defer_word",
        least=0.0,
        most=1.0,
    ).as_field(0.5)

    def __post_init__(self) -> None:
        check_options(self)

    def defers(self, segment: Segment) -> bool:
        return (
            segment.avg_logprob < self.min_avg_logprob
            or segment.temperature > 0.0
            or any(word.probability < self.min_word_prob for word in segment.words or ())
        )
