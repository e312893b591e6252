"""Decoding again at higher temperatures when a window's text looks wrong.

Source: openai-whisper 20250625 `decode_with_fallback`; of windows where every temperature fails,
faster-whisper 1.2.1 keeps the likeliest text that does not repeat itself rather than the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from sottovoce.backends.base import Backend
from sottovoce.decoding.beam import Fusion
from sottovoce.decoding.decode import DecodingResult, decode_stepwise, select_windows
from sottovoce.decoding.stepwise import Stepwise
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result chosen for a window, and the last temperature that was tried."""

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
) -> Stepwise[list[Attempt]]:
    """Decode every window; decode those that fail again at the next temperature. Pauses before each pass.

    options: as for `decode`; their temperature is ignored, beam_size and patience apply at temperature 0
    only, best_of above 0 only. divisible: for each window, whether it will be split if its first text repeats
    itself, so that it is not decoded again as a whole; None: none will. fusion: language models, at every
    temperature; None: none.

    Raises: OptionError as `decode`.
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
        results = yield from decode_stepwise(backend, tokenizer, windows, chosen, fusion=fusion)
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
    """Mix several numbers to one seed; different numbers nearly always give different seeds."""
    seed = 0
    for part in parts:
        seed = (seed * 6364136223846793005 + part + 1442695040888963407) % 2**63
    return seed


def _choose(tried: Sequence[DecodingResult], fallback: FallbackOptions) -> DecodingResult:
    """Choose the last result if it is good, else the likeliest of those that do not repeat themselves."""
    if not fallback.fails(tried[-1]):
        return tried[-1]
    fresh = [result for result in tried if not fallback.repeats(result)]
    return max(fresh or tried, key=lambda result: result.avg_logprob)
