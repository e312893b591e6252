"""CTC networks from sound to emissions: a function, an ONNX file, or a model of transformers.

A recording is read in windows of one length, whose inner frames are used: a network sees the sound on both
sides of them. The last window reaches back to that length, as networks are less accurate on shorter sound
than that of their training (docs/research/ctc.md, windows).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.ctc.emissions import as_arrays, checked, likely_blank, log_softmax
from sottovoce.ctc.labels import PIECE_START, LabelList, labels_of, with_space
from sottovoce.ctc.search import PrefixState
from sottovoce.errors import CheckpointError, InputError, OptionError, expecting, needs
from sottovoce.lm.base import Floats
from sottovoce.models.sources import ONNX_ASR
from sottovoce.text.files import from_plain, read_toml
from sottovoce.types import SAMPLE_RATE, AudioChunk, Samples, Word

LogProbs = Callable[[Sequence[Samples]], Sequence[Any]]
"""Samples at 16 kHz of windows to log-probabilities (T, V) of each: arrays of any library."""
StreamStep = Callable[[Samples, Any], tuple[Any, Any]]
"""Next samples of a stream and the state, None at first, to log-probabilities (T, V) and the new state."""
LONGEST_S = 30.0
CONTEXT_SHARE = 1 / 6
"""Of a window, on either side. Source: transformers' `pipeline("automatic-speech-recognition")`, whose
documentation also takes windows of 30 s.
"""


@dataclass(frozen=True, slots=True, eq=False)
class EmissionWindow:
    """Samples (n,) of a window, whose rows [first:last] follow those of the window before."""

    samples: Samples
    first: int
    last: int | None


class EmissionStream:
    """The emissions of one stream of a network that has a state.

    n_chunk, n_frame: samples of a step and of a frame.
    """

    def __init__(self, step: StreamStep, n_chunk: int, n_frame: int) -> None:
        self._step, self._n_chunk, self._n_frame = step, n_chunk, n_frame
        self._state: object = None
        self._held = np.zeros(0, np.float32)

    def read(self, samples: Samples, *, is_last: bool = False) -> list[Floats]:
        """Return log-probabilities (T, V) of each step that samples (n,) complete, at the end of the rest."""
        self._held = np.concatenate((self._held, samples))
        rows: list[Floats] = []
        while len(self._held) >= self._n_chunk:
            rows.append(self._stepped(self._held[: self._n_chunk]))
            self._held = self._held[self._n_chunk :]
        if is_last and len(self._held) >= self._n_frame:
            padded = np.pad(self._held, (0, self._n_chunk - len(self._held)))
            rows.append(self._stepped(padded)[: math.ceil(len(self._held) / self._n_frame)])
        return rows

    def _stepped(self, samples: Samples) -> Floats:
        rows, self._state = self._step(samples, self._state)
        return as_arrays(rows, None)[0]


@dataclass(frozen=True)
class AcousticModel:
    """A CTC network.

    log_probs: see `LogProbs`. labels: names of its outputs, and the index of the blank; None: the likeliest
    label in silence. frame_s: seconds a frame. longest_s: of a window. context_s: on both sides of the frames
    that are used; None: a sixth of a window. language: a code, or "". n_bytes: of its weights, if known.
    decoder: a `decoder.toml` of its language models, or None. stream: begins a stream of a network that has a
    state and reads recordings without windows; or None.

    Raises:
        OptionError: a duration that is not above 0, or windows that are all context.
    """

    log_probs: LogProbs
    labels: LabelList
    frame_s: float
    longest_s: float = LONGEST_S
    context_s: float | None = None
    language: str = ""
    name: str = "network"
    n_bytes: int = 0
    decoder: Path | None = None
    stream: Callable[[], EmissionStream] | None = None

    def __post_init__(self) -> None:
        for name in ("frame_s", "longest_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise OptionError(f"{name}: expected seconds above 0, got {getattr(self, name)}")
        if self.longest_s < 4 * self.frame_s:
            raise OptionError(f"longest_s: expected at least four frames, got {self.longest_s}")
        if self.context_s is not None and not 0 <= self.context_s < self.longest_s / 2:
            raise OptionError(
                f"context_s: expected from 0 to below half of a window, {self.longest_s / 2:g}, "
                f"got {self.context_s}"
            )

    @property
    def margin_s(self) -> float:
        """Seconds of context on either side of the frames that are used."""
        return self.longest_s * CONTEXT_SHARE if self.context_s is None else self.context_s

    @cached_property
    def blank(self) -> int:
        """Raises: OptionError if the labels do not name it, and no label is the likeliest in silence."""
        if self.labels.blank is not None:
            return self.labels.blank
        blank = likely_blank(self.emissions([np.zeros(SAMPLE_RATE, np.float32)])[0])
        if blank is None:
            raise OptionError(f"{self.name}: expected the index of the blank (blank), got none")
        return blank

    def samples_of(self, n_frames: int) -> int:
        return round(n_frames * self.frame_s * SAMPLE_RATE)

    def emissions(self, samples: Sequence[Samples]) -> list[Floats]:
        """Return log-probabilities (T, V) of each window of samples.

        Raises:
            InputError: the network gives other numbers of windows or labels, or no log-probabilities.
        """
        windows = self.log_probs(samples)
        if len(windows) != len(samples):
            raise InputError(f"{self.name}: expected emissions of {len(samples)} windows, got {len(windows)}")
        return self._checked(windows)

    def _checked(self, windows: Sequence[Any]) -> list[Floats]:
        try:
            arrays = (as_arrays(each, None)[0] for each in windows)
            return [checked(array, None, len(self.labels.names))[0][0] for array in arrays]
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from error

    def streamed(self, stream: EmissionStream, samples: Samples, *, is_last: bool = False) -> Floats:
        """Return the log-probabilities (T, V) that samples (n,) add to a stream. Errors: as `emissions`."""
        empty = np.zeros((0, len(self.labels.names)), np.float32)
        return np.concatenate([empty, *self._checked(stream.read(samples, is_last=is_last))])

    def steps(self, stream: EmissionStream, chunks: Iterable[AudioChunk]) -> Iterator[Callable[[], Floats]]:
        """Yield the calls of `streamed` that read a recording."""
        for chunk in chunks:
            yield partial(self.streamed, stream, chunk.samples)
        yield partial(self.streamed, stream, np.zeros(0, np.float32), is_last=True)

    def windows(self, chunks: Iterable[AudioChunk]) -> Iterator[EmissionWindow]:
        """Cut a recording into windows."""
        longest = int(self.longest_s / self.frame_s)
        context = min(round(self.margin_s / self.frame_s), (longest - 1) // 2)
        start = n_done = first = 0  # frames; `first` is where the held samples begin
        held = np.zeros(0, np.float32)
        for chunk in chunks:
            held = np.concatenate((held, chunk.samples))
            while len(held) > self.samples_of(start + longest) - self.samples_of(first):
                begin, end = (self.samples_of(at) - self.samples_of(first) for at in (start, start + longest))
                last = start + longest - context
                yield EmissionWindow(held[begin:end], n_done - start, last - start)
                held, first = held[begin:], start  # the last window reaches back
                start, n_done = last - context, last
        n_frames = math.ceil((self.samples_of(first) + len(held)) / self.samples_of(1))
        begin = max(0, n_frames - longest)
        rest = held[self.samples_of(begin) - self.samples_of(first) :]
        if len(rest) >= self.samples_of(1):
            yield EmissionWindow(rest, n_done - begin, None)

    def rows(self, windows: Sequence[EmissionWindow], emissions: Sequence[Floats]) -> Iterator[Floats]:
        """Yield the rows (T, V) that are used of each window.

        Raises:
            InputError: another number of frames than `frame_s` says.
        """
        for window, rows in zip(windows, emissions, strict=True):
            seconds = len(window.samples) / SAMPLE_RATE
            expected = round(seconds / self.frame_s)
            least = 0.9 * expected - EDGE_FRAMES if window.last is None else window.last
            if not least <= len(rows) <= 1.1 * expected + EDGE_FRAMES:
                raise InputError(
                    f"{self.name}: expected about {expected} frames of {self.frame_s:g} s in "
                    f"{seconds:g} s, got {len(rows)}"
                )
            yield rows[window.first : window.last]

    def whole_emissions(self, chunks: Iterable[AudioChunk]) -> Floats:
        """Return the log-probabilities (T, V) of a recording. Errors: as `emissions` and `rows`."""
        pieces = [np.zeros((0, len(self.labels.names)), np.float32)]
        if self.stream is not None:
            pieces += (step() for step in self.steps(self.stream(), chunks))
        else:
            for window in self.windows(chunks):
                pieces += self.rows([window], self.emissions([window.samples]))
        return np.concatenate(pieces)

    def blanks(self, n_frames: int) -> Floats:
        """Return log-probabilities (n_frames, V) of silence."""
        n_labels = len(self.labels.names)
        row = np.full(n_labels, IMPROBABLE, np.float32)
        row[self.blank] = 1 - (n_labels - 1) * IMPROBABLE
        return np.tile(np.log(row), (n_frames, 1))


EDGE_FRAMES = 3
"""Frames by which a network may differ from a short window (a tenth of a long one), as convolutions without
padding drop some at both ends. Set by hand.
"""
IMPROBABLE = 1e-9
"""Probability of a label where nothing is spoken: negligible, and far from the limits of float32."""


def new_words(
    decoder: CtcDecoder, search: PrefixState, language: str, *, offset_s: float = 0.0, final: bool = False
) -> list[Word]:
    """Return the words of one stream that were committed since the last call, and at the end all others.

    They are as in transcripts, with the space before them, if any, and `offset_s` later.
    """
    words: Sequence[Word] = [word for event in decoder.committed(search) for word in event.words]
    if final:
        (hypotheses,) = decoder.finish(search)
        n_before = len(search.committed[0].words)
        words = [*words, *(hypotheses[0].words[n_before:] if hypotheses else ())]
    return spaced(words, language, offset_s)


def spaced(words: Sequence[Word], language: str, offset_s: float) -> list[Word]:
    return [
        replace(
            word,
            word=with_space(word.word),
            start=round(word.start + offset_s, 3),
            end=round(word.end + offset_s, 3),
            language=language or None,
        )
        for word in words
    ]


def function_network(
    function: LogProbs | StreamStep,
    labels: LabelList,
    *,
    frame_s: float,
    chunk_s: float | None = None,
    logits: bool = False,
) -> AcousticModel:
    """Make a network of a function. chunk_s: seconds of each `StreamStep`; None: it is a `LogProbs`."""

    def normalised(rows: Any) -> Floats:
        return log_softmax(as_arrays(rows, None)[0].astype(np.float32)) if logits else rows

    call: Any = function

    def log_probs(windows: Sequence[Samples]) -> list[Floats]:
        rows = call(windows)
        if not isinstance(rows, Iterable):
            raise InputError(f"network: expected a list of emissions (T, V), got {type(rows).__name__}")
        return [*map(normalised, rows)]

    def step(samples: Samples, state: Any) -> tuple[Floats, Any]:
        result = call(samples, state)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise InputError(f"network: expected emissions (T, V) and a state, got {type(result).__name__}")
        return normalised(result[0]), result[1]

    if chunk_s is None:
        return AcousticModel(log_probs, labels, frame_s)
    return streaming_network(step, labels, chunk_s=chunk_s, frame_s=frame_s)


def streaming_network(
    step: StreamStep, labels: LabelList, *, chunk_s: float, frame_s: float
) -> AcousticModel:
    """Make a network of its steps. Raises: OptionError for chunks that are no whole number of frames."""
    n_frames = round(chunk_s / frame_s)
    if n_frames < 1 or abs(n_frames * frame_s - chunk_s) > 1e-6:
        raise OptionError(f"chunk_s: expected a multiple of frame_s, {frame_s:g}, got {chunk_s:g}")
    stream = partial(EmissionStream, step, round(chunk_s * SAMPLE_RATE), round(frame_s * SAMPLE_RATE))

    def log_probs(windows: Sequence[Samples]) -> list[Floats]:
        return [np.concatenate(stream().read(samples, is_last=True)) for samples in windows]

    return AcousticModel(log_probs, labels, frame_s, stream=stream)


def read_network(name: str) -> AcousticModel:
    """Read a network of a TOML file, "onnx-asr:NAME", or of transformers. Errors: `ctc_model`."""
    path = Path(name).expanduser()
    if name.startswith(ONNX_ASR):
        return _onnx_asr_network(name.removeprefix(ONNX_ASR))
    return _onnx_network(path) if path.suffix == ".toml" else _transformers_network(name)


def together(run: Callable[[Samples], Floats]) -> LogProbs:
    """Make a `LogProbs` of a network that takes windows of one length (B, n) and returns (B, T, V).

    Windows of other lengths run apart, as padding changes the output of many networks.
    """

    def log_probs(windows: Sequence[Samples]) -> list[Floats]:
        by_length: dict[int, list[int]] = {}
        for index, samples in enumerate(windows):
            by_length.setdefault(len(samples), []).append(index)
        rows: dict[int, Floats] = {}
        for indices in by_length.values():
            rows |= zip(indices, run(np.stack([windows[index] for index in indices])), strict=True)
        return [rows[index] for index in range(len(windows))]

    return log_probs


class OnnxDescription(msgspec.Struct, forbid_unknown_fields=True):
    """A TOML file of an ONNX network that takes samples (B, n) float32 at 16 kHz.

    model, labels, decoder: files next to it; labels also a list. samples, lengths: names of inputs; lengths
    (B,) int64 may be left out. output: (B, T, V), log-probabilities, or logits. n_frames: of the output that
    holds (B,) frames, if there is one. B is 1 if the file says so. states: of a network that reads streams in
    chunks of chunk_ms, inputs, zeros at first, and the outputs with their next values; B is 1. The others are
    fields of `AcousticModel`.
    """

    model: str
    labels: str | list[str]
    frame_ms: float
    samples: str
    output: str
    lengths: str | None = None
    n_frames: str | None = None
    states: dict[str, str] = {}
    chunk_ms: float | None = None
    logits: bool = False
    blank: int | None = None
    longest_s: float = LONGEST_S
    context_s: float | None = None
    language: str = ""
    decoder: str | None = None


def _onnx_network(path: Path) -> AcousticModel:
    about = from_plain(OnnxDescription, read_toml(path, "a description of an ONNX network"), str(path))
    with needs("onnxruntime", "onnx", str(path)):
        import onnxruntime
    file = path.parent / about.model
    with expecting(file, "an ONNX network", CheckpointError, (Exception,)):  # they have no common base
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    if (about.chunk_ms is None) != (not about.states):
        raise OptionError(f"{path}: expected both states and chunk_ms, or neither, got one of them")
    inputs = {each.name: each for each in session.get_inputs()}
    for kind, names, present in (
        ("input", (about.samples, about.lengths, *about.states), list(inputs)),
        ("output", (about.output, about.n_frames, *about.states.values()), _names(session.get_outputs())),
    ):
        missing = next((name for name in names if name is not None and name not in present), None)
        if missing is not None:
            raise OptionError(
                f"{path}: expected an {kind} of {file.name} ({', '.join(present)}), got {missing!r}"
            )
    unnamed = inputs.keys() - {about.samples, about.lengths, *about.states}
    if unnamed:
        raise OptionError(
            f"{path}: expected the name of every input of {file.name} ({', '.join(inputs)}), got none of "
            f"{', '.join(sorted(unnamed))}"
        )
    labels = labels_of(path.parent / about.labels if isinstance(about.labels, str) else about.labels)
    labels = labels if about.blank is None else LabelList(labels.names, about.blank)
    outputs = [about.output, *about.states.values()] + ([] if about.n_frames is None else [about.n_frames])
    n_states, frame_s = len(about.states), about.frame_ms / 1000

    def run(samples: Samples, state: Sequence[Floats]) -> tuple[Floats, list[Floats]]:
        given: dict[str, Any] = {about.samples: np.ascontiguousarray(samples, np.float32)}
        if about.lengths is not None:
            given[about.lengths] = np.full(len(samples), samples.shape[1])
        rows, *others = session.run(outputs, given | dict(zip(about.states, state, strict=True)))
        rows = rows[:, : int(others[-1][0])] if about.n_frames is not None else rows
        return (log_softmax(rows.astype(np.float32)) if about.logits else rows), others[:n_states]

    def step(samples: Samples, state: list[Floats] | None) -> tuple[Floats, list[Floats]]:
        rows, state = run(samples[None], state or [_zeros(inputs[name]) for name in about.states])
        return rows[0], state

    alike = together(lambda samples: run(samples, ())[0])
    if about.chunk_ms is not None:
        network = streaming_network(step, labels, chunk_s=about.chunk_ms / 1000, frame_s=frame_s)
    elif inputs[about.samples].shape[0] == 1:
        network = AcousticModel(
            lambda windows: [rows for window in windows for rows in alike([window])], labels, frame_s
        )
    else:
        network = AcousticModel(alike, labels, frame_s)
    return replace(
        network,
        longest_s=about.longest_s,
        context_s=about.context_s,
        language=about.language,
        name=path.stem,
        n_bytes=file.stat().st_size,
        decoder=None if about.decoder is None else path.parent / about.decoder,
    )


def _names(nodes: Sequence[Any]) -> list[str]:
    return [node.name for node in nodes]


def _zeros(node: Any) -> Floats:
    """Return the first state of an input; dimensions that the file leaves open are 1."""
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    shape = [size if isinstance(size, int) else 1 for size in node.shape]
    return np.zeros(shape, "float32" if kind == "float" else kind)


def _onnx_asr_network(name: str) -> AcousticModel:
    """Load a network of onnx-asr by its name, or from a folder whose config.json has its `model_type`."""
    with needs("onnx_asr", "onnx", f"the network {name}"):
        import onnx_asr
        from onnx_asr.asr import _AsrWithCtcDecoding
    folder = Path(name).expanduser()
    given = (None, folder) if folder.is_dir() else (name, None)
    with expecting(name, "a network of onnx-asr", CheckpointError, (Exception,)):
        adapter = onnx_asr.load_model(*given, providers=["CPUExecutionProvider"])
    asr: Any = adapter.asr
    resampler: Any = adapter.resampler  # typed for some rates
    if not isinstance(asr, _AsrWithCtcDecoding):
        raise CheckpointError(f"{name}: expected a CTC network of onnx-asr, got a {type(asr).__name__}")
    frame_s = asr.window_step * asr._subsampling_factor
    pieces = [asr._vocab.get(label, "<blank>") for label in range(asr._vocab_size)]
    if any(len(piece) > 1 and piece.startswith(" ") for piece in pieces):  # of SentencePiece
        pieces = [piece.replace(" ", PIECE_START) for piece in pieces]

    def run(samples: Samples) -> Floats:
        lengths = np.full(len(samples), samples.shape[1])
        resampled = resampler(samples, lengths, SAMPLE_RATE)
        rows, counts = asr._encode(*asr._preprocessor(*resampled))
        n_frames = min(int(counts[0]), math.ceil(samples.shape[1] / SAMPLE_RATE / frame_s))
        return log_softmax(rows[:, :n_frames].astype(np.float32))

    return AcousticModel(
        together(run), LabelList(tuple(pieces), int(asr._blank_idx)), frame_s, name=folder.name
    )


def _transformers_network(name: str) -> AcousticModel:
    with needs("transformers", "transformers", f"the network {name}"):
        import torch
        from transformers import AutoModelForCTC, AutoProcessor
    causes = (OSError, ValueError, KeyError)
    with expecting(name, "a CTC network of transformers", CheckpointError, causes):
        network = AutoModelForCTC.from_pretrained(name).eval()
        processor = AutoProcessor.from_pretrained(name)  # type: ignore[no-untyped-call]
    labels = labels_of(processor)
    blank = getattr(network.config, "blank_token_id", None)  # of Omnilingual, where it is no padding
    labels = labels if blank is None else LabelList(labels.names, blank)
    rate = processor.feature_extractor.sampling_rate
    if rate != SAMPLE_RATE:
        raise OptionError(f"{name}: expected a network of {SAMPLE_RATE} Hz, got {rate}")

    def run(samples: Samples) -> Floats:
        given = processor([*samples], sampling_rate=SAMPLE_RATE, return_tensors="pt")
        with torch.no_grad():
            return log_softmax(network(**given).logits.float().numpy())

    # Of two lengths, as the edges of convolutions have fewer frames.
    short, long = (run(np.zeros((1, n * SAMPLE_RATE), np.float32)).shape[1] for n in (1, 3))
    return AcousticModel(
        together(run),
        labels,
        round(2.0 / (long - short), 6),
        name=Path(name).name,
        n_bytes=sum(tensor.numel() * tensor.element_size() for tensor in network.parameters()),
    )
