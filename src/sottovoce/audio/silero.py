"""Silero's speech probability of 32 ms windows, with the recurrent state in the caller's hands.

The weights come from the TorchScript file in the `silero-vad` package. Its Python code is not imported,
because importing it sets the process's number of torch threads; and the network is run by ourselves, so that
the state is explicit and neighbouring windows go through the convolutions together. This module knows no
segments; `vad` draws those.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sottovoce.errors import ModelNotFoundError
from sottovoce.options.vad import WINDOW_SAMPLES
from sottovoce.threads import one_torch_thread
from sottovoce.types import Samples

_CONTEXT_SAMPLES = 64
_STATE_SIZE = 128
_N_GATES = 4 * _STATE_SIZE
_FFT_SAMPLES, _FFT_HOP, _N_BINS = 256, 128, 129
_BLOCK_WINDOWS = 512
_GROUP_WINDOWS = 8
"""Windows that are multiplied together, always so many, and a window always in the same row: a matrix product
of another size may round differently, and where audio was cut must not be seen in the probabilities."""


@dataclass(frozen=True, slots=True)
class SileroState:
    """Recurrent state: hidden and cell (128,), the last 64 samples (64,), and the number of windows so
    far.
    """

    hidden: Tensor
    cell: Tensor
    context: Tensor
    n_windows: int = 0


class SpeechModel(Protocol):
    """Computes for each window of 512 samples the probability of speech."""

    def start(self) -> SileroState:
        """Return the state before any audio."""
        ...

    def probabilities(self, samples: Tensor, state: SileroState) -> tuple[Tensor, SileroState]:
        """Compute probabilities (n,) of n whole windows (n * 512,) float32, and the state after them."""
        ...


class SileroModel:
    """Silero VAD for 16 kHz: spectrum, four convolutions, one LSTM.

    Windows get the same probabilities, bit by bit, in however many calls they come. A convolution is a
    product with a matrix here: for a few windows that is three times as fast as torch's convolutions.

    weights: under the names of the TorchScript model for 16 kHz (`_model`), of its shapes.

    Source: the TorchScript code of silero-vad 6.2, and the plain rewriting of it that the package carries.
    """

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self._spectrum = weights["stft.forward_basis_buffer"][:, 0].t().contiguous()
        self._layers = [
            _Convolution.of(weights, f"encoder.{layer}.reparam_conv", stride)
            for layer, stride in enumerate((1, 2, 2, 1))
        ]
        order = (
            torch.arange(_N_GATES).view(4, _STATE_SIZE)[[0, 1, 3, 2]].flatten()
        )  # the candidate comes last
        self._input = weights["decoder.rnn.weight_ih"][order].t().contiguous()
        self._recurrent = weights["decoder.rnn.weight_hh"][order].contiguous()
        self._gate_bias = (weights["decoder.rnn.bias_ih"] + weights["decoder.rnn.bias_hh"])[order]
        self._output = weights["decoder.decoder.2.weight"].flatten()
        self._output_bias = weights["decoder.decoder.2.bias"].flatten()

    def start(self) -> SileroState:
        zeros = torch.zeros(_STATE_SIZE)
        return SileroState(zeros, zeros, torch.zeros(_CONTEXT_SAMPLES))

    @torch.inference_mode()
    @one_torch_thread()
    def probabilities(self, samples: Tensor, state: SileroState) -> tuple[Tensor, SileroState]:
        probabilities = []
        for block in torch.split(samples, _BLOCK_WINDOWS * WINDOW_SAMPLES):
            with_context = torch.cat((state.context, block))
            windows = with_context.unfold(0, _CONTEXT_SAMPLES + WINDOW_SAMPLES, WINDOW_SAMPLES)  # (n, 576)
            gates = self._gates(windows, state.n_windows % _GROUP_WINDOWS)
            values, hidden, cell = self._recur(gates, state.hidden, state.cell)
            context = with_context[-_CONTEXT_SAMPLES:].clone()
            state = SileroState(hidden, cell, context, state.n_windows + len(windows))
            probabilities += values
        return torch.stack(probabilities), state

    def _gates(self, windows: Tensor, first: int) -> Tensor:
        """Compute the input of the gates (n, 512) from samples (n, 576). first: row of the first window in
        its group.
        """
        end = first + len(windows)
        rows = windows.new_zeros(-(-end // _GROUP_WINDOWS) * _GROUP_WINDOWS, windows.shape[1])
        rows[first:end] = windows
        groups = [self._gates_of_group(group) for group in torch.split(rows, _GROUP_WINDOWS)]
        return torch.cat(groups)[first:end]

    def _gates_of_group(self, windows: Tensor) -> Tensor:
        mirrored = torch.cat((windows, windows[:, -_CONTEXT_SAMPLES - 1 : -1].flip(1)), dim=1)
        frames = mirrored.unfold(1, _FFT_SAMPLES, _FFT_HOP)  # (n, 4, 256)
        spectrum = frames.flatten(0, 1) @ self._spectrum
        power = spectrum[:, :_N_BINS].square() + spectrum[:, _N_BINS:].square()
        x = power.sqrt_().view(*frames.shape[:2], _N_BINS)
        for layer in self._layers:
            x = layer(x)
        return torch.addmm(self._gate_bias, x[:, 0], self._input)

    def _recur(self, gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        """Run the LSTM over (n, 512), and its output layer: n probabilities, and the state after them."""
        probabilities = []
        for row in gates.unbind():
            sums = torch.addmv(row, self._recurrent, hidden)
            take, keep, show = sums[: 3 * _STATE_SIZE].sigmoid().view(3, _STATE_SIZE).unbind()
            cell = torch.addcmul(take * sums[3 * _STATE_SIZE :].tanh(), keep, cell)
            hidden = show * cell.tanh()
            logit = torch.dot(hidden.relu(), self._output) + self._output_bias[0]
            probabilities.append(logit.sigmoid())
        return probabilities, hidden, cell


@dataclass(frozen=True, slots=True, eq=False)
class _Convolution:
    """Three taps, a zero at either end, then the positive part: weight (3 * n_in, n_out), bias (n_out,)."""

    weight: Tensor
    bias: Tensor
    stride: int

    @classmethod
    def of(cls, weights: dict[str, Tensor], name: str, stride: int) -> _Convolution:
        taps = weights[f"{name}.weight"]  # (n_out, n_in, 3)
        return cls(taps.permute(1, 2, 0).flatten(0, 1).contiguous(), weights[f"{name}.bias"], stride)

    def __call__(self, x: Tensor) -> Tensor:
        """Map (n, t, n_in) to (n, t / stride, n_out)."""
        taps = F.pad(x, (0, 0, 1, 1)).unfold(1, 3, self.stride)  # (n, t / stride, n_in, 3)
        product = torch.addmm(self.bias, taps.reshape(-1, self.weight.shape[0]), self.weight)
        return product.relu_().view(*taps.shape[:2], -1)


class SpeechWindows:
    """Cuts samples (n,) into whole windows and computes their probabilities of speech."""

    def __init__(self, model: SpeechModel) -> None:
        self._model = model
        self._state: SileroState = model.start()
        self._pending = torch.zeros(0)
        self.n_samples = 0

    def push(self, samples: Samples) -> list[float]:
        self.n_samples += len(samples)
        signal = torch.cat((self._pending, torch.from_numpy(np.array(samples))))
        n_whole = len(signal) // WINDOW_SAMPLES * WINDOW_SAMPLES
        self._pending = signal[n_whole:].clone()
        return self._probabilities(signal[:n_whole])

    def finish(self) -> list[float]:
        """Return the probability of the last window, padded with zeros."""
        missing = -len(self._pending) % WINDOW_SAMPLES
        return self._probabilities(torch.nn.functional.pad(self._pending, (0, missing)))

    def _probabilities(self, signal: Tensor) -> list[float]:
        if len(signal) == 0:
            return []
        probabilities, self._state = self._model.probabilities(signal, self._state)
        found: list[float] = probabilities.tolist()
        return found


_ONE_AT_A_TIME = Lock()
"""Loads: TorchScript keeps what it reads in tables of the process, which two threads at once would break."""


def load_silero() -> SileroModel:
    """Load the model with the weights of the installed `silero-vad` package (2 MB), read once; thread-safe.

    It is stateless, so all streams share it.

    Raises: ModelNotFoundError when the package is not there.
    """
    spec = find_spec("silero_vad")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "silero_vad.jit"
        if path.is_file():
            with _ONE_AT_A_TIME:
                return _model_of(path)
    raise ModelNotFoundError(
        "Silero VAD: expected the package silero-vad, got none: pip install 'silero-vad>=6.2'"
    )


@cache
def _model_of(path: Path) -> SileroModel:
    return SileroModel(_read_weights(path))


def _read_weights(path: Path) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        # TorchScript is deprecated, but there is no other file with these weights.
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
        state = scripted.state_dict()
    prefix = "_model."
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
