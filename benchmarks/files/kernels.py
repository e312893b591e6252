"""One decoder step and one encoder window: the native kernels beside PyTorch and other programs.

    python -m benchmarks files kernels --model base --rows 1,5,16 --seconds 30,10 --rounds 7 --threads 1

A step reads one new token a row behind a short prompt, over one window of 30 s: rows of one audio, as a
beam has them. Engines have the same weights and take turns, and each figure is the median of the rounds, of
the processor time in all threads and of the time on the clock; on a shared machine believe the ratios alone.
CTranslate2 cannot be asked for a step: two lengths of one generation are taken, and the difference divided by
their tokens, with the end of text suppressed; a beam of five does its search besides, and 16 rows are 16
audios. whisper.cpp reads one row alone, and its window holds the keys and values that the others compute for
the first step. --random takes random weights of the dimensions of a published model. An encoder's window is
of each length of --seconds; that of other programs is of 30 s. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from sottovoce.backends.base import Backend
from sottovoce.backends.registry import BACKENDS, choose_number_format
from sottovoce.models.checkpoint.base import Checkpoint, expected_shapes
from sottovoce.models.checkpoint.convert import write_checkpoint
from sottovoce.models.dims import ModelDims
from sottovoce.models.load import load_checkpoint
from sottovoce.models.whisper import sinusoids
from sottovoce.types import SAMPLE_RATE, Features

CPU = torch.device("cpu")
PROMPT = (50258, 50259, 50359, 50363)
SHORT, LONG = 16, 80
OURS = {
    "torch float32": ("torch", "float32"),
    "torch": ("torch", "auto"),
    "torch int8": ("torch", "int8"),
    "native, PyTorch's encoder": ("native", "bfloat16"),
    "native": ("native", "auto"),
}
SIZES = {
    "tiny": (384, 6, 4, 4),
    "base": (512, 8, 6, 6),
    "small": (768, 12, 12, 12),
    "turbo": (1280, 20, 32, 4),
}
"""Width, heads, layers of the encoder and of the decoder."""

Took = tuple[float, float]
"""Processor seconds, seconds on the clock."""


def timed(work: Callable[[], object]) -> Took:
    processor, clock = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - clock


def random_checkpoint(name: str) -> Checkpoint:
    d, n_head, n_encoder, n_decoder = SIZES[name]
    n_mels = 128 if name == "turbo" else 80
    dims = ModelDims(
        n_mels, 1500, d, n_head, n_encoder, 51866 if name == "turbo" else 51865, 448, d, n_head, n_decoder
    )
    tensors = {}
    for key, shape in expected_shapes(dims).items():
        tensors[key] = torch.randn(shape) * (0.5 / shape[-1] ** 0.5 if len(shape) > 1 else 0.1)
        if key.endswith(("ln.weight", "ln_post.weight")):
            tensors[key] += 1
    tensors["encoder.positional_embedding"] = sinusoids(dims.n_audio_ctx, d)
    return Checkpoint(name=name, dims=dims, tensors=tensors)


class Ours:
    """A backend of this project."""

    def __init__(self, checkpoint: Checkpoint, runtime: str, dtype: str) -> None:
        self._backend: Backend = BACKENDS[runtime](checkpoint, CPU, choose_number_format(dtype, CPU))
        self._mel = torch.randn(1, checkpoint.dims.n_mels, 2 * checkpoint.dims.n_audio_ctx)
        self._encoded = self._backend.encode(Features(self._mel, (self._mel.shape[2],)))

    def step(self, n_rows: int) -> Took:
        """A token a row."""
        state = self._backend.start(self._encoded, n_rows)
        self._backend.step(torch.tensor([PROMPT] * n_rows), state)
        token = torch.full((n_rows, 1), 440)

        def read() -> None:
            for _ in range(LONG - SHORT):
                self._backend.step(token, state).logits.argmax(-1)

        processor, clock = timed(read)
        return processor / (LONG - SHORT), clock / (LONG - SHORT)

    def encode(self, seconds: int) -> Took:
        """A window, without keys and values for the decoder, which CTranslate2 computes in its first step."""
        mel = self._mel[..., : 100 * seconds].contiguous()
        return timed(lambda: self._backend.encode(Features(mel, (mel.shape[2],))))


class CTranslate2:
    """faster-whisper's engine."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, n_threads: int) -> None:
        import ctranslate2

        from benchmarks.harness.programs import faster_model

        self._model = faster_model(checkpoint, folder, "int8", n_threads).model
        mel = np.random.default_rng(0).standard_normal((1, checkpoint.dims.n_mels, 3000)).astype(np.float32)
        self._mel = ctranslate2.StorageView.from_array(mel)
        self._view = ctranslate2.StorageView.from_array
        self._encoded = self._model.encode(self._mel, to_cpu=True)

    def step(self, n_rows: int) -> Took:
        """A token a row: a beam of five for five rows, else so many audios read greedily."""
        beam = 5 if n_rows == 5 else 1
        states = np.repeat(np.array(self._encoded), n_rows if beam == 1 else 1, axis=0)
        encoded = self._view(states)

        def read(length: int) -> Callable[[], object]:
            return lambda: self._model.generate(
                encoded,
                [list(PROMPT)] * len(states),
                beam_size=beam,
                max_length=len(PROMPT) + length,
                suppress_tokens=[50257],
                suppress_blank=False,
                max_initial_timestamp_index=0,
            )

        long, short = timed(read(LONG)), timed(read(SHORT))
        return (long[0] - short[0]) / (LONG - SHORT), (long[1] - short[1]) / (LONG - SHORT)

    def encode(self, seconds: int) -> Took:
        """A window of 30 s, whatever is asked for: it pads shorter ones."""
        return timed(lambda: self._model.encode(self._mel, to_cpu=True))


class WhisperCpp:
    """whisper.cpp, eight bits."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, n_threads: int) -> None:
        import _pywhispercpp
        from pywhispercpp.model import Model

        path = folder / "model.bin"
        write_checkpoint(checkpoint, path, "ggml", "q8_0")
        logging.getLogger("pywhispercpp").setLevel(logging.WARNING)
        self._model = Model(str(path), redirect_whispercpp_logs_to=None, n_threads=n_threads)
        self._context, self._library, self._n_threads = self._model._ctx, _pywhispercpp, n_threads
        noise = np.random.default_rng(0).standard_normal(30 * SAMPLE_RATE).astype(np.float32)
        self._library.whisper_pcm_to_mel(self._context, 0.1 * noise, len(noise), n_threads)
        self.encode(30)

    def step(self, n_rows: int) -> Took:
        """A token of one row; nothing for more, which it cannot be asked for."""
        if n_rows != 1:
            return 0.0, 0.0

        def read() -> None:
            for place in range(SHORT, LONG):
                self._library.whisper_decode(self._context, 440, 1, place, self._n_threads)

        processor, clock = timed(read)
        return processor / (LONG - SHORT), clock / (LONG - SHORT)

    def encode(self, seconds: int) -> Took:
        """A window of 30 s, whatever is asked for, with keys and values for the decoder."""
        return timed(lambda: self._library.whisper_encode(self._context, 0, self._n_threads))


PROGRAMS: dict[str, type[CTranslate2 | WhisperCpp]] = {
    "CTranslate2 int8": CTranslate2,
    "whisper.cpp q8_0": WhisperCpp,
}


def measured(works: Mapping[str, Callable[[], Took]], rounds: int) -> dict[str, Took]:
    """Medians over rounds in which all take their turn; one round before is not counted."""
    found: dict[str, list[Took]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            took = work()
            if turn:
                found[name].append(took)
    return {
        name: (median(one[0] for one in took), median(one[1] for one in took)) for name, took in found.items()
    }


median = statistics.median


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="base")
    parser.add_argument("--random", action="store_true", help="random weights of this model's dimensions")
    parser.add_argument("--rows", type=numbers, default=[1, 5, 16], help='of a step; "" measures none')
    parser.add_argument("--seconds", type=numbers, default=[30], help="of a window of the encoder")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--engines", default=",".join([*OURS, *PROGRAMS]))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    checkpoint = random_checkpoint(given.model) if given.random else load_checkpoint(given.model)
    checkpoint = replace(checkpoint, name=given.model)
    chosen = given.engines.split(",")
    engines: dict[str, Ours | CTranslate2 | WhisperCpp] = {
        name: Ours(checkpoint, *how) for name, how in OURS.items() if name in chosen
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in [name for name in PROGRAMS if name in chosen]:
            engines[name] = PROGRAMS[name](checkpoint, Path(folder), given.threads)
        columns = {
            f"step, {n_rows} rows": {name: (lambda e=e, n=n_rows: e.step(n)) for name, e in engines.items()}
            for n_rows in given.rows
        }
        for seconds in given.seconds:
            columns[f"encoder, {seconds} s"] = {
                name: (lambda e=e, s=seconds: e.encode(s)) for name, e in engines.items()
            }
        found = {title: measured(works, given.rounds) for title, works in columns.items()}
    print("| ms of the processor (on the clock) | " + " | ".join(found) + " |")
    print("|---" * (len(found) + 1) + "|")
    for name in engines:
        cells = [
            f"{1e3 * took[name][0]:.1f} ({1e3 * took[name][1]:.1f})" if any(took[name]) else ""
            for took in found.values()
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(
        json.dumps({"benchmark": "kernels", "model": given.model, "threads": given.threads, "seconds": found})
    )


if __name__ == "__main__":
    main()
