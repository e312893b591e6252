"""CTC networks from sound to text: a function, an ONNX file, or a model of transformers.

A recording is read in windows, which overlap so that frames near an edge come from the neighbour. Each window
runs by itself, as padding would change the output of many networks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sottovoce.audio.io import Recording
from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.ctc.emissions import as_arrays, checked, likely_blank, log_softmax
from sottovoce.ctc.labels import LabelList, LabelSource, labels_of
from sottovoce.ctc.options import CtcOptions
from sottovoce.errors import CheckpointError, InputError, MissingExtraError, OptionError, cause_of
from sottovoce.lm.base import Floats
from sottovoce.options.decoding import VadStreamOptions
from sottovoce.text.files import from_plain, read_toml
from sottovoce.types import SAMPLE_RATE, Samples, Segment, Transcript, Word

if TYPE_CHECKING:
    from sottovoce.audio.io import AudioSource

LogProbs = Callable[[Sequence[Samples]], Sequence[Any]]
"""Samples at 16 kHz of windows to log-probabilities (T, V) of each: arrays of any library."""
LONGEST_S = 30.0
OVERLAP_S = 2.0
"""Of windows, and at most a quarter of one, as for the CTC heads of Whisper."""


@dataclass(frozen=True, slots=True)
class AcousticModel:
    """A CTC network.

    log_probs: see `LogProbs`. labels: names of its outputs, and the index of the blank; None: the label that
    is likeliest in most frames. frame_s: seconds a frame. longest_s: of a window. language: a code, or "".

    Raises:
        OptionError: a duration that is not above 0.
    """

    log_probs: LogProbs
    labels: LabelList
    frame_s: float
    longest_s: float = LONGEST_S
    language: str = ""
    name: str = "network"

    def __post_init__(self) -> None:
        for name in ("frame_s", "longest_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise OptionError(f"{name}: expected seconds above 0, got {getattr(self, name)}")
        if self.longest_s < 4 * self.frame_s:
            raise OptionError(f"longest_s: expected at least four frames, got {self.longest_s}")

    def emissions(self, samples: Sequence[Samples]) -> list[Floats]:
        """Return log-probabilities (T, V) of each window of samples.

        Raises:
            InputError: the network gives other numbers of windows or labels, or no log-probabilities.
        """
        windows = self.log_probs(samples)
        if len(windows) != len(samples):
            raise InputError(f"{self.name}: expected emissions of {len(samples)} windows, got {len(windows)}")
        try:
            arrays = (as_arrays(each, None)[0] for each in windows)
            return [checked(array, None, len(self.labels.names))[0][0] for array in arrays]
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from error

    def whole_emissions(self, recording: Recording) -> Floats:
        """Return the log-probabilities (T, V) of a recording. Errors: as `recording_emissions`."""
        nothing = np.zeros((0, len(self.labels.names)), np.float32)
        return np.concatenate([nothing, *self.recording_emissions(recording)])

    def recording_emissions(self, recording: Recording) -> Iterator[Floats]:
        """Read a recording; yield its log-probabilities (T, V) in pieces that follow one another.

        Raises:
            AudioError: the recording cannot be read.
            InputError: as `emissions`, or another number of frames than `frame_s` says.
        """
        hop = self.frame_s * SAMPLE_RATE
        longest = int(self.longest_s / self.frame_s)
        overlap = min(round(OVERLAP_S / self.frame_s), longest // 4)
        start = n_done = 0  # frames
        held, n_taken = np.zeros(0, np.float32), 0
        with recording.open() as reader:
            for chunk in reader:
                held = np.concatenate((held, chunk.samples))
                while len(held) > round((start + longest) * hop) - n_taken:
                    (rows,) = self.emissions([held[: round((start + longest) * hop) - n_taken]])
                    last = start + longest - overlap // 2
                    if len(rows) < last - start:
                        raise InputError(
                            f"{self.name}: expected about {longest} frames of {self.frame_s:g} s in "
                            f"{longest * self.frame_s:g} s, got {len(rows)}"
                        )
                    yield rows[n_done - start : last - start]
                    n_done, start = last, start + longest - overlap
                    held, n_taken = held[round(start * hop) - n_taken :], round(start * hop)
        if len(held) >= hop:
            (rows,) = self.emissions([held])
            yield rows[n_done - start :]


class CtcModel:
    """Transcribes recordings by a CTC network and a search; made by `ctc_model`."""

    def __init__(self, network: AcousticModel) -> None:
        self.network = network
        self.name = network.name

    def decoder(self, blank: int | None = None, **given: Any) -> CtcDecoder:
        """Make the decoder of the network's labels and frames; arguments as those of `CtcDecoder`."""
        options = replace(given.pop("options", None) or CtcOptions(), frame_s=self.network.frame_s)
        names, known = self.network.labels
        return CtcDecoder(names, known if blank is None else blank, options=options, **given)

    def transcribe(
        self, source: AudioSource, *, decoder: CtcDecoder | None = None, sample_rate: int = SAMPLE_RATE
    ) -> Transcript:
        """Transcribe a recording; segments end at pauses, and all words have times and probabilities.

        source, sample_rate: as `Model.transcribe`. decoder: of `decoder`, with language models, hotwords or a
        lexicon; None: without.

        Raises:
            AudioError: the recording cannot be read.
            InputError: the network gives no log-probabilities of its labels.
            OptionError: no blank is known.
        """
        with Recording(source, sample_rate=sample_rate) as recording:
            pieces = self.network.recording_emissions(recording)
            first = next(pieces, None)
            if first is None:
                return Transcript((), self.network.language, recording.declared_s or 0.0, self.name)
            if decoder is None:
                decoder = self.decoder(likely_blank(first) if self.network.labels.blank is None else None)
            state = decoder.start()
            decoder.decode_chunk(state, first)
            for piece in pieces:
                decoder.decode_chunk(state, piece)
            duration_s = recording.declared_s or float(state.n_frames[0]) * self.network.frame_s
        (hypotheses,) = decoder.finish(state)
        segments = segments_of(hypotheses[0].words if hypotheses else (), self.network.language)
        return Transcript(tuple(segments), self.network.language, duration_s, self.name)


def segments_of(words: Sequence[Word], language: str) -> Iterator[Segment]:
    """Yield words as segments, which end at the pauses that end an utterance of a live session."""
    pause_s = VadStreamOptions().hangover_ms / 1000
    ends = [i for i in range(1, len(words)) if words[i].start - words[i - 1].end >= pause_s]
    bounds = zip([0, *ends], [*ends, len(words)], strict=True)
    for number, (first, end) in enumerate(bounds if words else ()):
        spoken = tuple(
            replace(word, word=f" {word.word}", language=language or None) for word in words[first:end]
        )
        logprob = float(np.mean(np.log([max(word.probability, 1e-10) for word in spoken])))
        text = "".join(word.word for word in spoken)
        yield Segment(
            number, spoken[0].start, spoken[-1].end, text, language, avg_logprob=logprob, words=spoken
        )


def is_ctc_network(name: str | Path) -> bool:
    """Whether a name is the TOML file of an ONNX network, or a folder of an `AutoModelForCTC`."""
    path = Path(name).expanduser()
    try:
        config = json.loads((path / "config.json").read_bytes()) if path.is_dir() else {}
    except (OSError, ValueError):
        return False
    architectures = config.get("architectures") if isinstance(config, dict) else None
    return path.suffix == ".toml" or any(str(each).endswith("ForCTC") for each in architectures or ())


def ctc_model(
    network: LogProbs | str | Path,
    *,
    labels: LabelSource | None = None,
    blank: int | None = None,
    frame_s: float | None = None,
    longest_s: float | None = None,
    language: str | None = None,
    logits: bool = False,
) -> CtcModel:
    """Make a model of a CTC network.

    network: a function of windows of samples (float32, 16 kHz) to log-probabilities (T, V) of each; a TOML
    file of an ONNX network, see `OnnxDescription`; or the folder or hub id of an `AutoModelForCTC` of
    transformers with its processor.
    labels: as in `labels_of`. blank: their blank, where they don't name it. frame_s: seconds of a frame.
    logits: whether it returns logits. These four are for functions alone.
    longest_s: of a window. language: a code. None: those of the file, else 30 s and none.

    Raises:
        OptionError: missing or contradicting arguments.
        CheckpointError: a file cannot be read.
        MissingExtraError: without onnxruntime or transformers.
    """
    given = {"longest_s": longest_s, "language": language}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not callable(network):
        if labels is not None or blank is not None or frame_s is not None or logits:
            raise OptionError(
                f"{network}: expected no labels, blank, frame_s or logits, which its files have"
            )
        path = Path(network).expanduser()
        read = _onnx_network(path) if path.suffix == ".toml" else _transformers_network(str(network))
        return CtcModel(replace(read, **chosen))
    if labels is None or frame_s is None:
        raise OptionError("ctc_model: expected labels and frame_s with a function, got none")
    listed = labels_of(labels)
    listed = listed if blank is None else LabelList(listed.names, blank)

    def normalised(samples: Sequence[Samples]) -> list[Floats]:
        return [log_softmax(as_arrays(each, None)[0].astype(np.float32)) for each in network(samples)]

    log_probs = normalised if logits else network
    return CtcModel(AcousticModel(log_probs, listed, frame_s, **chosen))


class OnnxDescription(msgspec.Struct, forbid_unknown_fields=True):
    """A TOML file of an ONNX network that takes samples (1, n) float32 at 16 kHz.

    model, labels: files next to it; labels also a list. samples, lengths: names of the inputs; lengths (1,)
    int64 may be left out. output: (1, T, V), log-probabilities, or logits. n_frames: of the output that holds
    (1,) frames, if there is one.
    """

    model: str
    labels: str | list[str]
    frame_ms: float
    samples: str
    output: str
    lengths: str | None = None
    n_frames: str | None = None
    logits: bool = False
    blank: int | None = None
    longest_s: float = LONGEST_S
    language: str = ""


def _onnx_network(path: Path) -> AcousticModel:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "onnx", str(path)) from error
    about = from_plain(OnnxDescription, read_toml(path, "a description of an ONNX network"), str(path))
    file = path.parent / about.model
    try:
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base
        raise CheckpointError(f"{file}: expected an ONNX network, got {cause_of(error)}") from error
    for kind, names, there in (
        ("input", (about.samples, about.lengths), session.get_inputs()),
        ("output", (about.output, about.n_frames), session.get_outputs()),
    ):
        present = [each.name for each in there]
        missing = next((name for name in names if name is not None and name not in present), None)
        if missing is not None:
            raise OptionError(
                f"{path}: expected an {kind} of {file.name} ({', '.join(present)}), got {missing!r}"
            )
    labels = labels_of(path.parent / about.labels if isinstance(about.labels, str) else about.labels)
    outputs = [about.output] + ([] if about.n_frames is None else [about.n_frames])

    def run(samples: Samples) -> Floats:
        given: dict[str, Any] = {about.samples: samples[None]}
        if about.lengths is not None:
            given[about.lengths] = np.array([len(samples)])
        rows, *counts = session.run(outputs, given)
        rows = rows[0, : int(counts[0][0])] if counts else rows[0]
        return log_softmax(rows.astype(np.float32)) if about.logits else rows

    return AcousticModel(
        lambda windows: [run(np.ascontiguousarray(samples, np.float32)) for samples in windows],
        labels if about.blank is None else LabelList(labels.names, about.blank),
        about.frame_ms / 1000,
        about.longest_s,
        about.language,
        path.stem,
    )


def _transformers_network(name: str) -> AcousticModel:
    try:
        import torch
        from transformers import AutoModelForCTC, AutoProcessor
    except ImportError as error:
        raise MissingExtraError("transformers", "transformers", f"the network {name}") from error
    try:
        network = AutoModelForCTC.from_pretrained(name).eval()
        processor = AutoProcessor.from_pretrained(name)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{name}: expected a CTC network of transformers, got {reason}") from error
    labels = labels_of(processor)
    rate = processor.feature_extractor.sampling_rate
    if rate != SAMPLE_RATE:
        raise OptionError(f"{name}: expected a network of {SAMPLE_RATE} Hz, got {rate}")

    def run(samples: Samples) -> Floats:
        given = processor(samples, sampling_rate=SAMPLE_RATE, return_tensors="pt")
        with torch.no_grad():
            return log_softmax(network(**given).logits[0].float().numpy())

    # Of two lengths, as the edges of convolutions have fewer frames.
    short, long = (len(run(np.zeros(n * SAMPLE_RATE, np.float32))) for n in (1, 3))
    return AcousticModel(
        lambda windows: [run(samples) for samples in windows],
        labels,
        round(2.0 / (long - short), 6),
        name=Path(name).name,
    )
