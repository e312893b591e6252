"""A backend that chooses tokens itself decodes what filters and searches make of its logits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.decoding import search
from sottovoce.decoding.decode import DecodingResult, WindowDecoder, decode
from sottovoce.decoding.filters import build_filters
from sottovoce.decoding.search import BestTokensEnd, StepsOfSearch
from sottovoce.lm.fusion import ShallowFusion, text_fusion
from sottovoce.models.backend import Backend, EndingRows, RunningRows
from sottovoce.options.decoding import DecodingOptions
from sottovoce.runtime.static_rows import RowPool
from sottovoce.runtime.torch import TorchBackend
from sottovoce.runtime.torch_encoder import eagerly
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
    created = pytest.importorskip("sottovoce.runtime.native", reason="sottovoce-kernels is not installed")
    checkpoint = tiny.checkpoint(tiny.dims(n_vocab=51865, n_text_ctx=64))
    backend: Backend = created.NativeBackend.from_checkpoint(checkpoint)
    return backend


@cache
def static() -> TorchBackend:
    """Static rows on the CPU, of a model whose texts end after 1 to 30 tokens."""
    checkpoint = tiny.checkpoint(tiny.dims(n_vocab=51865, n_text_ctx=64))
    table, eot = checkpoint.tensors["decoder.token_embedding.weight"], rig.tokenizer().eot
    table[eot] *= -4
    backend = tiny.backend(checkpoint)
    backend.pool = RowPool(backend.dims, backend.dtype, backend.device, eagerly)
    return backend


SEARCHES = st.builds(
    DecodingOptions,
    language=st.just("en"),
    beam_size=st.sampled_from((None, 1, 2, 5)),
    without_timestamps=st.booleans(),
    max_initial_timestamp=st.sampled_from((None, 1.0)),
    prefix=st.sampled_from((None, "And")),
    sample_len=st.sampled_from((3, 8, 9, 30, None)),
)


@cache
def fusion() -> ShallowFusion:
    """An n-gram model of tokens and phrases that random texts of `static` meet."""
    n, random = 400, np.random.default_rng(0)
    lines = [f"-{random.gamma(2.0):.3f}\t{token}\t-{random.gamma(1.0):.3f}" for token in range(n)]
    pairs = sorted({tuple(pair) for pair in random.integers(0, n, (4000, 2)).tolist()})
    lines += ["\\2-grams:", *(f"-{random.gamma(1.0):.3f}\t{a} {b}" for a, b in pairs)]
    head = ["\\data\\", f"ngram 1={n + 1}", f"ngram 2={len(pairs)}", "\\1-grams:", "-1\t</s>"]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.arpa"
        path.write_text("\n".join([*head, *lines, "\\end\\", ""]))
        words = [rig.tokenizer().decode(random.integers(300, n, 2).tolist()) for _ in range(300)]
        return text_fusion(rig.tokenizer(), lm=path, hotwords=words, hotword_weight=2.0)


@pytest.mark.long
@pytest.mark.parametrize("n_examples", [6, pytest.param(24, marks=pytest.mark.long)])
def test_steps_without_the_host_change_nothing(n_examples: int) -> None:
    """Steps at once, one by one, and filters and search over logits; windows join at any step."""
    drawn = SEARCHES, st.sampled_from((1.0, 1.6)), st.integers(1, 3), st.integers(0, 5), st.booleans()
    settings(max_examples=n_examples)(given(*drawn)(steps_without_the_host))()


def steps_without_the_host(
    options: DecodingOptions, patience: float, n_windows: int, n_before: int, is_fused: bool
) -> None:
    if options.beam_size is not None:
        options = replace(options, patience=patience)
    backend, result = static(), []
    for is_whole, n_ahead in ((False, 8), (False, 1), (True, 1)):
        with patch.object(search, "STEPS_AHEAD", n_ahead):
            of = cast("Backend", WithoutChoice(backend)) if is_whole else backend
            decoder = WindowDecoder(of, rig.tokenizer(), options, fusion() if is_fused else None)
            batch, results = decoder.new_batch(), {}
            for n in (n_windows, 2):
                mels = rig.mel(n)
                encoded = backend.encode(Features(mels, (mels.shape[2],) * n))
                batch.admit(decoder, encoded, [replace(options, prompt=prompt) for prompt in PROMPTS[:n]])
                for _ in range(n_before):
                    results.update(batch.step() if batch.n_requests else ())
            while batch.n_requests:
                results.update(batch.step())
            result.append([item for ticket in sorted(results) for item in results[ticket]])
    for ahead, *others in zip(*result, strict=True):
        for other in others:
            assert [item.tokens for item in ahead.candidates] == [item.tokens for item in other.candidates]
            for ours, theirs in zip(ahead.candidates, other.candidates, strict=True):
                assert ours.sums == pytest.approx(theirs.sums, abs=1e-3)
                assert ours.score == pytest.approx(theirs.score, abs=1e-3)


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
    assert isinstance(backend.rows(), EndingRows)
    plain = WithoutChoice(backend)
    assert not isinstance(plain.rows(), EndingRows)
    for ours, theirs in zip(decoded(backend, options), decoded(plain, options), strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.avg_logprob == pytest.approx(theirs.avg_logprob, abs=1e-5)
        assert [candidate.tokens for candidate in ours.candidates] == [
            candidate.tokens for candidate in theirs.candidates
        ]


def steps_of(options: DecodingOptions) -> StepsOfSearch | None:
    """The steps of a greedy search by the filters of options, in any rows that can have an end."""
    tokenizer = rig.tokenizer("en")
    end = BestTokensEnd(1, tokenizer.n_vocab, tokenizer.n_vocab, tokenizer.eot, 1)
    return StepsOfSearch.of(static().rows(), end, build_filters(options, tokenizer))


@pytest.mark.parametrize("follows_text", [False, True])
def test_spans_forbid_what_the_filter_of_timestamps_forbids(follows_text: bool) -> None:
    tokenizer = rig.tokenizer("en")
    options = DecodingOptions(language="en", suppress_tokens=(), prefix="So" if follows_text else None)
    filters, steps = build_filters(options, tokenizer), steps_of(options)
    assert steps is not None
    time, text = tokenizer.timestamp_begin, 440
    for sampled in (
        [time + 3],
        [text],
        [time, text],
        [time, text, time + 9],
        [time + 9, time + 9],
        [text] * 3,
    ):
        first_text, first_time, end_time = steps.columns([np.array([sampled])], [(0.0, 0.0, ())])[0, :3]
        allowed = np.zeros(tokenizer.n_vocab, np.bool_)
        allowed[first_text : steps.end.time_begin] = True
        allowed[first_time:end_time] = True
        allowed[steps.end.forbidden] = False
        logits = np.zeros((1, tokenizer.n_vocab), np.float32)
        logits[:, time:] = -100.0  # so that they are not forced
        for rule in filters:
            rule.apply(logits, np.array([sampled]))
        assert np.array_equal(allowed, logits[0] > float("-inf"))


@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(language="en", no_repeat_ngram_size=3),
        DecodingOptions(language="en", repetition_penalty=1.1),
    ],
)
def test_rules_that_change_logits_are_left_to_filters(options: DecodingOptions) -> None:
    assert steps_of(options) is None
