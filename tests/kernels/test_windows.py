"""The encoder of the kernels beside PyTorch's, on every instruction set of the machine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.kernels.arrays import HERE, kernels, using
from tests.models import tiny
from tests.runtime.reading import read

native = pytest.importorskip("sottovoce.runtime.native_encoder", reason="sottovoce-kernels has no encoder")

from sottovoce.errors import OptionError  # noqa: E402
from sottovoce.models.backend import Backend, IncrementalResult, IncrementalWindow  # noqa: E402
from sottovoce.models.checkpoint.base import Array  # noqa: E402
from sottovoce.models.devices import CPU, choose_number_format  # noqa: E402
from sottovoce.models.dims import EncoderMode, ModelDims  # noqa: E402
from sottovoce.runtime import native as backends  # noqa: E402
from sottovoce.runtime.registry import BACKENDS, choose_runtime  # noqa: E402
from sottovoce.types import Features, Floats  # noqa: E402

DIMS = tiny.dims(n_audio_state=128, n_audio_head=4, n_audio_ctx=320, n_text_state=128)
LONGEST = 2 * DIMS.n_audio_ctx
EIGHT_BITS = 0.06
"""Of the spread of the states: what eight bits in two layers of random weights come to, and bfloat16."""
LENGTHS = (2, 30, 32, 194, 400, 530, LONGEST)


MODES = {
    "dense": EncoderMode(tail_s=0.5, recompute_s=0.6, refresh_s=0.0),
    "kept": EncoderMode(tail_s=0.5, recompute_s=0.6, refresh_s=3.0),
    "thin": EncoderMode(stride=20, anchors=(110, 204, 205, 300), recompute_s=0.6, refresh_s=2.0),
    "whole": EncoderMode(),
}
TEXT = [[5, 9, 30]]
GROWTH = (120, 260, 333, 400)
"""Log-mel frames that are there at each update."""


def grown(created: Backend, mel: Floats, mode: EncoderMode) -> list[IncrementalResult]:
    """The updates of a window that grows."""
    result: list[IncrementalResult] = []
    for n_columns in GROWTH:
        state = result[-1].state if result else None
        result += created.encode_incremental([IncrementalWindow(mel[:, :n_columns], mode, state)])
    return result


def mel_of(n_windows: int, n_frames: int, *, seed: int = 0) -> Floats:
    return torch.randn(n_windows, 80, n_frames, generator=torch.Generator().manual_seed(seed)).numpy()


def states_of(created: Backend, mel: Floats) -> Floats:
    return created.encode(Features(mel, (mel.shape[2],) * len(mel))).states_on_host()


def encoded(mel: Floats, tensors: Mapping[str, Array] | None = None, **options: Collection[str]) -> Floats:
    """The states of windows, encoded in the kernels."""
    created = tiny.checkpoint(DIMS) if tensors is None else replace(tiny.checkpoint(DIMS), tensors=tensors)
    encoder = native.NativeEncoder(created, **options)
    return states_of(encoder, mel)


def apart(result: Floats, expected: Floats) -> float:
    return float(np.sqrt(np.square(result - expected).mean()) / expected.std())


@contextmanager
def threads(n_threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.quick(12)
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("n_frames", LENGTHS)
def test_states_are_nearly_those_of_pytorch(name: str, n_frames: int) -> None:
    mel = mel_of(2, n_frames)
    expected = states_of(tiny.backend(DIMS), mel)
    with using(name):
        result = encoded(mel)
    assert result.shape == expected.shape
    assert apart(result, expected) < EIGHT_BITS


@pytest.mark.parametrize("in_bytes", [(), ("query_key", "value", "out", "up", "down")])
def test_a_table_is_in_eight_bits_or_in_words(in_bytes: tuple[str, ...]) -> None:
    """With all tables in words states are much nearer than with all in eight bits."""
    mel = mel_of(1, 194)
    expected = states_of(tiny.backend(DIMS), mel)
    result = encoded(mel, in_bytes=in_bytes)
    assert apart(result, expected) < (EIGHT_BITS if in_bytes else EIGHT_BITS / 10)
    assert not in_bytes or apart(result, expected) > EIGHT_BITS / 10


@pytest.mark.parametrize("name", HERE)
def test_eight_bits_are_taken_where_they_are_faster(name: str) -> None:
    mel = mel_of(1, 194)
    with using(name):
        result = encoded(mel)
        expected = encoded(mel, in_bytes=native.tables_in_bytes())
        assert native.tables_in_bytes() == (() if name in ("portable", "avx2") else native.IN_BYTES)
    assert np.array_equal(result, expected)


@pytest.mark.parametrize("name", HERE[1:])
def test_every_instruction_set_encodes_as_the_portable_one(name: str) -> None:
    mel = mel_of(1, LONGEST)
    ours = backend()
    with using("portable"):
        expected = states_of(ours, mel)
    with using(name):
        result = states_of(ours, mel)
    assert apart(result, expected) < EIGHT_BITS / 2


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("n_frames", [30, 194, 530])
def test_a_batch_is_its_windows_bit_by_bit(name: str, n_frames: int) -> None:
    """In any company, with any number of threads, and whatever was encoded before in the same memory."""
    mel = mel_of(3, n_frames)
    ours = backend()
    with using(name):
        single = np.concatenate([states_of(ours, window[None]) for window in mel])
        states_of(ours, 1e4 * mel_of(1, LONGEST, seed=1))
        batch = states_of(ours, mel)
        with threads(3):
            together = states_of(ours, mel)
    assert np.array_equal(single, batch)
    assert np.array_equal(single, together)


def test_the_key_has_no_bias_and_halves_read_as_floats() -> None:
    tensors = tiny.checkpoint(DIMS).tensors
    assert "encoder.blocks.0.attn.key.bias" not in tensors
    halves = {name: tensor.astype(np.float16) for name, tensor in tensors.items()}
    floats = {name: tensor.astype(np.float32) for name, tensor in halves.items()}
    mel = mel_of(1, 30)
    first, second = (encoded(mel, given) for given in (halves, floats))
    assert np.array_equal(first, second)


def backend(dims: ModelDims = DIMS) -> Backend:
    created: Backend = backends.NativeBackend.from_checkpoint(tiny.checkpoint(dims))
    return created


def test_a_backend_encodes_whole_windows_in_the_kernels() -> None:
    mel = mel_of(2, 194)
    whole = backend().encode(Features(mel, (194, 61)))
    assert np.array_equal(whole.states_on_host(), encoded(mel))
    assert whole.n_content_frames == (97, 31)


@pytest.mark.quick(8)
@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_growing_windows_are_nearly_those_of_pytorch(name: str, mode: EncoderMode) -> None:
    mel = mel_of(1, LONGEST)[0]
    with using(name):
        result = grown(backend(), mel, mode)
    for item, expected in zip(result, grown(tiny.backend(DIMS), mel, mode), strict=True):
        assert item.n_computed == expected.n_computed
        assert item.state.n_content_frames == expected.state.n_content_frames
        assert item.encoded.states_on_host().shape == expected.encoded.states_on_host().shape
        assert apart(item.encoded.states_on_host(), expected.encoded.states_on_host()) < EIGHT_BITS
        weights, theirs = item.encoded.log_weights, expected.encoded.log_weights
        assert (weights is None) == (theirs is None)
        assert weights is None or theirs is None or np.array_equal(weights, theirs)


@pytest.mark.parametrize("name", HERE)
def test_growing_windows_are_the_same_in_a_batch_bit_by_bit(name: str) -> None:
    """Of any ages and modes, with any number of threads."""
    ours = backend()
    mels, modes = mel_of(len(MODES), LONGEST), tuple(MODES.values())
    with using(name):
        alone = [grown(ours, mel, mode) for mel, mode in zip(mels, modes, strict=True)]
        windows = [
            IncrementalWindow(mel[:, : GROWTH[1 + at % 3]], mode, of_one[at % 3].state)
            for at, (mel, mode, of_one) in enumerate(zip(mels, modes, alone, strict=True))
        ]
        with threads(3):
            together = ours.encode_incremental(windows)
    for at, item in enumerate(together):
        assert np.array_equal(item.encoded.states, alone[at][1 + at % 3].encoded.states)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_keys_and_values_are_computed_of_changed_frames_alone(
    mode: EncoderMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of the states bit by bit; at most a block of unchanged frames is computed too."""
    n_computed = 0
    compute = kernels.Decoder.cross_keys_values

    def counted(decoder: object, states: int, n_frames: int, *others: object) -> None:
        nonlocal n_computed
        n_computed += n_frames
        compute(decoder, states, n_frames, *others)

    monkeypatch.setattr(kernels.Decoder, "cross_keys_values", counted)
    ours = backend()
    updates = grown(ours, mel_of(1, LONGEST)[0], mode)
    n_changed = sum(update.encoded.n_frames - update.n_kept for update in updates)
    assert n_changed <= n_computed < n_changed + 16 * len(updates)
    for update in updates:
        assert update.encoded.n_frames - update.n_kept >= update.n_computed
        whole = replace(update.encoded, cross_kv=None)
        assert np.array_equal(read(ours, update.encoded, TEXT).logits, read(ours, whole, TEXT).logits)
    assert mode.recompute_s is None or n_changed < sum(update.encoded.n_frames for update in updates) / 1.5


@pytest.mark.parametrize(
    "sizes", [{"n_mels": 79}, {"n_audio_state": 258, "n_audio_head": 1, "n_text_state": 258}]
)
def test_sizes_that_the_kernels_do_not_take_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="native kernels: "):
        backend(tiny.dims(**sizes))
    assert choose_runtime("auto", "auto", CPU, tiny.dims(**sizes)).name == "torch"


@pytest.mark.parametrize("dtype", ["float32", "int8_float32"])
def test_the_kernels_take_no_other_number_format(dtype: str) -> None:
    with pytest.raises(OptionError, match="expected device cpu and dtype auto or int8, got dtype float32"):
        BACKENDS["native"](tiny.checkpoint(DIMS), CPU, choose_number_format(dtype, CPU))
