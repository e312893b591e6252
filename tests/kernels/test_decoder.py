"""The native decoder, its choice of tokens and its threads."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.arrays import HERE, Array, Layer, kernels, normal, using

native = pytest.importorskip("sottovoce.runtime.native", reason="sottovoce-kernels is not installed")

import sottovoce_kernels  # noqa: E402

from sottovoce.errors import OptionError  # noqa: E402
from sottovoce.models.backend import Backend, EncoderOutput  # noqa: E402
from sottovoce.models.checkpoint.base import Checkpoint  # noqa: E402
from sottovoce.runtime.native_encoder import NativeEncoderOutput  # noqa: E402
from sottovoce.runtime.torch import TorchBackend  # noqa: E402
from sottovoce.runtime.torch_encoder import TorchEncoderOutput  # noqa: E402
from sottovoce.types import Features, Floats  # noqa: E402
from tests.models import tiny  # noqa: E402
from tests.runtime.reading import start, step  # noqa: E402

DIMS = tiny.dims(n_text_state=256, n_audio_state=256)
EIGHT_BITS = 0.08
"""Of the spread of the logits: what eight bits in every product of three layers of random weights come to."""


def native_backend(checkpoint: Checkpoint) -> Backend:
    created: Backend = native.NativeBackend.from_checkpoint(checkpoint)
    return created


def backends() -> tuple[Backend, Backend]:
    return tiny.backend(DIMS), native_backend(tiny.checkpoint(DIMS))


def test_heads_that_are_too_wide_are_refused() -> None:
    checkpoint = tiny.checkpoint(
        tiny.dims(n_text_state=264, n_text_head=1, n_audio_state=264, n_audio_head=2)
    )
    with pytest.raises(OptionError, match=r"a decoder with heads of 264 \(native kernels: up to 256\)"):
        native_backend(checkpoint)


def output_of(states: torch.Tensor, n_content: tuple[int, ...]) -> EncoderOutput:
    return NativeEncoderOutput(states.numpy(), n_content)


def said(backend: Backend, states: torch.Tensor) -> tuple[Floats, Floats]:
    """Logits and attention of a beam that reads a prompt, branches and goes on."""
    kind = TorchEncoderOutput if isinstance(backend, TorchBackend) else output_of
    rows = start(backend, kind(states, (states.shape[1],) * len(states)), 2)
    first = step(rows, [[7, 250, 31, 4, 99]] * 4, capture=backend.alignment_heads)
    rows.select([0, 0, 3, 2])
    second = step(rows, [[1], [2], [3], [4]], capture=backend.alignment_heads)
    attention = np.concatenate([first.attention, second.attention], 2)
    return np.concatenate([first.logits, second.logits], 1), attention


@pytest.mark.parametrize("name", HERE)
def test_a_step_says_nearly_what_pytorch_says(name: str) -> None:
    theirs, ours = backends()
    states = theirs.encode(Features(torch.randn(2, 80, 70).numpy(), (70, 70))).states
    expected = said(theirs, states)
    with using(name):
        result = said(ours, states)
    apart = np.square(result[0] - expected[0]).mean() ** 0.5 / expected[0].std()
    assert apart < EIGHT_BITS
    assert np.abs(result[1] - expected[1]).max() < 0.1


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("n_threads", [2, 3])
def test_threads_change_nothing(name: str, n_threads: int) -> None:
    ours = backends()[1]
    states = torch.randn(2, 35, 256)
    before = torch.get_num_threads()
    with using(name):
        alone = said(ours, states)
        torch.set_num_threads(n_threads)
        try:
            together = said(ours, states)
        finally:
            torch.set_num_threads(before)
    assert all(np.array_equal(*pair) for pair in zip(alone, together, strict=True))


def test_a_token_that_is_none_is_refused() -> None:
    ours = backends()[1]
    rows = start(ours, output_of(torch.randn(1, 35, 256), (35,)))
    with pytest.raises(ValueError, match="token 300 given"):
        step(rows, [[300]])
    assert np.isfinite(step(rows, [[299]]).logits).all()


def test_a_checkpoint_in_float16_reads_as_in_float32() -> None:
    checkpoint = tiny.checkpoint(DIMS)
    halves = {name: tensor.astype(np.float16) for name, tensor in checkpoint.tensors.items()}
    floats = {name: tensor.astype(np.float32) for name, tensor in halves.items()}
    states = torch.randn(2, 35, 256)
    first, second = (native_backend(replace(checkpoint, tensors=tensors)) for tensors in (halves, floats))
    assert all(np.array_equal(*pair) for pair in zip(said(first, states), said(second, states), strict=True))


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_the_library_holds_cannot_be_duplicated(duplicate: Callable[[object], object]) -> None:
    """Two owners of one native object would free it twice."""
    with pytest.raises(TypeError, match="cannot be pickled or copied; load the model in each process"):
        duplicate(sottovoce_kernels.Row())


THREADS = Path("/proc/self/task")
N_THREADS = 7
"""More than other tests ask for, so that a pool that they left must grow."""
N_ROUNDS = 100
ROOT = Path(__file__).parents[2]

CHILD = """
import os, resource, sys
import numpy as np
from tests.kernels.arrays import Layer, normal
layer, x = Layer(normal(0, 64, 64)), normal(1, 40, 64)
alone = layer(x)
if sys.argv[1] == "fork":
    assert np.array_equal(layer(x, n_threads=3), alone)
    child = os.fork()
    if child == 0:
        os._exit(int(not np.array_equal(layer(x, n_threads=3), alone)))
    assert os.waitpid(child, 0)[1] == 0
else:
    used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**22, resource.RLIM_INFINITY))
assert np.array_equal(layer(x, n_threads=4), alone)
"""


@pytest.mark.skipif(not THREADS.exists(), reason="threads are counted where Linux lists them")
def test_calls_at_the_same_time_have_threads_of_their_own() -> None:
    layer, x = Layer(normal(0, 512, 512)), normal(1, 2000, 512)
    alone = layer(x)
    assert np.array_equal(layer(x, n_threads=N_THREADS), alone)
    begin = Barrier(2)

    def call() -> Array:
        begin.wait()
        return layer(x, n_threads=N_THREADS)

    with ThreadPoolExecutor(2) as callers:
        [item.result() for item in [callers.submit(begin.wait) for _ in range(2)]]
        before = len(list(THREADS.iterdir()))
        for _ in range(N_ROUNDS):
            for result in [callers.submit(call) for _ in range(2)]:
                assert np.array_equal(result.result(), alone)
            if len(list(THREADS.iterdir())) > before:
                break
        assert len(list(THREADS.iterdir())) > before


@pytest.mark.skipif(not THREADS.exists(), reason="memory is limited where Linux does so")
@pytest.mark.parametrize("case", ["fork", "no threads"])
def test_a_call_does_with_the_threads_that_there_are(case: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CHILD, case], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr


def chosen(
    logits: Array, spans: tuple[int, int, int, int], n_best: int
) -> tuple[list[int], list[float], bool]:
    best, tokens = np.zeros(n_best, np.float32), np.zeros(n_best, np.int32)
    is_clear = kernels.choose(logits.ctypes.data, spans, n_best, best.ctypes.data, tokens.ctypes.data)
    return tokens.tolist(), best.tolist(), is_clear


def judged(logits: Array, spans: tuple[int, int, int, int]) -> Array:
    """Log-probabilities (n_vocab,) float64 among the tokens that may follow."""
    first_text, time_begin, first_time, end_time = spans
    exact = np.full(len(logits), -np.inf)
    exact[first_text:time_begin] = logits[first_text:time_begin]
    exact[first_time:end_time] = logits[first_time:end_time]
    together = np.logaddexp.reduce(exact[time_begin:], initial=-np.inf)
    if together > exact[:time_begin].max(initial=-np.inf):
        exact[:time_begin] = -np.inf
    is_allowed = exact > -np.inf
    exact[is_allowed] -= np.logaddexp.reduce(exact[is_allowed], initial=-np.inf)
    return exact


@pytest.mark.parametrize("name", HERE)
@given(
    n_text=st.integers(1, 400),
    n_times=st.integers(0, 200),
    from_text=st.floats(0, 1),
    of_times=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    lift=st.sampled_from([-3.0, 0.0, 3.0]),
    n_best=st.integers(1, 7),
    seed=st.integers(0, 2**32),
)
def test_the_likeliest_tokens_are_those_of_all_log_probabilities(
    name: str,
    n_text: int,
    n_times: int,
    from_text: float,
    of_times: tuple[float, float],
    lift: float,
    n_best: int,
    seed: int,
) -> None:
    logits = normal(seed, n_text + n_times)
    logits[n_text:] += lift
    logits[np.random.default_rng(seed).random(len(logits)) < 0.1] = -np.inf
    low, high = sorted(of_times)
    spans = (round(from_text * n_text), n_text, n_text + round(low * n_times), n_text + round(high * n_times))
    expected = judged(logits, spans)
    with using(name):
        tokens, logprobs, is_clear = chosen(logits, spans, n_best)
    n_allowed = int((expected > -np.inf).sum())
    assert is_clear == (n_allowed >= n_best)
    n_found = min(n_allowed, n_best)
    assert tokens[:n_found] == np.argsort(-expected, kind="stable")[:n_found].tolist()
    np.testing.assert_allclose(logprobs[:n_found], expected[tokens[:n_found]], atol=2e-5)


@pytest.mark.parametrize("name", HERE)
def test_equal_ones_are_told(name: str) -> None:
    logits = np.linspace(-3, 0, 200, dtype=np.float32)
    logits[20] = logits[150] = 1.0
    with using(name):
        assert not chosen(logits, (0, 200, 200, 200), 2)[2]
        assert chosen(logits, (21, 200, 200, 200), 2)[2]
