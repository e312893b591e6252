"""Decoding of windows: batches, prompts, languages, and the fallback to other temperatures."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.decoding.decode import (
    DecodingResult,
    combine_detections,
    compression_ratio,
    context_tokens,
    decode,
    detect_language,
    likeliest_result,
    mix_seed,
    start_tokens,
)
from sottovoce.errors import OptionError
from sottovoce.lm.base import Floats, Ints
from sottovoce.models.checkpoint.torch_file import save_openai
from sottovoce.options.decoding import DecodingOptions, FallbackOptions, token_entropy
from sottovoce.runtime.calls import DirectRuntime, decode_with_fallback
from tests.conftest import Reference
from tests.decoding import rig
from tests.models import tiny

SEARCHES = [
    DecodingOptions(language="en"),
    DecodingOptions(language="en", beam_size=1),
    DecodingOptions(language="en", beam_size=4),
    DecodingOptions(language="de", beam_size=3, patience=2.0, length_penalty=0.6),
    DecodingOptions(language="en", temperature=0.7, best_of=3),
    DecodingOptions(language="en", without_timestamps=True, no_repeat_ngram_size=2, repetition_penalty=1.2),
]


@pytest.mark.parametrize("options", SEARCHES, ids=["greedy", "beam1", "beam4", "patience", "drawn", "plain"])
def test_a_batch_gives_the_text_of_each_window(options: DecodingOptions) -> None:
    model, tokenizer, mels = rig.backend(), rig.tokenizer(), rig.mel(4)
    prompts = (None, "something was said", None, "a longer text that was said before this one")
    wishes = [replace(options, prompt=prompt, seed=7 + i, sample_len=8) for i, prompt in enumerate(prompts)]
    together = decode(model, tokenizer, rig.encode(model, mels), wishes)
    for index, wish in enumerate(wishes):
        alone = decode(model, tokenizer, rig.encode(model, mels[index : index + 1]), [wish])[0]
        assert alone.tokens == together[index].tokens
        assert alone.avg_logprob == pytest.approx(together[index].avg_logprob, abs=1e-5)
        assert alone.no_speech_prob == pytest.approx(together[index].no_speech_prob, abs=1e-7)


def test_all_readings_of_a_beam_search_are_told_the_best_first() -> None:
    model, tokenizer = rig.backend(), rig.tokenizer()
    options = DecodingOptions(language="en", beam_size=4, sample_len=6)
    (result,) = decode(model, tokenizer, rig.encode(model, rig.mel(1)), [options])
    assert len(result.candidates) == 4
    assert result.candidates[0].tokens == result.tokens
    averages = [candidate.logprob / len(candidate.tokens) for candidate in result.candidates]
    assert averages == sorted(averages, reverse=True)
    assert len({candidate.tokens for candidate in result.candidates}) == 4


def test_a_seed_repeats_its_draws() -> None:
    model, tokenizer = rig.backend(), rig.tokenizer()
    encoded = rig.encode(model, rig.mel(1))
    warm = DecodingOptions(language="en", temperature=1.0, sample_len=6)
    first, again, other = (
        decode(model, tokenizer, encoded, [replace(warm, seed=seed)])[0] for seed in (1, 1, 2)
    )
    assert first == again
    assert first.tokens != other.tokens


def test_a_full_prompt_leaves_the_context_that_remains() -> None:
    model, tokenizer = rig.backend(n_text_ctx=32), rig.tokenizer()
    encoded = rig.encode(model, rig.mel(2))
    prompt = tuple(range(1000, 1100))
    short = DecodingOptions(
        language="en", suppress_tokens=(tokenizer.eot,), suppress_blank=False, sample_len=30
    )
    plain, prompted = decode(model, tokenizer, encoded, [short, replace(short, prompt=prompt)])
    assert len(plain.tokens) == 30  # 3 + 30 <= 32 + 1
    assert len(prompted.tokens) == 32 + 1 - (1 + 15 + 3)


def test_prompts_keep_their_end_and_hotwords_stand_first() -> None:
    tokenizer = rig.tokenizer("en")
    options = DecodingOptions(prompt=tuple(range(500)), hotwords="sottovoce")
    tokens = context_tokens(options, tokenizer, 448)
    hotwords = tokenizer.encode(" sottovoce")
    assert tokens[: 1 + len(hotwords)] == [tokenizer.sot_prev, *hotwords]
    assert tokens[1 + len(hotwords) :] == list(range(500))[-(223 - len(hotwords)) :]
    assert context_tokens(DecodingOptions(), tokenizer, 448) == []
    with pytest.raises(OptionError, match="hotwords"):
        context_tokens(DecodingOptions(hotwords="word " * 300), tokenizer, 448)


def test_a_prefix_begins_the_transcript() -> None:
    tokenizer = rig.tokenizer("de")
    plain = start_tokens(DecodingOptions(prefix="Guten Tag"), tokenizer, 448)
    assert plain == [*tokenizer.sot_sequence, tokenizer.timestamp_begin, *tokenizer.encode(" Guten Tag")]
    timeless = start_tokens(DecodingOptions(prefix="Guten Tag", without_timestamps=True), tokenizer, 448)
    assert timeless == [*tokenizer.sot_sequence_including_notimestamps, *tokenizer.encode(" Guten Tag")]
    with pytest.raises(OptionError, match="prefix"):
        start_tokens(DecodingOptions(prefix=(1,) * 300), tokenizer, 448)


def test_options_must_fit_the_windows() -> None:
    model, tokenizer = rig.backend(), rig.tokenizer()
    with pytest.raises(OptionError, match="expected 2, got 1"):
        decode(model, tokenizer, rig.encode(model, rig.mel(2)), [DecodingOptions(language="en")])


def test_selected_windows_bring_their_keys_and_values() -> None:
    model, tokenizer = rig.backend(), rig.tokenizer()
    encoded = rig.encode(model, rig.mel(3))
    options = [DecodingOptions(language="en", sample_len=5)]
    all_three = decode(model, tokenizer, encoded, options * 3)
    part = encoded.rows([2, 0])
    assert part.cross_kv is not None
    assert [item.tokens for item in decode(model, tokenizer, part, options * 2)] == [
        all_three[2].tokens,
        all_three[0].tokens,
    ]
    assert encoded.rows([0, 1, 2]) is encoded


def test_detection_reports_what_the_allow_list_left_out() -> None:
    model, tokenizer = rig.backend(), rig.tokenizer()
    encoded = rig.encode(model, rig.mel(2))
    free = detect_language(model, tokenizer, encoded)
    chosen = detect_language(model, tokenizer, encoded, allowed=["German", "fr"])
    for item, all_languages in zip(chosen, free, strict=True):
        assert sum(all_languages.probabilities.values()) == pytest.approx(1.0, abs=1e-5)
        table = all_languages.probabilities
        assert item.allowed_mass == pytest.approx(table["de"] + table["fr"])
        assert item.language == max(("de", "fr"), key=lambda code: table[code])
        assert item.probability == pytest.approx(table[item.language] / item.allowed_mass)
        assert all_languages.allowed_mass == pytest.approx(1.0, abs=1e-5)
    both = combine_detections(free, tokenizer)
    assert both.probabilities["en"] == pytest.approx(sum(item.probabilities["en"] for item in free) / 2)


def test_a_language_that_is_not_given_is_detected() -> None:
    model, tokenizer = rig.backend(), rig.tokenizer()
    encoded = rig.encode(model, rig.mel(2))
    allowed = ("es", "zh", "fr")
    options = [
        DecodingOptions(sample_len=3, allowed_languages=allowed),
        DecodingOptions(sample_len=3, allowed_languages=allowed, language="de"),
    ]
    unknown, known = decode(model, tokenizer, encoded, options)
    detected = detect_language(model, tokenizer, encoded.rows([0]), allowed=allowed)[0]
    assert (unknown.language, known.language) == (detected.language, "de")
    assert unknown.detection is not None
    assert known.detection is None


def test_compression_ratio_rises_with_repetition() -> None:
    assert compression_ratio("") == 0.0
    assert compression_ratio("so it goes " * 30) > 2.4 > compression_ratio("A short and varied line.")


@pytest.mark.reference
@pytest.mark.filterwarnings(
    "ignore:__array_wrap__:DeprecationWarning"
)  # openai-whisper sorts tensors by NumPy
@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"beam_size": 5},
        {"beam_size": 3, "patience": 2.0, "length_penalty": 0.5},
        {"prompt": "it was said", "task": "translate"},
        {"prefix": "and so", "without_timestamps": True},
        {"language": None},
    ],
    ids=["greedy", "beam", "patience", "prompt", "prefix", "detected"],
)
def test_tokens_equal_openai_whispers(wish: dict[str, object], reference: Reference) -> None:
    wish = {"language": "fr", "max_initial_timestamp": None, "sample_len": 12} | wish
    model, tokenizer, mels = rig.backend(seed=1), rig.tokenizer(), rig.mel(3, seed=2)

    def compute() -> list[list[Any]]:
        whisper = pytest.importorskip("whisper", reason="openai-whisper is not installed")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "random.pt"
            save_openai(tiny.checkpoint(model.dims, seed=1), path, "float32")
            twin = whisper.load_model(str(path), device="cpu")
        # openai-whisper's beam search takes one window at a time.
        expected = [
            twin.decode(torch.from_numpy(mel), whisper.DecodingOptions(fp16=False, **wish)) for mel in mels
        ]
        return [[x.tokens, x.text, x.language, x.avg_logprob, x.no_speech_prob] for x in expected]

    result = decode(model, tokenizer, rig.encode(model, mels), [DecodingOptions(**wish)] * 3)  # type: ignore[arg-type]
    for ours, theirs in zip(result, reference(compute), strict=True):
        tokens, text, language, avg_logprob, no_speech_prob = theirs
        assert (list(ours.tokens), ours.text, ours.language) == (tokens, text, language)
        assert ours.avg_logprob == pytest.approx(avg_logprob, abs=1e-4)
        assert ours.no_speech_prob == pytest.approx(no_speech_prob, abs=1e-7)


def result(
    *, ratio: float = 1.0, logprob: float = -0.3, no_speech: float = 0.0, tokens: tuple[int, ...] = (1, 2, 3)
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
