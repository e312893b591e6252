"""What the language probe costs once keys and values are there, and what it adds to a stream.

    python -m benchmarks language probe --size tiny --frames 300 1500 --rows 1 2 8
    python -m benchmarks language probe --model nano --frames 1500 --rows 8 20 --hop-frames 70

Random weights of a named size, loaded as any checkpoint is, or a model, in turns: the question put to the
general decoder step, to the first step, the whole probe of a window that is encoded already, as files are
probed (with a wide hop the stretches lie all over it), and one stretch of 3 s encoded by itself, as a session
hears one every 0.5 s.
Then the bundled model on a clip: the time inside the probe against all other time of the session, and the
session with and without probing. CPU time of the process (not the clock: other work beside it counts
less). Prints tables, then one JSON line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import sottovoce
from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_json
from sottovoce.audio.io import load_audio
from sottovoce.backends.by_step import first_step_by_bias
from sottovoce.backends.torch import TorchBackend
from sottovoce.language.probe import LanguageProbe, ProbedLanguage, ProbeOptions
from sottovoce.models.checkpoint.base import Checkpoint, expected_shapes
from sottovoce.models.dims import ModelDims
from sottovoce.streaming.session import Session
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput, Samples

SIZES = {"tiny": (384, 6, 4), "base": (512, 8, 6), "small": (768, 12, 12)}
Hear: TypeAlias = Callable[[LanguageProbe, Sequence[Tensor]], list[ProbedLanguage]]
WIDTH = 75
CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"


def random_backend(size: str, dtype: torch.dtype) -> TorchBackend:
    width, heads, layers = SIZES[size]
    dims = ModelDims(80, 1500, width, heads, layers, 51865, 448, width, heads, layers)
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape) * 0.02 for name, shape in expected_shapes(dims).items()}
    checkpoint = Checkpoint(name=size, dims=dims, tensors=tensors)
    return TorchBackend.from_checkpoint(checkpoint, device=torch.device("cpu"), dtype=dtype)


def the_backend(model: str | None, size: str, dtype: str) -> TorchBackend:
    """A model by its name or file, or random weights of a size."""
    if model is None:
        return random_backend(size, getattr(torch, dtype))
    backend = sottovoce.load_model(model, device="cpu", dtype=dtype).backend
    assert isinstance(backend, TorchBackend)
    return backend


def medians(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each side; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 5):
        for name, side in sides.items():
            began = time.process_time()
            side()
            if turn >= 5:
                times[name].append(1000 * (time.process_time() - began))
    return {name: round(float(np.median(found)), 2) for name, found in times.items()}


def measure(
    backend: TorchBackend, n_frames: int, n_rows: int, *, hop_frames: int, repeats: int
) -> dict[str, object]:
    """Milliseconds of one probe of the n_rows newest stretches, a hop apart, with keys and values ready."""
    tokenizer = Tokenizer.for_model(backend.dims.n_vocab)
    vocabulary = torch.tensor((*tokenizer.language_tokens, tokenizer.no_speech))
    encoded = EncoderOutput(
        torch.randn(1, n_frames, backend.dims.n_audio_state).to(backend.dtype), (n_frames,)
    )
    ends = [n_frames - hop_frames * row for row in range(n_rows)]
    spans = [(end - WIDTH, end) for end in ends if end >= WIDTH]
    probe = LanguageProbe(backend, tokenizer, tokenizer.language_codes)
    general = partial(first_step_by_bias, backend)
    asked = {"token": tokenizer.sot, "vocabulary": vocabulary}
    newest = torch.randn(backend.dims.n_mels, round(100 * ProbeOptions().width_s))
    sides: dict[str, Callable[[], object]] = {
        "general_ms": lambda: general(encoded, spans, **asked),
        "first_step_ms": lambda: backend.first_step(encoded, spans, **asked),
        "probe_ms": lambda: probe.detect_spans(encoded, spans),
        "hear_ms": lambda: probe.detect([newest]),
    }
    return {
        "dtype": str(backend.dtype).removeprefix("torch."),
        "n_frames": n_frames,
        "stretches": len(spans),
        **medians(sides, repeats),
    }


class Stopwatch:
    """Adds up the CPU time inside `LanguageProbe.detect`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.n_calls = 0

    def timing(self, hear: Hear) -> Hear:
        def timed(this: LanguageProbe, log_mels: Sequence[Tensor]) -> list[ProbedLanguage]:
            began = time.process_time()
            found = hear(this, log_mels)
            self.seconds += time.process_time() - began
            self.n_calls += len(log_mels)
            return found

        return timed


def listen(session: Session, audio: Samples) -> float:
    """Seconds of CPU for a whole clip in chunks of 0.5 s."""
    began = time.process_time()
    for start in range(0, len(audio), 8000):
        session.push(audio[start : start + 8000])
    session.close()
    return time.process_time() - began


def measure_session(dtype: str, repeats: int) -> dict[str, object]:
    """What the probe adds to a session of the bundled model, from the inside and from the outside."""
    model = sottovoce.load_model("nano", device="cpu", dtype=dtype)
    audio = load_audio(CLIP)
    inside, outside = [], []
    for turn in range(repeats + 1):
        alone_s = listen(model.session(languages=["en"]), audio)
        watch = Stopwatch()
        with patch.object(LanguageProbe, "detect", watch.timing(LanguageProbe.detect)):
            watching_s = listen(model.session(languages=["en", "de"]), audio)
        if turn:
            inside.append(watch.seconds / (watching_s - watch.seconds))
            outside.append(watching_s / alone_s - 1)
    return {
        "dtype": dtype,
        "n_probes": watch.n_calls,
        "inside_percent": round(100 * float(np.median(inside)), 2),
        "with_against_without_percent": round(100 * float(np.median(outside)), 2),
    }


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--model", help="A name or a file, in the place of random weights.")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--frames", type=int, nargs="+", default=[300, 1500])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--hop-frames", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=50)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, sessions = [], []
    for dtype in given.dtypes:
        backend = the_backend(given.model, given.size, dtype)
        for n_frames in given.frames:
            for n_rows in given.rows:
                rows.append(
                    measure(backend, n_frames, n_rows, hop_frames=given.hop_frames, repeats=given.repeats)
                )
                print(rows[-1], flush=True)
        sessions.append(measure_session(dtype, max(1, given.repeats // 10)))
        print(sessions[-1], flush=True)
    show_json(
        "language probe",
        {"model": given.model or given.size, "threads": 1, "rows": rows, "nano_sessions": sessions},
    )
