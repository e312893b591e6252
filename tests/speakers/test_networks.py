"""The two networks with made weights: shapes, filters, and windows that do not see each other."""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sottovoce.errors import CheckpointError, ModelNotFoundError
from sottovoce.models.sources import package_index
from sottovoce.models.sources.package_index import SourceError
from sottovoce.speakers import ge2e, segmentation, weights
from sottovoce.speakers.ge2e import Ge2eEncoder
from sottovoce.speakers.segmentation import SegmentationNetwork, band_filters


def ge2e_weights() -> dict[str, Tensor]:
    lstm = nn.LSTM(40, 256, 3, batch_first=True)
    linear = nn.Linear(256, 256)
    named = {f"lstm.{name}": tensor for name, tensor in lstm.state_dict().items()}
    return named | {f"linear.{name}": tensor for name, tensor in linear.state_dict().items()}


def segmentation_weights() -> dict[str, Tensor]:
    lstm = nn.LSTM(60, 128, 4, batch_first=True, bidirectional=True)
    made = {f"lstm.{name}": tensor for name, tensor in lstm.state_dict().items()}
    made["sincnet.conv1d.0.filterbank.low_hz_"] = torch.linspace(50, 3000, 40)[:, None]
    made["sincnet.conv1d.0.filterbank.band_hz_"] = torch.linspace(50, 500, 40)[:, None]
    for layer, n_in in ((1, 80), (2, 60)):
        made[f"sincnet.conv1d.{layer}.weight"] = 0.1 * torch.randn(60, n_in, 5)
        made[f"sincnet.conv1d.{layer}.bias"] = torch.randn(60)
    for name, size in (("wav_norm1d", 1), ("norm1d.0", 80), ("norm1d.1", 60), ("norm1d.2", 60)):
        made[f"sincnet.{name}.weight"], made[f"sincnet.{name}.bias"] = torch.ones(size), torch.zeros(size)
    for name, shape in (("linear.0", (128, 256)), ("linear.1", (128, 128)), ("classifier", (3, 128))):
        made[f"{name}.weight"], made[f"{name}.bias"] = 0.1 * torch.randn(shape), torch.zeros(shape[0])
    return made


def noise(seconds: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.1 * torch.randn(int(seconds * 16_000), generator=generator)


def test_voices_are_unit_vectors_and_do_not_see_each_other() -> None:
    encoder = Ge2eEncoder(ge2e_weights())
    speech = [noise(0.7, 1), noise(0.1, 2), noise(4.0, 3), noise(1.6, 4)]
    together = encoder.embed(speech)
    assert together.shape == (4, 256)
    assert np.linalg.norm(together, axis=1) == pytest.approx([1.0, 0.0, 1.0, 1.0], abs=1e-5)
    for samples, vector in zip(speech, together, strict=True):
        np.testing.assert_allclose(encoder.embed([samples])[0], vector, atol=1e-4)


def test_how_loud_a_voice_is_does_not_matter() -> None:
    encoder = Ge2eEncoder(ge2e_weights())
    quiet, loud = encoder.embed([0.05 * noise(2.0), 2.0 * noise(2.0)])
    np.testing.assert_allclose(quiet, loud, atol=1e-4)
    assert np.isfinite(encoder.embed([torch.zeros(16_000)])).all()
    assert encoder.embed([]).shape == (0, 256)


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
    made = OrderedDict(a=torch.randn(3, 4).t(), b=torch.arange(3), c=torch.ones(2, dtype=torch.float16))
    torch.save({"state": made, "extra": _Evil(), "plain": [1, "x"]}, path)
    found = weights.read_tensors(path, "state")
    assert found.keys() == made.keys()
    assert all(torch.equal(found[name], made[name]) for name in made)
    torch.save({"state": made}, path, _use_new_zipfile_serialization=False)
    assert weights.read_tensors(path, "state").keys() == made.keys()


@pytest.mark.parametrize("content", [b"", b"nonsense", pickle.dumps({"other": 1})])
def test_a_damaged_file_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.bin"):
        weights.read_tensors(path, "state")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", content)
    with pytest.raises(CheckpointError, match=r"model\.bin"):
        weights.read_tensors(path, "state")


def test_tensors_of_another_model_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.bin"
    torch.save({"model_state": {"lstm.weight_ih_l0": torch.ones(2)}, "state_dict": {}}, path)
    with pytest.raises(CheckpointError, match=r"lstm.weight_ih_l0: expected \(1024, 40\), got \(2,\)"):
        ge2e._encoder_of(path)
    with pytest.raises(CheckpointError, match="got none"):
        segmentation._network_of(path)


def test_weights_that_cannot_be_had_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Path:
        raise SourceError("the package index cannot be reached")

    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path))
    monkeypatch.setattr(package_index, "fetch", refuse)
    with pytest.raises(ModelNotFoundError, match=r"speaker-voices: not in the cache .* cannot be reached"):
        ge2e.load_ge2e()
    with pytest.raises(ModelNotFoundError, match="speaker-segmentation"):
        segmentation.load_segmentation()
