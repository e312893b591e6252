"""Tensors of PyTorch as audio: what torchaudio and other models give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sottovoce.audio.io import load_audio, load_channels
from sottovoce.audio.recording import Recording
from sottovoce.errors import AudioError

SINE = np.sin(np.arange(16_000) / 10).astype(np.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tensor_is_read_as_its_array(dtype: torch.dtype) -> None:
    tensor = torch.from_numpy(SINE).to(dtype)
    assert np.array_equal(load_audio(tensor), SINE)
    assert np.array_equal(load_audio(tensor.requires_grad_()), SINE)
    assert len(load_audio(tensor, sample_rate=8_000)) == 32_000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_floats_are_samples_too(dtype: torch.dtype) -> None:
    assert load_audio(torch.from_numpy(SINE).to(dtype)) == pytest.approx(SINE, abs=0.005)


def test_channels_of_a_tensor_stay_apart() -> None:
    both = torch.from_numpy(np.stack([SINE, -SINE]))
    assert np.array_equal(load_channels(both), both.numpy())
    assert np.array_equal(load_audio(both), SINE)  # their mean is silence


def test_whole_numbers_are_samples_as_in_arrays() -> None:
    found = load_audio(torch.tensor([0, 16384, -32768], dtype=torch.int16))
    assert found.tolist() == [0.0, 0.5, -1.0]


def test_a_recording_reads_a_tensor_again() -> None:
    with Recording(torch.from_numpy(SINE)) as recording:
        for _ in range(2):
            with recording.open() as reader:
                assert sum(len(chunk.samples) for chunk in reader) == 16_000


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.zeros(10, device="meta"), r"expected a tensor on the CPU \(use .cpu\(\)\), got one on meta"),
        (torch.zeros(10, dtype=torch.complex64), "expected float, int16 or int32 samples, got complex64"),
        (torch.zeros(1, 2, 3), r"expected samples of shape"),
        (torch.tensor([0.0, torch.nan]), "expected finite samples"),
        (torch.zeros(0), "expected audio, got no samples"),
    ],
    ids=["elsewhere", "complex", "shape", "nan", "empty"],
)
def test_what_is_no_audio_is_one_line(tensor: torch.Tensor, expected: str) -> None:
    with pytest.raises(AudioError, match=expected) as refused:
        load_audio(tensor)
    assert "\n" not in str(refused.value)
