"""Voice encoder CAM++: convolutions over time with context-aware masks; and Kaldi's filter bank, its
input.

A stretch is read as a whole. Two dimensions first (frequency and time), then three blocks of layers that each
hear all before them, their own context and that of the whole stretch; mean and deviation over time give the
vector.

Source: H. Wang and others, CAM++: a fast and efficient network for speaker verification using context-aware
masking (arXiv 2303.00332); the weights are 3D-Speaker's for Mandarin and English.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor
from torch.nn import functional

from sottovoce.speakers.base import Floats, VoiceDistances
from sottovoce.speakers.weights import CAMPPLUS, fetched, read_tensors, require_shapes
from sottovoce.types import SAMPLE_RATE

SIZE = 192
BLOCKS = ((12, 1), (24, 2), (16, 2))
"""Layers and dilation of each block."""
CONTEXT_FRAMES = 100
"""Of the mean that stands for the surroundings of a frame: two seconds."""
EPSILON = 1e-5
SHORTEST_S = 0.4
"""Less speech says too little about a voice."""
BATCH = 16
FBANK_FRAME = 400
FBANK_HOP = 160
FBANK_FFT = 512
PREEMPHASIS = 0.97
LOWEST_HZ = 20.0
FLOOR = 1.1920928955078125e-07


class CampPlusEncoder:
    """Embeds stretches of speech in unit vectors (192,).

    weights: under 3D-Speaker's names (`head.*`, `xvector.*`).
    """

    distances = VoiceDistances(same=0.6, new_speaker=0.7, recluster=0.6)

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self._weights = weights

    @torch.inference_mode()
    def embed(self, speech: Sequence[Tensor]) -> Floats:
        """Embed stretches (n_samples,) of speech; see `VoiceEncoder`. Stretches of one length share a
        batch.
        """
        vectors = torch.zeros(len(speech), SIZE)
        order = sorted(range(len(speech)), key=lambda index: len(speech[index]))
        order = [index for index in order if len(speech[index]) >= SHORTEST_S * SAMPLE_RATE]
        while order:
            length = len(speech[order[0]])
            rows = [index for index in order[:BATCH] if len(speech[index]) == length]
            mel = torch.stack([kaldi_fbank(speech[index]) for index in rows])
            vectors[rows] = self._vectors(mel - mel.mean(dim=1, keepdim=True))
            order = order[len(rows) :]
        return functional.normalize(vectors, dim=1).numpy()

    def _vectors(self, mel: Tensor) -> Tensor:
        """Map log-mel (n, n_frames, 80) to vectors (n, 192)."""
        x = self._in_two_dimensions(mel.transpose(1, 2)[:, None]).flatten(1, 2)  # (n, 320, n_frames)
        x = self._conv(x, "xvector.tdnn.linear", stride=2, padding=2)
        x = self._normed(x, "xvector.tdnn.nonlinear").relu_()
        for number, (n_layers, dilation) in enumerate(BLOCKS, 1):
            for layer in range(1, n_layers + 1):
                more = self._layer(x, f"xvector.block{number}.tdnnd{layer}", dilation)
                x = torch.cat((x, more), dim=1)
            name = f"xvector.transit{number}"
            x = self._conv(self._normed(x, f"{name}.nonlinear").relu_(), f"{name}.linear")
        x = self._normed(x, "xvector.out_nonlinear").relu_()
        pooled = torch.cat((x.mean(dim=2), x.std(dim=2)), dim=1)[:, :, None]
        return self._normed(self._conv(pooled, "xvector.dense.linear"), "xvector.dense.nonlinear")[:, :, 0]

    def _in_two_dimensions(self, x: Tensor) -> Tensor:
        """Map (n, 1, 80, n_frames) to (n, 32, 10, n_frames)."""
        x = self._conv2(x, "head.conv1", "head.bn1").relu_()
        for name, stride in (("layer1.0", 2), ("layer1.1", 1), ("layer2.0", 2), ("layer2.1", 1)):
            inner = self._conv2(x, f"head.{name}.conv1", f"head.{name}.bn1", stride).relu_()
            inner = self._conv2(inner, f"head.{name}.conv2", f"head.{name}.bn2")
            if stride != 1:
                x = self._conv2(x, f"head.{name}.shortcut.0", f"head.{name}.shortcut.1", stride)
            x = (inner + x).relu_()
        return self._conv2(x, "head.conv2", "head.bn2", 2).relu_()

    def _layer(self, x: Tensor, name: str, dilation: int) -> Tensor:
        """Compute the channels that a layer adds: local context, masked by that of two seconds and of the
        whole stretch.
        """
        x = self._conv(self._normed(x, f"{name}.nonlinear1").relu_(), f"{name}.linear1")
        x = self._normed(x, f"{name}.nonlinear2").relu_()
        local = self._conv(x, f"{name}.cam_layer.linear_local", padding=dilation, dilation=dilation)
        around = functional.avg_pool1d(x, CONTEXT_FRAMES, CONTEXT_FRAMES, ceil_mode=True)
        around = around + x.mean(dim=2, keepdim=True)  # (n, 128, n_parts)
        around = self._conv(around, f"{name}.cam_layer.linear1").relu_()
        weight = self._conv(around, f"{name}.cam_layer.linear2").sigmoid_()
        return local * weight.repeat_interleave(CONTEXT_FRAMES, dim=2)[:, :, : local.shape[2]]

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
        return functional.batch_norm(
            x, mean, variance, of.get(f"{name}.weight"), of.get(f"{name}.bias"), eps=EPSILON
        )


_ONE_AT_A_TIME = Lock()


def load_campplus() -> CampPlusEncoder:
    """Load the encoder with 3D-Speaker's weights, fetched if need be and read once; thread-safe.

    Raises: ModelNotFoundError, CheckpointError.
    """
    with _ONE_AT_A_TIME:
        return _encoder_of(fetched("speaker-voices-campplus", CAMPPLUS))


@cache
def _encoder_of(path: Path) -> CampPlusEncoder:
    tensors = read_tensors(path)
    shapes = {
        "head.conv1.weight": (32, 1, 3, 3),
        "xvector.tdnn.linear.weight": (128, 320, 5),
        "xvector.dense.linear.weight": (SIZE, 1024, 1),
    }
    require_shapes(tensors, shapes, path)
    return CampPlusEncoder(tensors)


def kaldi_fbank(samples: Tensor, n_mels: int = 80) -> Tensor:
    """Compute Kaldi's log-mel filter bank (n_frames, n_mels), natural log, of samples (n_samples,) float32 at
    16 kHz.

    Frames of 25 ms every 10 ms lie inside the samples, none is padded: n_frames is 1 + (n_samples - 400) //
    160. Dither is off.
    Raises: ValueError for less than a frame.
    Source: Kaldi, feature-fbank and mel-computations.
    """
    if len(samples) < FBANK_FRAME:
        raise ValueError(f"filter bank: expected at least {FBANK_FRAME} samples, got {len(samples)}")
    frames: Tensor = samples.unfold(0, FBANK_FRAME, FBANK_HOP)
    frames = frames - frames.mean(dim=1, keepdim=True)
    before = functional.pad(frames[:, None], (1, 0), mode="replicate")[:, 0, :-1]
    frames = (frames - PREEMPHASIS * before) * _povey_window()
    power = torch.fft.rfft(frames, FBANK_FFT).abs().square()[:, : FBANK_FFT // 2]
    mel: Tensor = power @ _mel_triangles(n_mels)
    return mel.clamp_(min=FLOOR).log_()


@cache
def _povey_window() -> Tensor:
    """Return Kaldi's "povey" window (400,): Hann to the power of 0.85."""
    return torch.hann_window(FBANK_FRAME, periodic=False).pow(0.85)


@cache
def _mel_triangles(n_mels: int) -> Tensor:
    """Return triangles (256, n_mels) of equal width in mel, from 20 Hz to 8 kHz."""
    edges = _mel(torch.tensor([LOWEST_HZ, SAMPLE_RATE / 2], dtype=torch.float64))
    points = torch.linspace(float(edges[0]), float(edges[1]), n_mels + 2, dtype=torch.float64)
    bins = _mel(torch.arange(FBANK_FFT // 2, dtype=torch.float64) * SAMPLE_RATE / FBANK_FFT)[:, None]
    left, centre, right = points[:-2], points[1:-1], points[2:]
    rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
    return torch.minimum(rising, falling).clamp_(min=0).float()


def _mel(hz: Tensor) -> Tensor:
    return 1127.0 * torch.log1p(hz / 700.0)
