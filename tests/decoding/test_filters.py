"""Token filters beside openai-whisper's, and the options of decoding."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from sottovoce.decoding.filters import (
    ApplyTimestampRules,
    NoRepeatNgram,
    RepetitionPenalty,
    build_filters,
    matching_tokens,
    suppressed_tokens,
)
from sottovoce.errors import OptionError
from sottovoce.options.decoding import DecodingOptions, shared_options
from sottovoce.types import Floats
from tests.conftest import Reference, digest
from tests.decoding import rig

BLOCKED = float("-inf")
BEGIN, EOT, N_VOCAB = 20, 12, 30  # text 0-11, eot 12, specials 13-19, timestamps 20-29


def zeros(n_rows: int) -> Floats:
    return np.zeros((n_rows, N_VOCAB), np.float32)


def filtered(rule: ApplyTimestampRules, logits: Floats, history: Sequence[Sequence[int]]) -> Floats:
    result = logits.copy()
    rule.apply(result, np.array(history, np.int64).reshape(len(logits), -1))
    return result


def allowed(row: Floats) -> set[int]:
    return set((row > BLOCKED).nonzero()[0].tolist())


def test_the_first_token_is_an_early_timestamp() -> None:
    rule = ApplyTimestampRules(EOT, BEGIN, max_initial=3)
    assert allowed(filtered(rule, zeros(1), [[]])[0]) == {20, 21, 22, 23}
    assert allowed(filtered(ApplyTimestampRules(EOT, BEGIN, None), zeros(1), [[]])[0]) == set(range(20, 30))


def test_behind_a_prefix_text_goes_on() -> None:
    """The prefix begins at 0: what follows is text, or a later time, which ends it."""
    logits = zeros(1)
    logits[:, [5, EOT]] = 9.0  # text and the end are likely: no timestamp is forced
    rule = ApplyTimestampRules(EOT, BEGIN, max_initial=3, follows_text=True)
    text_and_end, specials = set(range(13)), set(range(13, 19))
    assert allowed(filtered(rule, logits, [[]])[0]) == text_and_end | specials | set(range(21, 30))
    assert allowed(filtered(rule, logits, [[25]])[0]) == {EOT} | specials | set(range(25, 30))


def test_rows_follow_their_own_history() -> None:
    logits = zeros(4)
    logits[:, [5, EOT]] = 9.0  # text and the end are likely: no timestamp is forced
    rule = ApplyTimestampRules(EOT, BEGIN, None)
    after_open, after_text, after_close, after_pair = filtered(
        rule, logits, [[22, 22, 22], [22, 1, 2], [22, 1, 25], [1, 25, 25]]
    )
    text, specials = set(range(12)), set(range(12, 19))
    assert allowed(after_open) == text | specials  # a pair was just written
    assert allowed(after_text) == text | specials | set(range(23, 30))  # a later time may close
    assert allowed(after_close) == specials | set(range(25, 30))  # its pair, a later one, or the end
    assert allowed(after_pair) == text | specials


def test_likely_timestamps_together_beat_one_word() -> None:
    logits = zeros(2)
    logits[0, 5], logits[1, 5] = 3.0, 1.0  # log(7 timestamps) = 1.95
    likely_word, likely_time = filtered(ApplyTimestampRules(EOT, BEGIN, None), logits, [[22, 1], [22, 1]])
    assert 5 in allowed(likely_word)
    assert allowed(likely_time) == set(range(23, 30))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_comes_twice(size: int) -> None:
    random = np.random.default_rng(size)
    history = random.integers(0, 4, (8, 12))
    logits = random.standard_normal((8, 6), np.float32)
    result = logits.copy()
    NoRepeatNgram(size).apply(result, history)
    for row in range(8):
        said = history[row].tolist()
        seen = {tuple(said[at : at + size]) for at in range(len(said) - size + 1)}
        for token in range(6):
            repeats = (*said[len(said) - size + 1 :], token) in seen
            assert float(result[row, token]) == (BLOCKED if repeats else float(logits[row, token]))


def test_repetition_penalty_lowers_text_only_and_once() -> None:
    logits = np.array([[2.0, -2.0, 1.0, 1.0]], np.float32)
    RepetitionPenalty(2.0, eot=3).apply(logits, np.array([[0, 0, 1, 3]]))
    assert logits.tolist() == [[1.0, -4.0, 1.0, 1.0]]


def test_suppressed_tokens_hold_the_signs_and_the_specials() -> None:
    tokenizer = rig.tokenizer()
    ids = suppressed_tokens((-1, 7), tokenizer)
    assert {7, *tokenizer.non_speech_tokens, tokenizer.sot, tokenizer.no_speech} <= set(ids)
    assert tokenizer.eot not in ids
    assert list(ids) == sorted(ids)


@pytest.mark.parametrize("token", [-2, 51865])
def test_what_is_no_token_cannot_be_suppressed(token: int) -> None:
    with pytest.raises(OptionError, match=rf"expected ids from 0 to 51864, or -1, got {token}"):
        suppressed_tokens((-1, token), rig.tokenizer())


@pytest.mark.reference
@pytest.mark.parametrize("seed", range(6))
def test_filters_equal_openai_whispers(seed: int, reference: Reference) -> None:
    ours = rig.tokenizer("en")
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(seed)
    n_sampled = seed * 2
    history = torch.randint(0, 400, (16, n_sampled), generator=generator)
    times = ours.timestamp_begin + torch.randint(0, 50, (16, n_sampled), generator=generator).cumsum(1) // 4
    history = torch.where(torch.rand((16, n_sampled), generator=generator) < 0.5, history, times)
    logits = 3 * torch.randn((16, 51865), generator=generator)

    def kept(filtered: Floats) -> str:
        return digest((filtered > BLOCKED).tobytes())

    def compute() -> str:
        decoding = pytest.importorskip("whisper.decoding", reason="openai-whisper is not installed")
        from whisper.tokenizer import get_tokenizer

        theirs = get_tokenizer(True, language="en", task="transcribe")
        expected = logits.clone()
        for rule in (
            decoding.SuppressBlank(theirs, 0),
            decoding.SuppressTokens(suppressed_tokens((-1,), ours)),
            decoding.ApplyTimestampRules(theirs, 0, 50),
        ):
            rule.apply(expected, history)
        return kept(expected.numpy())

    filtered = logits.numpy().copy()
    for rule in build_filters(DecodingOptions(), ours):
        rule.apply(filtered, history.numpy())
    assert kept(filtered) == reference(compute)
    assert np.array_equal(filtered[filtered > BLOCKED], logits.numpy()[filtered > BLOCKED])


@pytest.mark.parametrize("without_timestamps", [False, True])
def test_beside_language_models_what_is_no_text_is_never_said(without_timestamps: bool) -> None:
    tokenizer = rig.tokenizer("en")
    options = DecodingOptions(without_timestamps=without_timestamps, suppress_tokens=None)
    text = tokenizer.encode(" ab")
    logits = np.zeros((1, tokenizer.n_vocab), np.float32)
    logits[:, text[0]] = 30.0  # or timestamps win
    for rule in build_filters(options, tokenizer, is_fused=True):
        rule.apply(logits, np.array([[tokenizer.timestamp_begin, *text]]))
    said = (logits[0] > BLOCKED).nonzero()[0].tolist()
    times = [] if without_timestamps else range(tokenizer.timestamp_begin + 1, tokenizer.n_vocab)
    assert said == [*range(tokenizer.eot + 1), *times]


def test_a_regular_expression_suppresses_the_tokens_that_it_matches_as_a_whole() -> None:
    tokenizer = rig.tokenizer()
    ids = matching_tokens(r" ?[0-9]+", tokenizer.n_vocab)
    assert set(tokenizer.encode("7")) | set(tokenizer.encode(" 7")) <= set(ids)
    assert all(tokenizer.decode([token]).strip().isdecimal() for token in ids)
    with pytest.raises(OptionError, match=r"suppress_regex: expected a regular expression, got '\('"):
        DecodingOptions(suppress_regex="(")


def test_a_pattern_that_leaves_nothing_to_say_is_refused() -> None:
    with pytest.raises(OptionError, match="suppress_regex: expected one that leaves words"):
        matching_tokens(".*", rig.tokenizer().n_vocab)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "summarize"}, "task"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"sample_len": 0}, "sample_len"),
        ({"beam_size": 0}, "beam_size"),
        ({"beam_size": 2, "temperature": 0.5}, "beam search needs temperature 0"),
        ({"beam_size": 2, "patience": 0.1}, "at least 1"),
        ({"length_penalty": 1.5}, "length_penalty"),
        ({"max_initial_timestamp": 31.0}, "max_initial_timestamp"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
    ],
)
def test_bad_values_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        DecodingOptions(**options)  # type: ignore[arg-type]


def test_temperature_decides_which_search_options_count() -> None:
    beam = DecodingOptions(beam_size=5, patience=2.0)
    assert beam.at_temperature(0.4).beam_size is None
    assert beam.at_temperature(0.4).patience is None
    drawn = DecodingOptions(temperature=0.2, best_of=5)
    assert drawn.at_temperature(0.0).best_of is None
    assert drawn.at_temperature(0.8).best_of == 5


def test_best_of_counts_above_temperature_0_only() -> None:
    wish = DecodingOptions(best_of=5)
    assert wish.n_hypotheses == 1
    assert wish.at_temperature(0.0).n_hypotheses == 1
    assert wish.at_temperature(0.4).n_hypotheses == 5
    both = DecodingOptions(best_of=5, beam_size=2)
    assert (both.n_hypotheses, both.at_temperature(0.4).n_hypotheses) == (2, 5)


def test_a_batch_shares_all_but_what_each_window_has() -> None:
    first = DecodingOptions(language="en", prompt="one", seed=1)
    second = DecodingOptions(language="de", hotwords="x", seed=2, sample_len=9)
    assert shared_options([first, second]) == DecodingOptions()
    with pytest.raises(OptionError, match="may differ"):
        shared_options([first, DecodingOptions(beam_size=2)])
    with pytest.raises(OptionError, match="got none"):
        shared_options([])
