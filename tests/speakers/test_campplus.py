"""CAM++ and its filter bank: Kaldi's features, vectors of the published network, stretches by themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sottovoce.audio.io import load_audio
from sottovoce.errors import CheckpointError, SottovoceError
from sottovoce.options.speakers import SpeakerOptions
from sottovoce.speakers import networks
from sottovoce.speakers.choose import load_voice_encoder
from sottovoce.speakers.networks import CAMPPLUS_BLOCKS, CampPlusEncoder, kaldi_fbank

SPEECH = Path(__file__).parents[2] / "examples" / "speech"
PUBLISHED = {
    "en": (-0.0901, -0.0666, -0.0465, 0.0680, -0.1203, -0.0760, 0.0087, 0.0469),
    "de": (0.0553, -0.0498, -0.0081, -0.0528, 0.0325, -0.0079, 0.0417, -0.0038),
}
"""The first numbers of the unit vectors that 3D-Speaker's own network, with Kaldi's features, gives for the
first five seconds of the demo's recordings."""


def made_weights() -> dict[str, Tensor]:
    torch.manual_seed(3)
    weights: dict[str, Tensor] = {}

    def conv(name: str, *shape: int, bias: bool = False) -> None:
        weights[f"{name}.weight"] = torch.randn(shape) * (2.0 / np.prod(shape[1:])) ** 0.5
        if bias:
            weights[f"{name}.bias"] = 0.1 * torch.randn(shape[0])

    def norm(name: str, size: int, *, is_affine: bool = True) -> None:
        weights[f"{name}.running_mean"], weights[f"{name}.running_var"] = torch.randn(size), torch.ones(size)
        if is_affine:
            weights[f"{name}.weight"], weights[f"{name}.bias"] = torch.ones(size), torch.zeros(size)

    conv("head.conv1", 32, 1, 3, 3)
    conv("head.conv2", 32, 32, 3, 3)
    norm("head.bn1", 32)
    norm("head.bn2", 32)
    for layer in ("layer1.0", "layer1.1", "layer2.0", "layer2.1"):
        for part in ("1", "2"):
            conv(f"head.{layer}.conv{part}", 32, 32, 3, 3)
            norm(f"head.{layer}.bn{part}", 32)
        conv(f"head.{layer}.shortcut.0", 32, 32, 1, 1)
        norm(f"head.{layer}.shortcut.1", 32)
    conv("xvector.tdnn.linear", 128, 320, 5)
    norm("xvector.tdnn.nonlinear.batchnorm", 128)
    size = 128
    for number, (n_layers, _) in enumerate(CAMPPLUS_BLOCKS, 1):
        for layer in range(1, n_layers + 1):
            name = f"xvector.block{number}.tdnnd{layer}"
            norm(f"{name}.nonlinear1.batchnorm", size)
            conv(f"{name}.linear1", 128, size, 1)
            norm(f"{name}.nonlinear2.batchnorm", 128)
            conv(f"{name}.cam_layer.linear_local", 32, 128, 3)
            conv(f"{name}.cam_layer.linear1", 64, 128, 1, bias=True)
            conv(f"{name}.cam_layer.linear2", 32, 64, 1, bias=True)
            size += 32
        norm(f"xvector.transit{number}.nonlinear.batchnorm", size)
        conv(f"xvector.transit{number}.linear", size // 2, size, 1)
        size //= 2
    norm("xvector.out_nonlinear.batchnorm", size)
    conv("xvector.dense.linear", 192, 2 * size, 1)
    norm("xvector.dense.nonlinear.batchnorm", 192, is_affine=False)
    return weights


def noise(seconds: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.1 * torch.randn(round(seconds * 16_000), generator=generator)


def test_vectors_have_unit_length_and_stretches_do_not_see_each_other() -> None:
    encoder = CampPlusEncoder(made_weights())
    speech = [noise(1.0, 1), noise(0.1, 2), noise(4.3, 3), noise(1.0, 4)]
    together = encoder.embed(speech)
    assert together.shape == (4, 192)
    assert np.linalg.norm(together, axis=1) == pytest.approx([1.0, 0.0, 1.0, 1.0], abs=1e-5)
    for samples, vector in zip(speech, together, strict=True):
        np.testing.assert_allclose(encoder.embed([samples])[0], vector, atol=1e-4)
    assert encoder.embed([]).shape == (0, 192)
    assert np.isfinite(encoder.embed([torch.zeros(16_000)])).all()


@pytest.mark.parametrize("n_samples", [400, 559, 560, 16_000, 50_001])
def test_features_are_kaldi_s(n_samples: int) -> None:
    knf = pytest.importorskip("kaldi_native_fbank", reason="kaldi-native-fbank is not installed")
    samples = torch.from_numpy(load_audio(SPEECH / "en.flac"))[8_000 : 8_000 + n_samples]
    options = knf.FbankOptions()
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = 80
    options.mel_opts.low_freq = 20.0
    options.energy_floor = 0.0
    bank = knf.OnlineFbank(options)
    bank.accept_waveform(16_000, samples.tolist())
    bank.input_finished()
    expected = np.stack([bank.get_frame(i) for i in range(bank.num_frames_ready)])
    np.testing.assert_allclose(kaldi_fbank(samples).numpy(), expected, atol=5e-3)


def test_less_than_a_frame_has_no_features() -> None:
    with pytest.raises(ValueError, match="at least 400 samples, got 399"):
        kaldi_fbank(torch.zeros(399))


@pytest.mark.real_weights
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_voices_are_those_of_the_published_network(name: str) -> None:
    try:
        encoder = load_voice_encoder(SpeakerOptions(voices="campplus"))
    except SottovoceError as error:
        pytest.skip(f"the weights cannot be had: {error}")
    speech = torch.from_numpy(load_audio(SPEECH / f"{name}.flac", duration_s=5))
    (vector,) = encoder.embed([speech])
    np.testing.assert_allclose(vector[:8], PUBLISHED[name], atol=2e-4)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"head.conv1.weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"head.conv1.weight: expected \(32, 1, 3, 3\), got \(2,\)"):
        networks._read_campplus(path)
    torch.save([1, 2], path)
    with pytest.raises(CheckpointError, match="expected tensors, got none"):
        networks._read_campplus(path)
