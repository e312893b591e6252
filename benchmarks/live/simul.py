"""SimulStreaming itself, in a process of its own, on the same weights: its runs in the form of ours.

Its repository (github.com/ufal/SimulStreaming) is not part of this project: the caller names a checkout, of
which nothing is changed. Three things are put in its way while it is loaded: it takes the weights from a file
of ours instead of from the network (with the alignment heads of that size), its voice activity controller
takes the installed Silero package instead of the hub's, and its log is not written. Words, frames and times
are its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import sys
import tempfile
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.report import Log
from benchmarks.live.runs import Item, Live, run_from
from sottovoce.evaluation.scores import LiveRun
from sottovoce.models.checkpoint.torch_file import save_openai
from sottovoce.models.load import load_checkpoint
from sottovoce.types import SAMPLE_RATE, Samples, Word

FRAMES_PER_WINDOW = 1500


class Simul:
    """The program at several thresholds and update intervals, one process for each, and the log."""

    def __init__(self, checkout: Path, model: str, log: Log) -> None:
        self._checkout, self._model, self._log = checkout, model, log
        self._asked: tuple[float, float] | None = None
        self._pipe: Connection | None = None

    def name(self, threshold: float, chunk_s: float) -> str:
        return f"SimulStreaming, {threshold:g} frames, {chunk_s:g} s"

    def live(self, item: Item, *, frame_threshold: float, chunk_s: float) -> Live:
        options = {"frame_threshold": frame_threshold, "chunk_s": chunk_s}
        asked = {"program": "SimulStreaming", "model": self._model, "language": item.language, **options}
        key = json.dumps(asked, sort_keys=True)
        found = self._log.get(key, item.name)
        if found is None:
            self._connect(frame_threshold, chunk_s, item.language)
            assert self._pipe is not None
            self._pipe.send(item.samples())
            found = self._pipe.recv()
            self._log.add(key, item.name, found)
        return Live(run_from(found), found["encoder_frames"])

    def _connect(self, threshold: float, chunk_s: float, language: str) -> None:
        """The process for these options; the one before ends."""
        if self._pipe is not None and self._asked == (threshold, chunk_s):
            self._pipe.send(language)
            return
        if self._pipe is not None:
            self._pipe.close()
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        given = (self._checkout, self._model, threshold, chunk_s, language, other)
        context.Process(target=_serve, args=given, daemon=True).start()
        self._asked = (threshold, chunk_s)


def _serve(
    checkout: Path, model: str, threshold: float, chunk_s: float, language: str, pipe: Connection
) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{model}.pt"
        save_openai(load_checkpoint(model), path, "float32")
        program = _Program(checkout, path, threshold, chunk_s)
    program.speaks(language)
    with contextlib.suppress(EOFError):  # nobody asks any more
        while True:
            asked = pipe.recv()
            if isinstance(asked, str):
                program.speaks(asked)
            else:
                pipe.send(program.run(asked))


class _Program:
    """Its classes, called as its own simulation from a file calls them, not computation-aware."""

    def __init__(self, checkout: Path, weights: Path, threshold: float, chunk_s: float) -> None:
        sys.path.insert(0, str(checkout))
        import simulstreaming_whisper
        from simulstreaming.whisper.simul_whisper import whisper

        logging.disable(logging.CRITICAL)
        whisper._download = lambda url, root, in_memory: str(weights)
        parser = argparse.ArgumentParser()
        simulstreaming_whisper.simulwhisper_args(parser)
        words = ["--model_path", str(weights), "--frame_threshold", f"{threshold:g}"]
        given = parser.parse_args(words)
        given.lan, given.task, given.min_chunk_size = "en", "transcribe", chunk_s
        given.log_level, given.logdir = "CRITICAL", None
        self._asr, self._online = simulstreaming_whisper.simul_asr_factory(given)
        self._step_s = chunk_s
        self._frames = 0
        self._asr.warmup(np.zeros(SAMPLE_RATE, np.float32))
        self._asr.model.model.encoder.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self._frames += FRAMES_PER_WINDOW

    def speaks(self, language: str) -> None:
        """As if it had been started with `--lan`."""
        model = self._asr.model
        model.cfg.language = language
        model.create_tokenizer(language)
        model.refresh_segment(complete=True)

    def run(self, audio: Samples) -> dict[str, Any]:
        self._online.init()
        self._frames = 0
        words: list[Word] = []
        delays: list[float] = []
        elapsed: list[float] = []
        duration_s = len(audio) / SAMPLE_RATE
        clock = compute = cpu = end = 0.0
        is_done = False
        while not is_done:
            begin, end = end, min(end + self._step_s, duration_s)
            is_done = end >= duration_s
            clock = max(clock, end)
            began, began_cpu = time.perf_counter(), time.process_time()
            self._online.insert_audio_chunk(audio[int(begin * SAMPLE_RATE) : int(end * SAMPLE_RATE)])
            said = [self._online.process_iter()]
            if is_done:
                said.append(self._online.finish())
            spent = time.perf_counter() - began
            clock, compute, cpu = clock + spent, compute + spent, cpu + time.process_time() - began_cpu
            for word in (word for one in said if one for word in one["words"]):
                words.append(Word(word["text"], word["start"], word["end"], 1.0))
                delays.append(end)
                elapsed.append(clock)
        run = LiveRun(tuple(words), tuple(delays), tuple(elapsed), (), duration_s, compute, cpu)
        return asdict(run) | {"encoder_frames": self._frames}
