"""Voice activity detection with Silero VAD: speech segments of a recording, and speech edges in a stream."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from safetensors.numpy import load_file

from sottovoce.audio.samples import as_samples
from sottovoce.errors import OptionError, SessionClosedError
from sottovoce.kernels import load_kernels
from sottovoce.options.decoding import WINDOW_SAMPLES, VadOptions, VadStreamOptions, ms_to_samples
from sottovoce.types import SAMPLE_RATE, AudioChunk, Floats, Samples

WEIGHTS = Path(__file__).parent / "assets" / "silero_vad_16k.safetensors"
_CONTEXT_SAMPLES = 64
_STATE_SIZE = 128
"""Source of both: Silero VAD 5, at 16 kHz."""
_FFT_SAMPLES, _FFT_HOP, _N_BINS = 256, 128, 129
_GROUP_WINDOWS = 8
"""Windows per matrix product, fixed, as other sizes may round differently."""


@dataclass(frozen=True, slots=True)
class SileroState:
    """Recurrent state: hidden and cell (128,), the last samples (64,), and the number of windows."""

    hidden: Floats
    cell: Floats
    context: Floats
    n_windows: int = 0


class SpeechModel(Protocol):
    def start(self) -> SileroState: ...

    def probabilities(self, samples: Samples, state: SileroState) -> tuple[Floats, SileroState]: ...


@dataclass(frozen=True, slots=True)
class SileroTables:
    """Weights (n_in, n_out) float32 of Silero VAD for 16 kHz: spectrum, four convolutions, one LSTM cell.

    cosines, sines: (128, 144) and (128, 128), of a frame of 256 samples whose halves were added and
    subtracted. layers: weight and bias of each convolution, without the taps that only see padding. input,
    input_bias, recurrent: of the cell. output, output_bias: (128,) and (1,).
    """

    cosines: Floats
    sines: Floats
    layers: tuple[tuple[Floats, Floats], ...]
    input: Floats
    input_bias: Floats
    recurrent: Floats
    output: Floats
    output_bias: Floats

    @classmethod
    def of(cls, weights: Mapping[str, Floats]) -> SileroTables:
        """weights: of silero-vad 6.2."""
        half = _FFT_SAMPLES // 2
        basis = weights["stft_conv.weight"][:, 0, 1 : half + 1].T  # the first sample's window is 0
        cosines = np.pad(basis[:, :_N_BINS], ((0, 0), (0, 144 - _N_BINS)))
        taps = [weights[f"conv{layer}.weight"].transpose(2, 1, 0) for layer in (1, 2, 3, 4)]
        shown = (taps[0], taps[1], taps[2][1:], taps[3][1])
        return cls(
            np.ascontiguousarray(cosines),
            np.ascontiguousarray(basis[:, _N_BINS:-1]),
            tuple(
                (np.ascontiguousarray(seen.reshape(-1, seen.shape[-1])), weights[f"conv{layer}.bias"])
                for layer, seen in enumerate(shown, start=1)
            ),
            np.ascontiguousarray(weights["lstm_cell.weight_ih"].T),
            weights["lstm_cell.bias_ih"] + weights["lstm_cell.bias_hh"],
            np.ascontiguousarray(weights["lstm_cell.weight_hh"].T),
            weights["final_conv.weight"].ravel(),
            weights["final_conv.bias"],
        )


class SileroModel:
    """Silero VAD in NumPy.

    Probabilities do not depend on how windows are split into calls, bit by bit. Source: silero-vad 6.2.
    """

    def __init__(self, tables: SileroTables) -> None:
        self._tables = tables

    def start(self) -> SileroState:
        zeros = np.zeros(_STATE_SIZE, np.float32)
        return SileroState(zeros, zeros, np.zeros(_CONTEXT_SAMPLES, np.float32))

    def probabilities(self, samples: Samples, state: SileroState) -> tuple[Floats, SileroState]:
        """Return the probability (n,) of speech in each of n windows of 512 samples, and the state after."""
        signal = np.concatenate((state.context, samples))
        n_windows = len(samples) // WINDOW_SAMPLES
        hidden, cell = state.hidden.copy(), state.cell.copy()
        probabilities = self._detect(signal, n_windows, state.n_windows, hidden, cell)
        context = signal[-_CONTEXT_SAMPLES:].copy()
        return probabilities, SileroState(hidden, cell, context, state.n_windows + n_windows)

    def _detect(self, signal: Samples, n_windows: int, n_before: int, hidden: Floats, cell: Floats) -> Floats:
        """signal: the context and the windows. hidden, cell: changed. n_before: windows before these."""
        seen = _CONTEXT_SAMPLES + WINDOW_SAMPLES
        windows = np.lib.stride_tricks.sliding_window_view(signal, seen)[::WINDOW_SAMPLES]
        probabilities = np.empty(n_windows, np.float32)
        first = n_before % _GROUP_WINDOWS
        for start in range(-first, n_windows, _GROUP_WINDOWS):
            group = np.zeros((_GROUP_WINDOWS, seen), np.float32)
            places = range(max(0, start), min(n_windows, start + _GROUP_WINDOWS))
            group[places.start - start : places.stop - start] = windows[places.start : places.stop]
            gates = self._gates(group)
            for place in places:
                probabilities[place] = self._step(gates[place - start], hidden, cell)
        return probabilities

    def _gates(self, windows: Floats) -> Floats:
        tables, half = self._tables, _FFT_SAMPLES // 2
        mirrored = np.concatenate((windows, windows[:, -2 : -_CONTEXT_SAMPLES - 2 : -1]), axis=1)
        frames = np.lib.stride_tricks.sliding_window_view(mirrored, _FFT_SAMPLES, axis=1)[:, ::_FFT_HOP]
        ahead, behind, middle = frames[..., 1:half], frames[..., :half:-1], frames[..., half : half + 1]
        real = np.concatenate((ahead + behind, middle), axis=2) @ tables.cosines
        imaginary = np.concatenate((ahead - behind, 0.0 * middle), axis=2) @ tables.sines
        power = real[..., :_N_BINS] ** 2
        power[..., :-1] += imaginary**2
        x = np.pad(np.sqrt(power), ((0, 0), (1, 1), (0, 0)))
        x = np.concatenate((x[:, :-2], x[:, 1:-1], x[:, 2:]), axis=2)
        x = np.pad(_rectified(x, *tables.layers[0]), ((0, 0), (1, 0), (0, 0)))
        x = np.concatenate((x[:, :-2:2], x[:, 1:-1:2], x[:, 2::2]), axis=2)
        x = _rectified(x, *tables.layers[1]).reshape(len(windows), -1)
        for weight, bias in tables.layers[2:]:
            x = _rectified(x, weight, bias)
        return x @ tables.input + tables.input_bias

    def _step(self, gates: Floats, hidden: Floats, cell: Floats) -> float:
        sums = gates + hidden @ self._tables.recurrent
        take, keep, candidate, show = sums.reshape(4, _STATE_SIZE)
        cell[:] = _sigmoid(keep) * cell + _sigmoid(take) * np.tanh(candidate)
        hidden[:] = _sigmoid(show) * np.tanh(cell)
        logit = np.maximum(hidden, 0.0) @ self._tables.output + self._tables.output_bias[0]
        return float(_sigmoid(logit))


def _rectified(x: Floats, weight: Floats, bias: Floats) -> Floats:
    return np.maximum(x @ weight + bias, 0.0)


def _sigmoid(x: Floats) -> Floats:
    halves: Floats = 0.5 + 0.5 * np.tanh(0.5 * x)
    return halves


class NativeSilero(SileroModel):
    """Silero VAD in the native kernels. Raises: as `load_kernels`."""

    def __init__(self, tables: SileroTables) -> None:
        super().__init__(tables)
        load_kernels("silero")
        from sottovoce_kernels.silero import Silero

        layers = [table for layer in tables.layers for table in layer]
        cell = (tables.input, tables.input_bias, tables.recurrent, tables.output, tables.output_bias)
        self._network = Silero([each.ctypes.data for each in (tables.cosines, tables.sines, *layers, *cell)])

    def _detect(self, signal: Samples, n_windows: int, n_before: int, hidden: Floats, cell: Floats) -> Floats:
        probabilities = np.empty(n_windows, np.float32)
        arrays = (hidden, cell, probabilities)
        self._network.detect(signal.ctypes.data, n_windows, *(array.ctypes.data for array in arrays))
        return probabilities


class SpeechWindows:
    def __init__(self, model: SpeechModel) -> None:
        self._model = model
        self._state: SileroState = model.start()
        self._pending: Samples = np.zeros(0, np.float32)
        self.n_samples = 0

    def push(self, samples: Samples) -> list[float]:
        self.n_samples += len(samples)
        signal = np.concatenate((self._pending, samples))
        n_whole = len(signal) // WINDOW_SAMPLES * WINDOW_SAMPLES
        self._pending = signal[n_whole:].copy()
        return self._probabilities(signal[:n_whole])

    def finish(self) -> list[float]:
        return self._probabilities(np.pad(self._pending, (0, -len(self._pending) % WINDOW_SAMPLES)))

    def _probabilities(self, signal: Samples) -> list[float]:
        if len(signal) == 0:
            return []
        probabilities, self._state = self._model.probabilities(signal, self._state)
        values: list[float] = probabilities.tolist()
        return values


@cache
def load_silero() -> SileroModel:
    """Load the model: in the native kernels, or without them in NumPy, which is slower."""
    tables = SileroTables.of(load_file(WEIGHTS))
    try:
        return NativeSilero(tables)
    except ImportError:
        return SileroModel(tables)


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
            segmenter.push(probabilities)

    def segments(self, start_sample: int = 0, end_sample: int | None = None) -> list[SpeechSegment]:
        """Return the speech between two samples, cut to them and to the last sample read."""
        n_samples = self._windows.n_samples
        last = n_samples if end_sample is None else end_sample
        speech = self._segmenter.segments(start_sample - SAMPLE_RATE, last + SAMPLE_RATE)
        padded = _padded(speech, n_samples, self._segmenter.options)
        cut = [(max(start_sample, each.start_sample), min(last, each.end_sample)) for each in padded]
        return [SpeechSegment(start, end) for start, end in cut if start < end]


class _Segmenter:
    def __init__(self, options: VadOptions) -> None:
        self.options = options
        self._least, self._exit = options.threshold, options.exit_threshold
        self._longest, self._pause = options.max_samples, ms_to_samples(options.min_silence_ms)
        self._position = 0
        self._segments: list[SpeechSegment] = []
        self._start: int | None = None
        self._silence: int | None = None
        self._pauses: list[SpeechSegment] = []

    def push(self, probabilities: Sequence[float]) -> None:
        first, self._position = self._position, self._position + len(probabilities) * WINDOW_SAMPLES
        least = self._least
        for now, probability in zip(range(first, self._position, WINDOW_SAMPLES), probabilities, strict=True):
            if probability >= least and (self._start is None or self._silence is not None):
                self._add_speech(now)
            if self._start is None:
                continue
            if now - self._start > self._longest:
                self._cut(self._start, now)
            if probability < self._exit and self._start is not None:
                if self._silence is None:
                    self._silence = now
                if now - self._silence >= self._pause:
                    self._close(self._start, self._silence)

    def finish(self, n_samples: int) -> None:
        if self._start is not None:
            self._close(self._start, n_samples)

    def segments(self, start: int, end: int) -> list[SpeechSegment]:
        """Return the segments that reach into samples [start, end), with the open one."""
        first = bisect_left(self._segments, start, key=lambda each: each.end_sample)
        last = bisect_left(self._segments, end, key=lambda each: each.start_sample)
        speech = self._segments[first:last]
        if self._start is not None and self._start < end and self._position > start:
            speech.append(SpeechSegment(self._start, self._position))
        return speech

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
        chosen = options or VadStreamOptions()
        self._threshold, self._exit_threshold = chosen.threshold, chosen.exit_threshold
        self._onset, self._hangover = ms_to_samples(chosen.onset_ms), ms_to_samples(chosen.hangover_ms)
        self._pre_roll = int(ms_to_samples(chosen.pre_roll_ms))
        self._post_roll = int(ms_to_samples(chosen.post_roll_ms))
        self.model = model or load_silero()
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
        self._windows = SpeechWindows(self.model)
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
        return self._edges(self._windows.push(as_samples(samples, "pushed audio")))

    @staticmethod
    def push_together(pushes: Sequence[tuple[VadStream, Samples]]) -> list[list[SpeechEdge]]:
        """Append samples, which were checked, to different streams of one model; return the edges of each."""
        return [stream._edges(stream._windows.push(samples)) for stream, samples in pushes]

    def close(self) -> list[SpeechEdge]:
        """End the stream: classify the last partial window, and end ongoing speech."""
        if self._closed:
            return []
        self._closed = True
        edges = self._edges(self._windows.finish())
        return [*edges, self._end(self.n_samples)] if self.is_speech else edges

    def _edges(self, probabilities: Sequence[float]) -> list[SpeechEdge]:
        edges = []
        for self.probability in probabilities:
            self._position += WINDOW_SAMPLES
            if self.is_speech and self.probability >= self._threshold:
                self._silence = None
                continue
            edge = self._end_of_speech() if self.is_speech else self._start_of_speech()
            if edge is not None:
                edges.append(edge)
        return edges

    def _start_of_speech(self) -> SpeechEdge | None:
        if self.probability >= self._threshold and self._candidate is None:
            self._candidate = self._position - WINDOW_SAMPLES
        elif self.probability < self._exit_threshold:
            self._candidate = None
        if self._candidate is None or self._position - self._candidate < self._onset:
            return None
        start = max(self._last_end, self._candidate - self._pre_roll)
        self._candidate, self._silence, self.is_speech = None, None, True
        return SpeechEdge("start", start, min(self._position, self.n_samples))

    def _end_of_speech(self) -> SpeechEdge | None:
        if self.probability < self._exit_threshold and self._silence is None:
            self._silence = self._position - WINDOW_SAMPLES
        if self._silence is None or self._position - self._silence < self._hangover:
            return None
        return self._end(self._silence + self._post_roll)

    def _end(self, sample: int) -> SpeechEdge:
        self._last_end = min(sample, self._position, self.n_samples)
        self._silence, self.is_speech = None, False
        return SpeechEdge("end", self._last_end, min(self._position, self.n_samples))
