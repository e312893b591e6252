"""The networks with made weights: shapes, filters, features, and stretches that do not see each other."""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sottovoce.audio.io import load_audio
from sottovoce.errors import CheckpointError, ModelNotFoundError, SottovoceError
from sottovoce.models import package_index
from sottovoce.models.package_index import SourceError
from sottovoce.options.transcribe import SpeakerOptions
from sottovoce.speakers import networks
from sottovoce.speakers.diarize import load_speaker_networks
from sottovoce.speakers.networks import (
    CampPlusEncoder,
    Ge2eEncoder,
    SegmentationNetwork,
    band_filters,
    kaldi_fbank,
)

SPEECH = Path(__file__).parents[2] / "examples" / "speech"
PUBLISHED = {
    "en": (-0.0901, -0.0666, -0.0465, 0.0680, -0.1203, -0.0760, 0.0087, 0.0469),
    "de": (0.0553, -0.0498, -0.0081, -0.0528, 0.0325, -0.0079, 0.0417, -0.0038),
}
"""The first numbers of the unit vectors that 3D-Speaker's own network, with Kaldi's features, gives for the
first five seconds of the demo's recordings."""


def ge2e_weights() -> dict[str, Tensor]:
    lstm = nn.LSTM(40, 256, 3, batch_first=True)
    linear = nn.Linear(256, 256)
    named = {f"lstm.{name}": tensor for name, tensor in lstm.state_dict().items()}
    return named | {f"linear.{name}": tensor for name, tensor in linear.state_dict().items()}


def campplus_weights() -> dict[str, Tensor]:
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
    for number, (n_layers, _) in enumerate(CampPlusEncoder.blocks, 1):
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


def segmentation_weights() -> dict[str, Tensor]:
    lstm = nn.LSTM(60, 128, 4, batch_first=True, bidirectional=True)
    tensors = {f"lstm.{name}": tensor for name, tensor in lstm.state_dict().items()}
    tensors["sincnet.conv1d.0.filterbank.low_hz_"] = torch.linspace(50, 3000, 40)[:, None]
    tensors["sincnet.conv1d.0.filterbank.band_hz_"] = torch.linspace(50, 500, 40)[:, None]
    for layer, n_in in ((1, 80), (2, 60)):
        tensors[f"sincnet.conv1d.{layer}.weight"] = 0.1 * torch.randn(60, n_in, 5)
        tensors[f"sincnet.conv1d.{layer}.bias"] = torch.randn(60)
    for name, size in (("wav_norm1d", 1), ("norm1d.0", 80), ("norm1d.1", 60), ("norm1d.2", 60)):
        tensors[f"sincnet.{name}.weight"], tensors[f"sincnet.{name}.bias"] = (
            torch.ones(size),
            torch.zeros(size),
        )
    for name, shape in (("linear.0", (128, 256)), ("linear.1", (128, 128)), ("classifier", (3, 128))):
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = 0.1 * torch.randn(shape), torch.zeros(shape[0])
    return tensors


def noise(seconds: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.1 * torch.randn(int(seconds * 16_000), generator=generator)


ENCODERS = {"ge2e": (Ge2eEncoder, ge2e_weights, 256), "campplus": (CampPlusEncoder, campplus_weights, 192)}


@pytest.mark.parametrize("name", ENCODERS)
def test_voices_are_unit_vectors_and_do_not_see_each_other(name: str) -> None:
    kind, weights, size = ENCODERS[name]
    encoder = kind(weights())
    speech = [noise(1.0, 1), noise(0.1, 2), noise(4.0, 3), noise(1.0, 4)]
    together = encoder.embed(speech)
    assert together.shape == (4, size)
    assert np.linalg.norm(together, axis=1) == pytest.approx([1.0, 0.0, 1.0, 1.0], abs=1e-5)
    for samples, vector in zip(speech, together, strict=True):
        np.testing.assert_allclose(encoder.embed([samples])[0], vector, atol=1e-4)
    assert encoder.embed([]).shape == (0, size)
    assert np.isfinite(encoder.embed([torch.zeros(16_000)])).all()


def test_the_level_of_a_voice_does_not_matter() -> None:
    quiet, loud = Ge2eEncoder(ge2e_weights()).embed([0.05 * noise(2.0), 2.0 * noise(2.0)])
    np.testing.assert_allclose(quiet, loud, atol=1e-4)


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
        _, encoder = load_speaker_networks(SpeakerOptions(voices="campplus"))
    except SottovoceError as error:
        pytest.skip(f"the weights cannot be had: {error}")
    speech = torch.from_numpy(load_audio(SPEECH / f"{name}.flac", duration_s=5))
    (vector,) = encoder.embed([speech])
    np.testing.assert_allclose(vector[:8], PUBLISHED[name], atol=2e-4)


def test_segmentation_gives_three_probabilities_a_frame() -> None:
    network = SegmentationNetwork(segmentation_weights())
    windows = torch.stack([noise(5.0, 1), noise(5.0, 2), torch.zeros(80_000)])
    activity = network.activity(windows)
    assert activity.shape == (3, network.n_frames, 3)
    assert ((activity >= 0) & (activity <= 1)).all()
    np.testing.assert_allclose(network.activity(windows[1:2])[0], activity[1], atol=1e-4)


def test_frames_lie_where_they_are_said_to_lie() -> None:
    """The first frame sees 991 samples around its centre, and frames are 270 samples apart."""
    network = SegmentationNetwork
    conv = (network.window_samples - 251) // 10 + 1
    after = ((conv // 3 - 4) // 3 - 4) // 3
    assert after == network.n_frames
    assert network.frame_samples == 270
    assert network.first_samples == pytest.approx(991 / 2, abs=1)


def test_filters_pass_their_band() -> None:
    filters = band_filters(torch.full((40, 1), 950.0), torch.full((40, 1), 450.0))[:, 0]  # 1000 to 1500 Hz
    assert filters.shape == (80, 251)
    power = torch.fft.rfft(filters, 4096).abs()
    hz = torch.arange(2049) * 16_000 / 4096
    for row in (0, 40):
        inside = power[row][(hz > 1100) & (hz < 1400)].mean()
        outside = power[row][(hz < 800) | (hz > 1700)].mean()
        assert inside > 20 * outside
    np.testing.assert_allclose(filters[0], filters[0].flip(0), atol=1e-6)
    np.testing.assert_allclose(filters[40], -filters[40].flip(0), atol=1e-6)


class _Evil:
    """Would run code when unpickled by a reader that lets it."""

    def __reduce__(self) -> tuple[object, ...]:
        return (exec, ("raise SystemExit('code ran')",))


def test_tensors_are_read_and_no_code_is_run(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    tensors = OrderedDict(a=torch.randn(3, 4).t(), b=torch.arange(3), c=torch.ones(2, dtype=torch.float16))
    torch.save({"state": tensors, "extra": _Evil(), "plain": [1, "x"]}, path)
    read = networks.read_tensors(path, "state", {})
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)
    torch.save({"state": tensors}, path, _use_new_zipfile_serialization=False)
    assert networks.read_tensors(path, "state", {}).keys() == tensors.keys()


@pytest.mark.parametrize("content", [b"", b"nonsense", pickle.dumps({"other": 1})])
def test_a_damaged_file_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.bin"):
        networks.read_tensors(path, "state", {})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", content)
    with pytest.raises(CheckpointError, match=r"model\.bin"):
        networks.read_tensors(path, "state", {})


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        (
            networks.Ge2eEncoder,
            {"model_state": {"lstm.weight_ih_l0": torch.ones(2)}},
            r"lstm.weight_ih_l0: expected \(1024, 40\), got \(2,\)",
        ),
        (networks.SegmentationNetwork, {"state_dict": {}}, "got none"),
        (networks.CampPlusEncoder, {"head.conv1.weight": torch.ones(2)}, r"expected \(32, 1, 3, 3\), got"),
        (networks.CampPlusEncoder, [1, 2], "expected tensors, got none"),
    ],
    ids=["ge2e", "segmentation", "campplus", "no tensors"],
)
def test_tensors_of_another_model_are_refused(
    kind: type[Any], content: object, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.bin"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=message):
        networks.read_network(kind, path)


def test_weights_that_cannot_be_had_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Path:
        raise SourceError("the package index cannot be reached")

    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path))
    monkeypatch.setattr(package_index, "fetch", refuse)
    with pytest.raises(ModelNotFoundError, match=r"speaker-voices: not in the cache; .* cannot be reached$"):
        networks.load_ge2e()
    with pytest.raises(ModelNotFoundError, match="speaker-segmentation"):
        networks.load_segmentation()
