"""The native decoder beside PyTorch's, on every instruction set of the machine."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.kernels.arrays import HERE, using

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
