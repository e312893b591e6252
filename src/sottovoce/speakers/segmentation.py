"""Segmentation model: which of up to three speakers speak when within five seconds; pyannote's network and
weights.

Learnt filters, four bidirectional LSTM layers, three probabilities a frame. Which of the three somebody is
differs from window to window; who is who over a recording is `clustering`'s business.

Source: H. Bredin and A. Laurent, End-to-end speaker segmentation for overlap-aware resegmentation
(arXiv 2104.04045); the filters: M. Ravanelli and Y. Bengio, SincNet (arXiv 1808.00158).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor, nn
from torch.nn import functional

from sottovoce.speakers.weights import SEGMENTATION, fetched, read_tensors, require_shapes
from sottovoce.types import SAMPLE_RATE

N_FILTERS, TAPS, STRIDE = 80, 251, 10
POOL = 3
N_LAYERS, HIDDEN = 4, 128
LOWEST_HZ, NARROWEST_HZ = 50.0, 50.0


class SegmentationNetwork:
    """Maps windows (n, 80000) of 5 s to activities (n, 293, 3) of three speakers, every 16.9 ms.

    weights: under pyannote's names (`sincnet.*`, `lstm.*`, `linear.*`, `classifier.*`).
    """

    window_samples = 5 * SAMPLE_RATE
    first_samples = 495
    frame_samples = STRIDE * POOL**3
    n_frames = 293

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self._weights = weights
        self._filters = band_filters(
            weights["sincnet.conv1d.0.filterbank.low_hz_"], weights["sincnet.conv1d.0.filterbank.band_hz_"]
        )
        self._lstm = nn.LSTM(60, HIDDEN, N_LAYERS, batch_first=True, bidirectional=True)
        state = {name.removeprefix("lstm."): w for name, w in weights.items() if name.startswith("lstm.")}
        self._lstm.load_state_dict(state)

    @torch.inference_mode()
    def activity(self, windows: Tensor) -> Tensor:
        """Map windows (n, 80000) float32 to probabilities (n, 293, 3); see `LocalSpeakers`."""
        x = self._normed(windows[:, None], "sincnet.wav_norm1d")
        x = functional.conv1d(x, self._filters, stride=STRIDE).abs_()
        x = self._pooled(x, 0)
        for layer in (1, 2):
            name = f"sincnet.conv1d.{layer}"
            x = functional.conv1d(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])
            x = self._pooled(x, layer)
        y, _ = self._lstm(x.transpose(1, 2))
        for name in ("linear.0", "linear.1"):
            y = functional.leaky_relu_(self._linear(y, name))
        return self._linear(y, "classifier").sigmoid_()

    def _pooled(self, x: Tensor, layer: int) -> Tensor:
        pooled = functional.max_pool1d(x, POOL)
        return functional.leaky_relu_(self._normed(pooled, f"sincnet.norm1d.{layer}"))

    def _normed(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return functional.instance_norm(x, weight=weight, bias=bias)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])


def band_filters(low_hz: Tensor, band_hz: Tensor) -> Tensor:
    """Build band-pass filters (80, 1, 251) between learnt frequencies (40, 1): the even ones, then the odd
    ones.
    """
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


_ONE_AT_A_TIME = Lock()


def load_segmentation() -> SegmentationNetwork:
    """Load the network with pyannote's weights, fetched if need be and read once; thread-safe.

    Raises: ModelNotFoundError, CheckpointError.
    """
    with _ONE_AT_A_TIME:
        return _network_of(fetched("speaker-segmentation", SEGMENTATION))


@cache
def _network_of(path: Path) -> SegmentationNetwork:
    tensors = read_tensors(path, "state_dict")
    shapes = {
        "sincnet.conv1d.0.filterbank.low_hz_": (N_FILTERS // 2, 1),
        "lstm.weight_ih_l0": (4 * HIDDEN, 60),
        "classifier.weight": (3, HIDDEN),
    }
    require_shapes(tensors, shapes, path)
    return SegmentationNetwork(tensors)
