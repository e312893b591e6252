"""Speed, memory and word error beside openai-whisper and faster-whisper: same weights, same audio.

    python benchmarks/offline.py --model nano --clips examples/clips/manifest.jsonl
    python benchmarks/offline.py --random base                 # random weights of base dimensions
    python benchmarks/offline.py --model large-v3-turbo --clips my.jsonl   # where the weights are at hand

Each engine lives in a process of its own and all of them take turns in one run, so that a noisy
machine disturbs all alike; a figure is the median of the rounds. With --threads 1 time is the process's own
(what it would take alone on a core), with more it is the clock's. Peak memory is the process's. With
random weights the text means nothing: every engine decodes a fixed number of tokens, and no word
error is given. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from sottovoce.audio.io import load_audio
from sottovoce.evaluation.wer import Utterance, score
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.load import load_checkpoint
from sottovoce.types import SAMPLE_RATE, Samples

ENGINES = (
    "ours float32",
    "ours bfloat16",
    "ours int8",
    "openai-whisper float32",
    "faster-whisper float32",
    "faster-whisper int8",
)
MODES = ("encoder", "greedy", "beam 5")
N_TOKENS = 60
"""Tokens that every engine decodes a window with random weights."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One file to transcribe."""

    path: str
    language: str
    text: str

    @property
    def samples(self) -> Samples:
        return load_audio(self.path)


@dataclass(frozen=True, slots=True)
class Task:
    """What the engines are measured on. fixed_tokens: random weights, decode so many tokens a window."""

    checkpoint: Checkpoint
    recordings: tuple[Recording, ...]
    fixed_tokens: int | None

    @property
    def seconds(self) -> float:
        return sum(len(recording.samples) for recording in self.recordings) / SAMPLE_RATE


class Engine(Protocol):
    """One program with the task's weights: encode one window, or give the text of a recording."""

    def encode(self, samples: Samples) -> None: ...

    def text(self, samples: Samples, language: str, beam_size: int) -> str: ...


@dataclass(slots=True)
class Measured:
    """Figures of one engine: seconds by mode and round, texts by mode, peak resident memory."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    peak_mb: float = 0.0


class Ours:
    def __init__(self, task: Task, folder: Path, dtype: str) -> None:
        from sottovoce.api import Model
        from sottovoce.backends.registry import BACKENDS, choose_number_format

        device = torch.device("cpu")
        backend = BACKENDS["torch"](task.checkpoint, device, choose_number_format(dtype, device))
        self.model = Model(task.checkpoint, backend)
        self.fixed_tokens = task.fixed_tokens

    def encode(self, samples: Samples) -> None:
        from sottovoce.audio.mel import log_mel, window_features

        self.model.backend.encode(window_features([log_mel(samples, self.model.backend.dims.n_mels)]))

    def text(self, samples: Samples, language: str, beam_size: int) -> str:
        from sottovoce.decoding.fallback import FallbackOptions
        from sottovoce.decoding.options import DecodingOptions
        from sottovoce.offline.options import TranscribeOptions

        decoding = DecodingOptions(
            beam_size=beam_size if beam_size > 1 else None,
            sample_len=self.fixed_tokens,
            without_timestamps=True,
        )
        options = TranscribeOptions(decoding=decoding, fallback=FallbackOptions(temperatures=(0.0,)))
        return "".join(s.text for s in self.model.transcribe(samples, language=language, options=options))


class OpenAI:
    def __init__(self, task: Task, folder: Path) -> None:
        from references import openai_model

        self.model = openai_model(task.checkpoint, folder)
        self.fixed_tokens = task.fixed_tokens

    def encode(self, samples: Samples) -> None:
        import whisper

        mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(samples), self.model.dims.n_mels)
        with torch.no_grad():
            self.model.encoder(mel[None])

    def text(self, samples: Samples, language: str, beam_size: int) -> str:
        import whisper

        result = whisper.transcribe(
            self.model,
            samples,
            language=language,
            temperature=0.0,
            beam_size=beam_size if beam_size > 1 else None,
            sample_len=self.fixed_tokens,
            without_timestamps=True,
            fp16=False,
        )
        return str(result["text"])


class Faster:
    def __init__(self, task: Task, folder: Path, compute_type: str) -> None:
        from references import faster_model

        self.model = faster_model(task.checkpoint, folder, compute_type)
        self.fixed_tokens = task.fixed_tokens

    def encode(self, samples: Samples) -> None:
        from faster_whisper.audio import pad_or_trim

        features = pad_or_trim(self.model.feature_extractor(samples))
        np.asarray(self.model.encode(features))

    def text(self, samples: Samples, language: str, beam_size: int) -> str:
        segments, _ = self.model.transcribe(
            samples,
            language=language,
            temperature=0.0,
            beam_size=beam_size,
            max_new_tokens=self.fixed_tokens,
            without_timestamps=True,
        )
        return "".join(segment.text for segment in segments)


BUILDERS: dict[str, Callable[[Task, Path], Engine]] = {
    "ours float32": lambda task, folder: Ours(task, folder, "float32"),
    "ours bfloat16": lambda task, folder: Ours(task, folder, "bfloat16"),
    "ours int8": lambda task, folder: Ours(task, folder, "int8"),
    "openai-whisper float32": OpenAI,
    "faster-whisper float32": lambda task, folder: Faster(task, folder, "float32"),
    "faster-whisper int8": lambda task, folder: Faster(task, folder, "int8"),
}


def serve(name: str, task: Task, threads: int, pipe: Connection) -> None:
    """An engine's process: builds it, then runs a mode each time it is asked, until told to stop."""
    torch.set_num_threads(threads)
    windows = [recording.samples for recording in task.recordings]
    with tempfile.TemporaryDirectory() as folder:
        engine = BUILDERS[name](task, Path(folder))
        engine.encode(windows[0])
        pipe.send("ready")
        clock = time.process_time if threads == 1 else time.perf_counter
        while (mode := pipe.recv()) is not None:
            began = clock()
            texts = run_mode(engine, mode, task, windows)
            pipe.send((clock() - began, texts))
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)


def run_mode(engine: Engine, mode: str, task: Task, windows: list[Samples]) -> list[str]:
    """The texts of the recordings; none when only encoding."""
    if mode == "encoder":
        for samples in windows:
            engine.encode(samples)
        return []
    beam_size = 5 if mode == "beam 5" else 1
    return [
        engine.text(samples, recording.language, beam_size)
        for samples, recording in zip(windows, task.recordings, strict=True)
    ]


def measure(
    task: Task, engines: list[str], modes: list[str], rounds: int, threads: int
) -> dict[str, Measured]:
    """Run all engines in turn; the first round warms up and is left out."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for name in engines:
        pipes[name], other = context.Pipe()
        process = context.Process(target=serve, args=(name, task, threads, other), daemon=True)
        process.start()
        processes.append(process)
        if pipes[name].recv() != "ready":
            raise SystemExit(f"{name}: did not start")
    measured = {name: Measured() for name in engines}
    for number in range(rounds + 1):
        for mode in modes:
            for name in engines:
                pipes[name].send(mode)
                seconds, texts = pipes[name].recv()
                if number:
                    measured[name].seconds.setdefault(mode, []).append(seconds)
                    measured[name].texts[mode] = texts
    for name in engines:
        pipes[name].send(None)
        measured[name].peak_mb = pipes[name].recv()
    return measured


def random_checkpoint(size: str) -> Checkpoint:
    """Seeded random weights of a known size, scaled so that activations stay sane."""
    from references import RANDOM_DIMS

    from sottovoce.models.checkpoint.base import expected_shapes
    from sottovoce.models.dims import ModelDims

    dims = ModelDims(*RANDOM_DIMS[size])
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in expected_shapes(dims).items():
        scale = 0.02 if len(shape) > 1 else 0.0
        tensors[name] = torch.randn(shape, generator=generator) * scale
        if name.endswith(("ln.weight", "ln_post.weight")):
            tensors[name] = torch.ones(shape)
    return Checkpoint(name=f"random-{size}", dims=dims, tensors=tensors)


def read_manifest(path: Path) -> tuple[Recording, ...]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return tuple(
        Recording(str(path.parent / line["file"]), line["language"], line["text"])
        for line in lines
        if isinstance(line["language"], str)
    )


def report(task: Task, measured: dict[str, Measured], modes: list[str]) -> dict[str, dict[str, object]]:
    """Print the table; return the same figures."""
    windows = len(task.recordings)
    figures: dict[str, dict[str, object]] = {}
    print(f"{windows} recordings, {task.seconds:.0f} s of speech, medians; encoder: ms a 30 s window")
    head = "".join(f"{mode if mode == 'encoder' else mode + ' xRT':>14}" for mode in modes)
    print(f"{'':24}{head}{'peak MB':>10}{'WER':>8}")
    for name, one in measured.items():
        row: dict[str, object] = {"peak_mb": round(one.peak_mb)}
        cells = ""
        for mode in modes:
            median = statistics.median(one.seconds[mode])
            row[f"{mode} s"] = round(median, 4)
            shown = median / windows * 1e3 if mode == "encoder" else task.seconds / median
            cells += f"{shown:14.1f}"
        wer = None if task.fixed_tokens else word_error_rate(task, one)
        row["wer"] = wer
        print(f"{name:24}{cells}{one.peak_mb:10.0f}{'' if wer is None else format(wer, '8.1%')}")
        figures[name] = row
    return figures


def word_error_rate(task: Task, measured: Measured) -> float:
    texts = next(texts for mode, texts in measured.texts.items() if mode != "encoder")
    pairs = zip(task.recordings, texts, strict=True)
    return score([Utterance(r.text, text, r.language) for r, text in pairs]).overall.wer.rate


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="nano")
    parser.add_argument(
        "--random", choices=["tiny", "base", "small", "turbo"], help="random weights of this size"
    )
    parser.add_argument(
        "--clips", type=Path, default=Path(__file__).parents[1] / "examples/clips/manifest.jsonl"
    )
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    engines, modes = options.engines.split(","), options.modes.split(",")
    checkpoint = random_checkpoint(options.random) if options.random else load_checkpoint(options.model)
    task = Task(checkpoint, read_manifest(options.clips), N_TOKENS if options.random else None)
    measured = measure(task, engines, modes, options.rounds, options.threads)
    figures = report(task, measured, modes)
    print(
        json.dumps(
            {
                "benchmark": "offline",
                "model": checkpoint.name,
                "audio_s": round(task.seconds, 1),
                "threads": options.threads,
                "processor": platform.processor() or platform.machine(),
                "torch": torch.__version__,
                "engines": figures,
            }
        )
    )


if __name__ == "__main__":
    main()
