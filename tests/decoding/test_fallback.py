from __future__ import annotations

import math

import numpy as np
import pytest

from sottovoce.decoding.decode import DecodingResult, decode, likeliest_result, mix_seed
from sottovoce.errors import OptionError
from sottovoce.lm.base import Floats, Ints
from sottovoce.options.decoding import DecodingOptions, FallbackOptions, token_entropy
from sottovoce.runtime.calls import DirectRuntime, decode_with_fallback
from tests.decoding import rig


def result(
    *,
    ratio: float = 1.0,
    logprob: float = -0.3,
    no_speech: float = 0.0,
    tokens: tuple[int, ...] = (1, 2, 3),
) -> DecodingResult:
    return DecodingResult("en", tokens, "text", logprob, no_speech, 0.0, ratio)


def test_repetition_and_guesses_fail_but_silence_does_not() -> None:
    rules = FallbackOptions()
    assert not rules.fails(result())
    assert rules.fails(result(ratio=2.5))
    assert rules.fails(result(logprob=-1.1))
    assert not rules.fails(result(logprob=-1.1, no_speech=0.7))
    assert not rules.fails(result(ratio=2.5, no_speech=0.7))
    assert rules.is_silence(result(ratio=2.5, no_speech=0.7))
    assert rules.fails(result(ratio=2.5, no_speech=0.2))
    assert rules.is_silence(result(logprob=-1.1, no_speech=0.7))
    assert not rules.is_silence(result(logprob=-0.9, no_speech=0.7))
    off = FallbackOptions(compression_ratio_threshold=None, logprob_threshold=None, no_speech_threshold=None)
    assert not off.fails(result(ratio=9.0, logprob=-9.0, no_speech=1.0))
    assert not off.is_silence(result(no_speech=1.0))


def test_loops_are_counted_at_the_end() -> None:
    looping = DecodingResult("en", (5, 1, 2, 1, 2, 1, 2), "", -0.1, 0.0, 0.0, 1.0)
    assert FallbackOptions(max_loops=2).fails(looping)
    assert not FallbackOptions(max_loops=3).fails(looping)


def test_only_windows_that_fail_are_decoded_again() -> None:
    model, tokenizer = rig.backend(seed=4), rig.tokenizer()
    encoded = rig.encode(model, rig.mel(3))
    options = [DecodingOptions(language="en", sample_len=8, beam_size=2)] * 3
    cold = decode(model, tokenizer, encoded, options)
    limit = sorted(item.avg_logprob for item in cold)[1]  # the least likely window fails
    rules = FallbackOptions((0.0, 0.5, 1.0), None, limit, None)
    attempts = DirectRuntime(model).run(decode_with_fallback(model, tokenizer, encoded, options, rules))
    for attempt, first in zip(attempts, cold, strict=True):
        if first.avg_logprob >= limit:
            assert attempt.result.tokens == first.tokens
            assert attempt.last_temperature == 0.0
        else:
            assert attempt.last_temperature == 1.0
            # All of them failed, so the likeliest is kept: random text at 0.5 and 1.0 is less likely.
            assert attempt.result.avg_logprob == max(first.avg_logprob, attempt.result.avg_logprob)


def test_a_loop_that_will_be_read_in_parts_is_not_tried_again() -> None:
    model, tokenizer = rig.backend(seed=4), rig.tokenizer()
    encoded = rig.encode(model, rig.mel(2))
    options = [DecodingOptions(language="en", sample_len=8)] * 2
    rules = FallbackOptions((0.0, 0.5), 0.0, None, None)  # everything repeats itself
    splits, run = {"divisible": [True, False]}, DirectRuntime(model).run
    attempts = run(decode_with_fallback(model, tokenizer, encoded, options, rules, **splits))
    assert [attempt.last_temperature for attempt in attempts] == [0.0, 0.5]
    guesses = FallbackOptions((0.0, 0.5), None, 0.0, None)
    attempts = run(decode_with_fallback(model, tokenizer, encoded, options, guesses, **splits))
    assert [attempt.last_temperature for attempt in attempts] == [0.5, 0.5]


def test_among_failures_one_that_does_not_repeat_is_kept() -> None:
    loop, guess, worse = result(ratio=9.0, logprob=-0.1), result(logprob=-1.2), result(logprob=-3.0)
    assert likeliest_result([loop, guess, worse], FallbackOptions()) is guess
    assert likeliest_result([loop, loop], FallbackOptions()) is loop
    good = result()
    assert likeliest_result([loop, good], FallbackOptions()) is good


def test_seeds_differ_by_every_part() -> None:
    assert len({mix_seed(a, b) for a in range(20) for b in range(20)}) == 400


def test_no_temperature_is_refused() -> None:
    with pytest.raises(OptionError, match="temperatures"):
        FallbackOptions(temperatures=())
    for wrong in (float("nan"), float("inf"), -0.1):
        with pytest.raises(OptionError, match="temperatures: expected"):
            FallbackOptions(temperatures=(0.0, wrong))
    with pytest.raises(OptionError, match="max_loops"):
        FallbackOptions(max_loops=0)


class Everywhere:
    """Language models that make every row say one token, whatever the temperature."""

    n_tokens = 1000
    n_models, is_static = 1, False

    def start(self, n: int) -> Ints:
        return np.zeros((n, 1), np.int64)

    def score(self, states: Ints, tokens: Ints | None = None) -> tuple[Floats, Ints]:
        if tokens is not None:
            return np.zeros(len(tokens), np.float32), states
        scores = np.zeros((len(states), self.n_tokens), np.float32)
        scores[:, 50] = 90.0
        return scores, states

    def finish(self, states: Ints) -> Floats:
        return np.zeros(len(states), np.float32)


def test_language_models_take_part_at_every_temperature() -> None:
    model, tokenizer = rig.backend(seed=4), rig.tokenizer()
    encoded = rig.encode(model, rig.mel(1))
    options = [DecodingOptions(language="en", sample_len=4, beam_size=2, without_timestamps=True)]
    rules = FallbackOptions((0.0, 0.5, 1.0), None, -0.001, None)
    steps = decode_with_fallback(model, tokenizer, encoded, options, rules, fusion=Everywhere())
    (attempt,) = DirectRuntime(model).run(steps)
    assert attempt.last_temperature == 1.0
    assert attempt.result.tokens == (50,) * 4
    sampled = [DecodingOptions(language="en", sample_len=4, temperature=1.0, without_timestamps=True)]
    assert decode(model, tokenizer, encoded, sampled, fusion=Everywhere())[0].tokens == (50,) * 4
    assert decode(model, tokenizer, encoded, sampled)[0].tokens != (50,) * 4


def test_entropy_tells_repetition_from_text() -> None:
    assert token_entropy([7] * 32) == 0.0
    assert token_entropy(range(32)) == pytest.approx(math.log(32))
    limit = FallbackOptions(compression_ratio_threshold=None, entropy_threshold=2.4)
    assert limit.repeats(result(tokens=(1, 2, 3) * 12))
    assert not limit.repeats(result(tokens=tuple(range(40))))
    assert not limit.repeats(result(tokens=(1, 2) * 10)), "too few tokens to tell"
    with pytest.raises(OptionError, match="entropy_threshold: expected 0 or more"):
        FallbackOptions(entropy_threshold=-1.0)
