"""What a live stream costs: our schedule against SimulStreaming's, on the same weights and clips.

    python benchmarks/streaming.py MANIFEST --model nano --limit 10        # both schedules
    python benchmarks/streaming.py --long-s 3600 --model nano              # one long stream, its curves

Counts do not depend on the machine: encoder frames computed, decoder passes, decoder tokens, probe rows,
each for a second of audio. Times are given beside them. SimulStreaming's schedule is modelled by its
rules: an update every 1.2 s, the encoder always on 30 s, up to 30 s of audio held, the whole prefix
decoded anew, no cut at pauses. Both sides use this project's decoder, and take turns clip by clip.
Prints a table, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.vad_stream import VadStream
from sottovoce.backends.base import AlignmentHeads, Backend, Capabilities, DecoderState, ModelDims
from sottovoce.evaluation.latency import laal
from sottovoce.evaluation.live import LiveRun, run_live
from sottovoce.evaluation.manifest import ManifestEntry, read_manifest
from sottovoce.evaluation.wer import ScoreOptions, Utterance, score
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.session import Session, SessionOptions
from sottovoce.types import SAMPLE_RATE, EncoderOutput, Features, Samples, StepOutput

CLIPS = Path(__file__).parents[1] / "examples" / "clips"


@dataclass(slots=True)
class Work:
    """What a backend was asked to do."""

    encoder_frames: int = 0
    decoder_passes: int = 0
    decoder_tokens: int = 0
    probe_rows: int = 0


class CountingBackend:
    """A backend that counts what it hands on."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.work = Work()

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def dims(self) -> ModelDims:
        return self._inner.dims

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    @property
    def device(self) -> torch.device:
        return self._inner.device

    @property
    def alignment_heads(self) -> AlignmentHeads:
        return self._inner.alignment_heads

    def encode(self, features: Features) -> EncoderOutput:
        self.work.encoder_frames += features.mel.shape[0] * features.mel.shape[2] // 2
        return self._inner.encode(features)

    def start(
        self, encoded: EncoderOutput, n_hypotheses: int = 1, *, left_padding: Tensor | None = None
    ) -> DecoderState:
        return self._inner.start(encoded, n_hypotheses, left_padding=left_padding)

    def step(
        self,
        tokens: Tensor,
        state: DecoderState,
        *,
        positions: Sequence[int] | None = (-1,),
        vocabulary: Tensor | None = None,
        capture: AlignmentHeads = (),
        bias: Tensor | None = None,
    ) -> StepOutput:
        if vocabulary is not None:
            self.work.probe_rows += tokens.shape[0]
        else:
            self.work.decoder_passes += 1
            self.work.decoder_tokens += tokens.numel()
        return self._inner.step(
            tokens, state, positions=positions, vocabulary=vocabulary, capture=capture, bias=bias
        )


@dataclass(slots=True)
class Side:
    """One schedule and what came of it."""

    name: str
    stream: StreamOptions
    vad: bool
    follows: bool = False
    work: Work = field(default_factory=Work)
    runs: list[LiveRun] = field(default_factory=list)


def sides(chunk_s: float) -> list[Side]:
    simul = StreamOptions(chunk_s=1.2, context_bucket_s=None, audio_max_len_s=30.0, audio_trim_s=1.2)
    ours = StreamOptions(chunk_s=chunk_s, audio_max_len_s=10.0, audio_trim_s=4.0)
    return [
        Side("SimulStreaming's schedule", simul, vad=False),
        Side(
            "ours at its interval",
            StreamOptions(chunk_s=1.2, audio_max_len_s=10.0, audio_trim_s=4.0),
            vad=True,
        ),
        Side("ours", ours, vad=True),
        Side("ours, following languages", ours, vad=True, follows=True),
    ]


def run_side(side: Side, model: Model, entry: ManifestEntry, audio: Samples) -> None:
    backend = CountingBackend(model.backend)
    languages = model.languages if side.follows else (entry.language or "en",)
    options = SessionOptions(tuple(languages), switching="restart", stream=side.stream)
    session = Session(backend, model.tokenizer, options, vad=VadStream() if side.vad else None)
    side.runs.append(run_live(session, audio, chunk_s=side.stream.chunk_s))
    for name, value in asdict(backend.work).items():
        setattr(side.work, name, getattr(side.work, name) + value)


def compare(model: Model, entries: Sequence[ManifestEntry], chunk_s: float) -> list[dict[str, object]]:
    both = sides(chunk_s)
    for entry in entries:
        audio = load_audio(str(entry.path))
        for side in both:
            run_side(side, model, entry, audio)
    return [row(side, entries) for side in both]


def row(side: Side, entries: Sequence[ManifestEntry]) -> dict[str, object]:
    audio_s = sum(run.duration_s for run in side.runs)
    utterances = [Utterance(e.text, r.text, e.language) for e, r in zip(entries, side.runs, strict=True)]
    lags = [
        laal(run.delays_s, run.duration_s, len(entry.text.split()))
        for entry, run in zip(entries, side.runs, strict=True)
    ]
    work = {name: round(value / audio_s, 2) for name, value in asdict(side.work).items()}
    return {
        "schedule": side.name,
        "audio_s": round(audio_s, 1),
        **work,
        "compute_s_per_s": round(sum(run.compute_s for run in side.runs) / audio_s, 3),
        "mer": round(score(utterances, ScoreOptions(n_resamples=0)).overall.mer.rate or 0.0, 3),
        "laal_s": round(float(np.nanmean(lags)), 2),
    }


def long_stream(model: Model, seconds: float, chunk_s: float) -> list[dict[str, float]]:
    """A long stream of the demo's clips without end: compute and memory of each tenth."""
    names = ("en", "de", "es", "fr", "zh", "mixed")
    audio = np.concatenate([load_audio(str(CLIPS / f"{name}.flac")) for name in names])
    stream = StreamOptions(chunk_s=chunk_s, audio_max_len_s=10.0, audio_trim_s=4.0)
    session = Session(
        model.backend, model.tokenizer, SessionOptions(model.languages, stream=stream), vad=VadStream()
    )
    step = round(chunk_s * SAMPLE_RATE)
    marks = [seconds * i / 10 for i in range(1, 11)]
    curve, at, began, last_s = [], 0, time.perf_counter(), 0.0
    while marks:
        piece = np.take(audio, range(at, at + step), mode="wrap")
        session.push(piece.astype(np.float32))
        at += step
        if at / SAMPLE_RATE >= marks[0]:
            now, now_s = time.perf_counter(), at / SAMPLE_RATE
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            per_second = (now - began) / (now_s - last_s)
            curve.append(
                {"at_s": round(now_s, 1), "compute_s_per_s": round(per_second, 4), "peak_mb": round(resident)}
            )
            began, last_s = now, now_s
            marks.pop(0)
    return curve


def show(rows: Sequence[dict[str, object]]) -> None:
    columns = list(rows[0])
    table = [columns, *([str(one[name]) for name in columns] for one in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("manifest", nargs="?", help="single-language recordings with text")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--chunk-s", type=float, default=0.5)
    parser.add_argument("--long-s", type=float, help="measure one stream of this length instead")
    given = parser.parse_args()
    model = load_model(given.model, device="cpu", dtype="float32")
    if given.long_s:
        rows: list[dict[str, object]] = [
            dict(point) for point in long_stream(model, given.long_s, given.chunk_s)
        ]
    else:
        known = [e for e in read_manifest(given.manifest) if e.language in model.languages and e.text]
        step = max(1, len(known) // given.limit)
        rows = compare(model, known[::step][: given.limit], given.chunk_s)
    show(rows)
    machine = {"machine": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    print(json.dumps({"model": given.model, "dtype": "float32", **machine, "rows": rows}))


if __name__ == "__main__":
    main()
