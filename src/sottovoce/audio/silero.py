"""Silero's speech probability of 32 ms windows, with the recurrent state in the caller's hands.

The weights come from the TorchScript file in the `silero-vad` package. Its Python code is not imported,
because importing it sets the process's number of torch threads; and the network is run by ourselves, so that
the state is explicit and all windows of a recording go through the convolutions together. This module knows
no segments; `vad` draws those.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sottovoce.errors import ModelNotFoundError

WINDOW_SAMPLES = 512
"""Samples that one probability speaks for (32 ms)."""
_CONTEXT_SAMPLES = 64
_STATE_SIZE = 128
_BLOCK_WINDOWS = 512


@dataclass(frozen=True, slots=True)
class SileroState:
    """What the model remembers: hidden and cell (1, 1, 128), and the last 64 samples (64,)."""

    hidden: Tensor
    cell: Tensor
    context: Tensor


class SpeechModel(Protocol):
    """Gives each window of 512 samples the probability that it holds speech."""

    def start(self) -> SileroState:
        """The state before any audio."""
        ...

    def probabilities(self, samples: Tensor, state: SileroState) -> tuple[Tensor, SileroState]:
        """Probabilities (n,) of n whole windows (n * 512,) float32, and the state after them."""
        ...


class SileroModel:
    """Silero VAD for 16 kHz: spectrum, four convolutions, one LSTM.

    One window at a time gives the same values as many, to float32 rounding of the convolutions.

    weights: under the names of the TorchScript model for 16 kHz (`_model`).

    Source: the TorchScript code of silero-vad 6.2, and the plain rewriting of it that the package carries.
    """

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self._weights = weights

    def start(self) -> SileroState:
        zeros = torch.zeros(1, 1, _STATE_SIZE)
        return SileroState(zeros, zeros, torch.zeros(_CONTEXT_SAMPLES))

    @torch.inference_mode()
    def probabilities(self, samples: Tensor, state: SileroState) -> tuple[Tensor, SileroState]:
        probabilities = []
        for block in torch.split(samples, _BLOCK_WINDOWS * WINDOW_SAMPLES):
            values, state = self._block(block, state)
            probabilities.append(values)
        return torch.cat(probabilities), state

    def _block(self, samples: Tensor, state: SileroState) -> tuple[Tensor, SileroState]:
        with_context = torch.cat((state.context, samples))
        windows = with_context.unfold(0, _CONTEXT_SAMPLES + WINDOW_SAMPLES, WINDOW_SAMPLES)  # (n, 576)
        features = self._encode(windows)
        hidden_all, hidden, cell = torch.lstm(
            features[None],
            (state.hidden, state.cell),
            [
                self._weights[f"decoder.rnn.{name}"]
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ],
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=False,
            bidirectional=False,
            batch_first=True,
        )
        logits = self._convolve(hidden_all[0].relu()[..., None], "decoder.decoder.2")
        return logits.sigmoid().flatten(), SileroState(hidden, cell, with_context[-_CONTEXT_SAMPLES:].clone())

    def _encode(self, windows: Tensor) -> Tensor:
        """(n, 576) samples to (n, 128) features."""
        mirrored = F.pad(windows[:, None], (0, _CONTEXT_SAMPLES), mode="reflect")
        spectrum = F.conv1d(mirrored, self._weights["stft.forward_basis_buffer"], stride=128)
        real, imaginary = spectrum.chunk(2, dim=1)
        x = (real.square() + imaginary.square()).sqrt()  # (n, 129, 4)
        for layer, stride in enumerate((1, 2, 2, 1)):
            x = self._convolve(x, f"encoder.{layer}.reparam_conv", stride=stride, padding=1).relu()
        return x.squeeze(-1)

    def _convolve(self, x: Tensor, name: str, *, stride: int = 1, padding: int = 0) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return F.conv1d(x, weight, bias, stride=stride, padding=padding)


def load_silero() -> SileroModel:
    """Load the weights from the installed `silero-vad` package (2 MB).

    Raises: ModelNotFoundError when the package is not there.
    """
    spec = find_spec("silero_vad")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "silero_vad.jit"
        if path.is_file():
            return SileroModel(_read_weights(path))
    raise ModelNotFoundError(
        "Silero VAD: expected the package silero-vad, got none: pip install 'silero-vad>=6.2'"
    )


def _read_weights(path: Path) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        # TorchScript is deprecated, but there is no other file with these weights.
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
        state = scripted.state_dict()
    prefix = "_model."
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
