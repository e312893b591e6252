"""Voice activity detection with Silero VAD: speech segments of a recording, and speech edges in a stream.

The weights come from the `silero-vad` package, whose Python code sets the process's number of threads.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sottovoce.audio.samples import as_samples
from sottovoce.errors import ModelNotFoundError, OptionError, SessionClosedError
from sottovoce.options.vad import WINDOW_SAMPLES, VadOptions, VadStreamOptions, ms_to_samples
from sottovoce.threads import one_torch_thread
from sottovoce.types import SAMPLE_RATE, AudioChunk, Samples

_CONTEXT_SAMPLES = 64
_STATE_SIZE = 128
_N_GATES = 4 * _STATE_SIZE
_FFT_SAMPLES, _FFT_HOP, _N_BINS = 256, 128, 129
_STRIDES = (1, 2, 2, 1)
_BLOCK_WINDOWS = 512
_GROUP_WINDOWS = 8
"""Windows per matrix product, fixed, as other sizes may round differently."""


@dataclass(frozen=True, slots=True)
class SileroState:
    """Recurrent state: hidden and cell (128,), the last samples (64,), and the number of windows."""

    hidden: Tensor
    cell: Tensor
    context: Tensor
    n_windows: int = 0


class SpeechModel(Protocol):
    def start(self) -> SileroState: ...

    def probabilities(self, samples: Tensor, state: SileroState) -> tuple[Tensor, SileroState]: ...


class SileroModel:
    """Silero VAD for 16 kHz: spectrum, four convolutions, one LSTM.

    Probabilities do not depend on how windows are split into calls, bit by bit. weights: as in the
    TorchScript model (`_model`). Source: silero-vad 6.2.
    """

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self._spectrum = weights["stft.forward_basis_buffer"][:, 0].t().contiguous()
        self._layers = []
        """Weight (3 * n_in, n_out), bias (n_out,) and stride of each convolution."""
        for layer, stride in enumerate(_STRIDES):
            taps, bias = (weights[f"encoder.{layer}.reparam_conv.{name}"] for name in ("weight", "bias"))
            self._layers.append((taps.permute(1, 2, 0).flatten(0, 1).contiguous(), bias, stride))
        gates = torch.arange(_N_GATES).view(4, _STATE_SIZE)
        order = gates[[0, 1, 3, 2]].flatten()  # the candidate comes last
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
        for weight, bias, stride in self._layers:
            taps = F.pad(x, (0, 0, 1, 1)).unfold(1, 3, stride)  # (n, t / stride, n_in, 3)
            product = torch.addmm(bias, taps.reshape(-1, weight.shape[0]), weight)
            x = product.relu_().view(*taps.shape[:2], -1)
        return torch.addmm(self._gate_bias, x[:, 0], self._input)

    def _recur(self, gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        probabilities = []
        for row in gates.unbind():
            sums = torch.addmv(row, self._recurrent, hidden)
            take, keep, show = sums[: 3 * _STATE_SIZE].sigmoid().view(3, _STATE_SIZE).unbind()
            cell = torch.addcmul(take * sums[3 * _STATE_SIZE :].tanh(), keep, cell)
            hidden = show * cell.tanh()
            logit = torch.dot(hidden.relu(), self._output) + self._output_bias[0]
            probabilities.append(logit.sigmoid())
        return probabilities, hidden, cell


class SpeechWindows:
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
        missing = -len(self._pending) % WINDOW_SAMPLES
        return self._probabilities(torch.nn.functional.pad(self._pending, (0, missing)))

    def _probabilities(self, signal: Tensor) -> list[float]:
        if len(signal) == 0:
            return []
        probabilities, self._state = self._model.probabilities(signal, self._state)
        found: list[float] = probabilities.tolist()
        return found


_ONE_AT_A_TIME = Lock()


def load_silero() -> SileroModel:
    """Load the model of the `silero-vad` package once; thread-safe. Raises: ModelNotFoundError."""
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


@dataclass(frozen=True, slots=True)
class SpeechSegment:
    start_sample: int
    end_sample: int

    @property
    def start_s(self) -> float:
        return self.start_sample / SAMPLE_RATE

    @property
    def end_s(self) -> float:
        return self.end_sample / SAMPLE_RATE

    @property
    def duration_s(self) -> float:
        return (self.end_sample - self.start_sample) / SAMPLE_RATE


def speech_segments(
    audio: Samples | Iterable[AudioChunk],
    options: VadOptions | None = None,
    *,
    model: SpeechModel | None = None,
) -> list[SpeechSegment]:
    """Find the speech of a recording: ordered segments that do not overlap (except for overlap_s).

    audio: samples (n,) float32 at 16 kHz, or chunks of an AudioReader. Raises: AudioError for samples that
    are not finite or of another shape. Source: Silero's `get_speech_timestamps`; but after a cut at
    max_speech_s later pauses still count.
    """
    finder = SpeechFinder(options, model=model)
    if isinstance(audio, np.ndarray):
        finder.push(as_samples(audio, "audio"))
    else:
        for chunk in audio:
            finder.push(chunk.samples)
    return finder.finish()


class SpeechFinder:
    """Finds the speech of a recording while it is read, by the rules of `speech_segments`."""

    def __init__(self, options: VadOptions | None = None, *, model: SpeechModel | None = None) -> None:
        self._segmenter = _Segmenter(options or VadOptions())
        self._segmenters = [self._segmenter]
        self._windows = SpeechWindows(model or load_silero())
        self._is_finished = False

    def beside(self, options: VadOptions) -> SpeechFinder:
        """Return a finder with other options that shares probabilities; call it before the first samples."""
        other = copy(self)
        other._segmenter = _Segmenter(options)
        self._segmenters.append(other._segmenter)
        return other

    def push(self, samples: Samples) -> None:
        self._take(self._windows.push(samples))

    def finish(self) -> list[SpeechSegment]:
        if not self._is_finished:
            self._is_finished = True
            self._take(self._windows.finish())
            for segmenter in self._segmenters:
                segmenter.finish(self._windows.n_samples)
        return self.segments()

    def _take(self, probabilities: Sequence[float]) -> None:
        for segmenter in self._segmenters:
            for probability in probabilities:
                segmenter.push(probability)

    def segments(self, start_sample: int = 0, end_sample: int | None = None) -> list[SpeechSegment]:
        """Return the speech between two samples, cut to them and to the last sample read."""
        n_samples = self._windows.n_samples
        last = n_samples if end_sample is None else end_sample
        found = self._segmenter.segments(start_sample - SAMPLE_RATE, last + SAMPLE_RATE)
        padded = _padded(found, n_samples, self._segmenter.options)
        cut = [(max(start_sample, one.start_sample), min(last, one.end_sample)) for one in padded]
        return [SpeechSegment(start, end) for start, end in cut if start < end]


class _Segmenter:
    def __init__(self, options: VadOptions) -> None:
        self.options = options
        self._position = 0
        self._segments: list[SpeechSegment] = []
        self._start: int | None = None
        self._silence: int | None = None
        self._pauses: list[SpeechSegment] = []

    def push(self, probability: float) -> None:
        now, self._position = self._position, self._position + WINDOW_SAMPLES
        if probability >= self.options.threshold:
            self._add_speech(now)
        if self._start is not None and now - self._start > self.options.max_samples:
            self._cut(self._start, now)
        if self._start is not None and probability < self.options.exit_threshold:
            if self._silence is None:
                self._silence = now
            if now - self._silence >= ms_to_samples(self.options.min_silence_ms):
                self._close(self._start, self._silence)

    def finish(self, n_samples: int) -> None:
        if self._start is not None:
            self._close(self._start, n_samples)

    def segments(self, start: int, end: int) -> list[SpeechSegment]:
        """Return the segments that reach into samples [start, end), with the open one."""
        first = bisect_left(self._segments, start, key=lambda one: one.end_sample)
        last = bisect_left(self._segments, end, key=lambda one: one.start_sample)
        found = self._segments[first:last]
        if self._start is not None and self._start < end and self._position > start:
            found.append(SpeechSegment(self._start, self._position))
        return found

    def _add_speech(self, now: int) -> None:
        if self._start is None:
            self._start = now
        elif self._silence is not None and self._is_pause(now - self._silence):
            self._pauses.append(SpeechSegment(self._silence, now))
        self._silence = None

    def _is_pause(self, n_samples: int) -> bool:
        return n_samples > ms_to_samples(self.options.min_silence_at_max_speech_ms)

    def _cut(self, start: int, now: int) -> None:
        if self._pauses:
            pause = max(self._pauses, key=lambda pause: pause.duration_s)
            self._segments.append(SpeechSegment(start, pause.start_sample))
            self._start = pause.end_sample
            self._pauses = [other for other in self._pauses if other.start_sample > pause.start_sample]
        else:
            self._segments.append(SpeechSegment(start, now if self._silence is None else self._silence))
            self._start, self._silence = (now if self._silence is None else None), None

    def _close(self, start: int, end: int) -> None:
        if end - start > ms_to_samples(self.options.min_speech_ms):
            self._segments.append(SpeechSegment(start, end))
        self._start, self._silence, self._pauses = None, None, []


def _padded(segments: list[SpeechSegment], n_samples: int, options: VadOptions) -> list[SpeechSegment]:
    if not segments:
        return []
    pad = int(ms_to_samples(options.speech_pad_ms))
    overlap = int(options.overlap_s * SAMPLE_RATE)
    starts = [segment.start_sample for segment in segments]
    ends = [segment.end_sample for segment in segments]
    gaps = [start - end for start, end in zip(starts[1:], ends[:-1], strict=True)]
    before = [min(pad, starts[0]), *(min(pad, gap // 2) for gap in gaps)]
    after = [*(min(pad, gap // 2) for gap in gaps), pad]
    return [
        SpeechSegment(start - left, min(n_samples, end + right + overlap))
        for start, end, left, right in zip(starts, ends, before, after, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class SpeechEdge:
    kind: Literal["start", "end"]
    sample: int
    detected_sample: int


class VadStream:
    """Alternating starts and ends of speech in a stream, independent of the cuts, bit by bit."""

    def __init__(self, options: VadStreamOptions | None = None, *, model: SpeechModel | None = None) -> None:
        self._options = options or VadStreamOptions()
        self._model = model or load_silero()
        self.reset()

    @classmethod
    def from_option(cls, option: bool | VadStreamOptions) -> VadStream | None:
        """Create a stream with default options (True) or given ones; False: None. Raises: OptionError."""
        if not isinstance(option, bool | VadStreamOptions):
            names = ", ".join(field.name for field in fields(VadStreamOptions))
            raise OptionError(
                f"vad: expected True, False or VadStreamOptions, whose fields are {names}, got {option!r}"
            )
        return None if option is False else cls(None if option is True else option)

    def reset(self) -> None:
        self._windows = SpeechWindows(self._model)
        self._position = 0
        self._candidate: int | None = None
        self._silence: int | None = None
        self._last_end = 0
        self._closed = False
        self.is_speech = False
        self.probability = 0.0

    @property
    def n_samples(self) -> int:
        return self._windows.n_samples

    def push(self, samples: Samples) -> list[SpeechEdge]:
        """Append samples (n,) float32; return the edges they reveal. Raises: AudioError after `close` too."""
        if self._closed:
            raise SessionClosedError("VadStream.push: expected no audio after close(); call reset() first")
        probabilities = self._windows.push(as_samples(samples, "pushed audio"))
        return [edge for probability in probabilities for edge in self._advance(probability)]

    def close(self) -> list[SpeechEdge]:
        """End the stream: classify the last partial window, and end ongoing speech."""
        if self._closed:
            return []
        self._closed = True
        edges = [edge for probability in self._windows.finish() for edge in self._advance(probability)]
        return [*edges, self._end(self.n_samples)] if self.is_speech else edges

    def _advance(self, probability: float) -> list[SpeechEdge]:
        first, self._position = self._position, self._position + WINDOW_SAMPLES
        self.probability = probability
        return self._in_speech(probability, first) if self.is_speech else self._in_silence(probability, first)

    def _in_silence(self, probability: float, first: int) -> list[SpeechEdge]:
        if probability >= self._options.threshold and self._candidate is None:
            self._candidate = first
        elif probability < self._options.exit_threshold:
            self._candidate = None
        if self._candidate is None or self._position - self._candidate < ms_to_samples(
            self._options.onset_ms
        ):
            return []
        start = max(self._last_end, self._candidate - int(ms_to_samples(self._options.pre_roll_ms)))
        self._candidate, self._silence, self.is_speech = None, None, True
        return [SpeechEdge("start", start, min(self._position, self.n_samples))]

    def _in_speech(self, probability: float, first: int) -> list[SpeechEdge]:
        if probability >= self._options.threshold:
            self._silence = None
        elif probability < self._options.exit_threshold and self._silence is None:
            self._silence = first
        if self._silence is None or self._position - self._silence < ms_to_samples(self._options.hangover_ms):
            return []
        return [self._end(self._silence + int(ms_to_samples(self._options.post_roll_ms)))]

    def _end(self, sample: int) -> SpeechEdge:
        self._last_end = min(sample, self._position, self.n_samples)
        self._silence, self.is_speech = None, False
        return SpeechEdge("end", self._last_end, min(self._position, self.n_samples))
