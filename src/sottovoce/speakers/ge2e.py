"""Voice encoder GE2E: a three-layer LSTM over mel power, with Resemblyzer's weights.

Windows of 1.6 s are read by themselves and their vectors averaged. The network hears power, not its
logarithm, so every stretch is brought to one level first.

Source: L. Wan and others, Generalized end-to-end loss for speaker verification (arXiv 1710.10467); the layout
and the level from Resemblyzer 0.1.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor, nn
from torch.nn import functional

from sottovoce.audio.mel import N_FFT, mel_filters
from sottovoce.speakers.base import Floats, VoiceDistances
from sottovoce.speakers.weights import VOICES, fetched, read_tensors, require_shapes
from sottovoce.types import HOP_SAMPLES

N_MELS = 40
SIZE = 256
N_LAYERS = 3
WINDOW_FRAMES = 160
HOP_FRAMES = 80
SHORTEST_FRAMES = 40
"""Less speech than 0.4 s says too little about a voice."""
LEVEL = 10.0 ** (-30.0 / 20.0)
"""Root mean square that a stretch is brought to (-30 dBFS)."""
BATCH = 64


class Ge2eEncoder:
    """Embeds stretches of speech in unit vectors (256,).

    weights: `lstm.*` and `linear.*` of the GE2E network.
    """

    distances = VoiceDistances(same=0.26, new_speaker=0.34, recluster=0.24)

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self._lstm = nn.LSTM(N_MELS, SIZE, N_LAYERS, batch_first=True)
        state = {name.removeprefix("lstm."): w for name, w in weights.items() if name.startswith("lstm.")}
        self._lstm.load_state_dict(state)
        self._weight, self._bias = weights["linear.weight"], weights["linear.bias"]
        self._filters = torch.tensor(mel_filters(N_MELS))
        self._hann = torch.hann_window(N_FFT)

    @torch.inference_mode()
    def embed(self, speech: Sequence[Tensor]) -> Floats:
        """Embed stretches (n_samples,) of speech; see `VoiceEncoder`."""
        owners: list[int] = []
        windows: list[Tensor] = []
        for owner, samples in enumerate(speech):
            found = self._windows(samples)
            windows += found
            owners += [owner] * len(found)
        sums = torch.zeros(len(speech), SIZE)
        if windows:
            sums.index_add_(0, torch.tensor(owners), self._vectors(windows))
        return functional.normalize(sums, dim=1).numpy()

    def _windows(self, samples: Tensor) -> list[Tensor]:
        """Compute mel power (n_frames, 40) of half-overlapping windows of a stretch; none for one too
        short.
        """
        if len(samples) < SHORTEST_FRAMES * HOP_SAMPLES:
            return []
        level = samples.square().mean().sqrt().clamp_(min=1e-6)
        spectrum = torch.stft(
            samples * (LEVEL / level),
            N_FFT,
            HOP_SAMPLES,
            window=self._hann,
            pad_mode="constant",
            return_complex=True,
        )
        mel = (self._filters @ spectrum.abs().square()).t()  # (n_frames, 40)
        if len(mel) <= WINDOW_FRAMES:
            return [mel]
        last = len(mel) - WINDOW_FRAMES
        starts = sorted({*range(0, last, HOP_FRAMES), last})
        return [mel[start : start + WINDOW_FRAMES] for start in starts]

    def _vectors(self, windows: Sequence[Tensor]) -> Tensor:
        """Compute unit vectors (n, 256); windows of one length share a batch."""
        vectors = torch.zeros(len(windows), SIZE)
        order = sorted(range(len(windows)), key=lambda index: len(windows[index]))
        while order:
            length = len(windows[order[0]])
            rows = [index for index in order[:BATCH] if len(windows[index]) == length]
            _, (hidden, _) = self._lstm(torch.stack([windows[index] for index in rows]))
            raw = functional.linear(hidden[-1], self._weight, self._bias).relu_()
            vectors[rows] = functional.normalize(raw, dim=1)
            order = order[len(rows) :]
        return vectors


_ONE_AT_A_TIME = Lock()


def load_ge2e() -> Ge2eEncoder:
    """Load the encoder with Resemblyzer's weights, fetched if need be and read once; thread-safe.

    Raises: ModelNotFoundError, CheckpointError.
    """
    with _ONE_AT_A_TIME:
        return _encoder_of(fetched("speaker-voices", VOICES))


@cache
def _encoder_of(path: Path) -> Ge2eEncoder:
    tensors = read_tensors(path, "model_state")
    shapes = {"lstm.weight_ih_l0": (4 * SIZE, N_MELS), "linear.weight": (SIZE, SIZE)}
    require_shapes(tensors, shapes, path)
    return Ge2eEncoder(tensors)
