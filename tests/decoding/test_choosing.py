"""A backend that chooses tokens itself decodes what filters and searches make of its logits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sottovoce.decoding.decode import DecodingResult, decode
from sottovoce.decoding.filters import RulesOfChoice, build_filters
from sottovoce.models.backend import Backend, ChoosingRows, RunningRows
from sottovoce.options.decoding import DecodingOptions
from sottovoce.types import Features
from tests.decoding import rig
from tests.models import tiny

PROMPTS = (None, "something was said", "a longer text that was said before")


class RowsWithoutChoice:
    """Rows that give logits alone."""

    def __init__(self, rows: RunningRows) -> None:
        self.admit, self.select, self.step = rows.admit, rows.select, rows.step
        self._rows = rows

    @property
    def n_rows(self) -> int:
        return self._rows.n_rows


class WithoutChoice:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.dims, self.device = backend.dims, backend.device

    def rows(self) -> RowsWithoutChoice:
        return RowsWithoutChoice(self._backend.rows())


def native() -> Backend:
    made = pytest.importorskip("sottovoce.runtime.native", reason="sottovoce-kernels is not installed")
    checkpoint = tiny.checkpoint(tiny.dims(n_vocab=51865, n_text_ctx=64))
    backend: Backend = made.NativeBackend.from_checkpoint(
        checkpoint, device=tiny.CPU, dtype=torch.float32, native_encoder=True
    )
    return backend


def decoded(backend: Backend, options: DecodingOptions) -> list[DecodingResult]:
    mels = rig.mel(len(PROMPTS))
    encoded = native().encode(Features(mels, (mels.shape[2],) * len(mels)))
    wishes = [replace(options, prompt=prompt, sample_len=24) for prompt in PROMPTS]
    return decode(backend, rig.tokenizer(), encoded, wishes)


@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(language="en"),
        DecodingOptions(language="de", beam_size=4, patience=1.5),
        DecodingOptions(language="en", beam_size=2, without_timestamps=True),
        DecodingOptions(language="en", beam_size=3, prefix="And", suppress_regex="[a-c]+"),
    ],
    ids=["greedy", "beam", "without times", "prefix"],
)
def test_chosen_natively_is_chosen_by_filters_and_search(options: DecodingOptions) -> None:
    backend = native()
    assert isinstance(backend.rows(), ChoosingRows)
    plain = WithoutChoice(backend)
    assert not isinstance(plain.rows(), ChoosingRows)
    for ours, theirs in zip(decoded(backend, options), decoded(plain, options), strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.avg_logprob == pytest.approx(theirs.avg_logprob, abs=1e-5)
        assert [one.tokens for one in ours.candidates] == [one.tokens for one in theirs.candidates]


@pytest.mark.parametrize("follows_text", [False, True])
def test_spans_forbid_what_the_filter_of_timestamps_forbids(follows_text: bool) -> None:
    tokenizer = rig.tokenizer("en")
    options = DecodingOptions(language="en", suppress_tokens=(), prefix="So" if follows_text else None)
    filters = build_filters(options, tokenizer)
    rules = RulesOfChoice.of(filters, 1, tokenizer.n_vocab)
    assert rules is not None
    time, text = tokenizer.timestamp_begin, 440
    for sampled in (
        [time + 3],
        [text],
        [time, text],
        [time, text, time + 9],
        [time + 9, time + 9],
        [text] * 3,
    ):
        choice = rules.choice([sampled])
        first_text, first_time, end_time = choice.allowed[0]
        allowed = torch.zeros(tokenizer.n_vocab, dtype=torch.bool)
        allowed[first_text : choice.time_begin] = True
        allowed[first_time:end_time] = True
        allowed[choice.forbidden.long()] = False
        logits = torch.zeros(1, tokenizer.n_vocab)
        logits[:, time:] = -100.0  # so that they are not forced
        for rule in filters:
            rule.apply(logits, torch.tensor([sampled]))
        assert torch.equal(allowed, logits[0] > float("-inf"))


@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(language="en", no_repeat_ngram_size=3),
        DecodingOptions(language="en", repetition_penalty=1.1),
    ],
)
def test_rules_that_change_logits_are_left_to_filters(options: DecodingOptions) -> None:
    tokenizer = rig.tokenizer("en")
    assert RulesOfChoice.of(build_filters(options, tokenizer), 1, tokenizer.n_vocab) is None
