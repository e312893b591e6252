"""Schedules that the live benchmarks compare, and a backend that counts what they ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from live_shadow import ShadowedBackend
from torch import Tensor

from sottovoce.api import Model
from sottovoce.audio.vad_stream import VadStream
from sottovoce.backends.base import AlignmentHeads, Backend, Capabilities, DecoderState, ModelDims
from sottovoce.evaluation.latency import laal
from sottovoce.evaluation.live import LiveRun, run_live
from sottovoce.evaluation.manifest import ManifestEntry
from sottovoce.evaluation.wer import ScoreOptions, Utterance, score
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.session import Session, SessionOptions
from sottovoce.types import EncoderOutput, Features, Samples, StepOutput

N_CONTEXT = 0
"""Prompts of text said before, on every side: nano's decoder is misled by them."""


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
        self.work.decoder_passes += 1
        self.work.decoder_tokens += tokens.numel()
        return self._inner.step(
            tokens, state, positions=positions, vocabulary=vocabulary, capture=capture, bias=bias
        )

    def first_step(
        self, encoded: EncoderOutput, spans: Sequence[tuple[int, int]], *, token: int, vocabulary: Tensor
    ) -> Tensor:
        self.work.probe_rows += len(spans)
        return self._inner.first_step(encoded, spans, token=token, vocabulary=vocabulary)


@dataclass(slots=True)
class Side:
    """One schedule and what came of it."""

    name: str
    stream: StreamOptions
    vad: bool = True
    follows: bool = False
    as_if: str | None = None
    shadowed_s: float = 0.0
    work: Work = field(default_factory=Work)
    runs: list[LiveRun] = field(default_factory=list)

    def run(self, model: Model, entry: ManifestEntry, audio: Samples) -> None:
        """Give it a recording; as_if: at the cost of a random model of this size, see `live_shadow`."""
        shadowed = ShadowedBackend(model.backend, self.as_if) if self.as_if else None
        backend = CountingBackend(shadowed or model.backend)
        languages = model.languages if self.follows else (entry.language or "en",)
        options = SessionOptions(tuple(languages), stream=self.stream)
        session = Session(backend, model.tokenizer, options, vad=VadStream() if self.vad else None)
        self.runs.append(run_live(session, audio, chunk_s=self.stream.chunk_s))
        self.shadowed_s += shadowed.own_s if shadowed else 0.0
        for name, value in asdict(backend.work).items():
            setattr(self.work, name, getattr(self.work, name) + value)

    def row(self, entries: Sequence[ManifestEntry]) -> dict[str, object]:
        """Work a second of audio, errors and latency over all recordings so far."""
        audio_s = sum(run.duration_s for run in self.runs)
        utterances = [Utterance(e.text, r.text, e.language) for e, r in zip(entries, self.runs, strict=True)]
        lags = [
            laal(run.delays_s, run.duration_s, n_units(entry))
            for entry, run in zip(entries, self.runs, strict=True)
        ]
        work = {name: round(value / audio_s, 2) for name, value in asdict(self.work).items()}
        return {
            "schedule": self.name,
            "audio_s": round(audio_s, 1),
            **work,
            "cpu_s_per_s": round((sum(run.cpu_s for run in self.runs) - self.shadowed_s) / audio_s, 4),
            "mer": round(score(utterances, ScoreOptions(n_resamples=0)).overall.mer.rate or 0.0, 3),
            "laal_s": round(float(np.nanmean(lags)), 2),
        }


def schedules(chunk_s: float, as_if: str | None = None) -> list[Side]:
    """SimulStreaming's schedule, and ours at its interval and at `chunk_s`; as_if: see `Side`.

    SimulStreaming: an update every 1.2 s, the encoder always on 30 s, up to 30 s of audio held, the whole
    prefix decoded anew, no cut at pauses, 4 frames left at the end.
    """
    simul = StreamOptions(
        chunk_s=1.2,
        context_bucket_s=None,
        audio_max_len_s=30.0,
        audio_trim_s=1.2,
        final_frame_threshold=4,
        max_context_tokens=N_CONTEXT,
    )
    return [
        Side("SimulStreaming's", simul, vad=False, as_if=as_if),
        Side("ours at its interval", thrifty(1.2), as_if=as_if),
        Side(f"ours at {chunk_s:g} s", thrifty(chunk_s), as_if=as_if),
        Side(f"ours at {chunk_s:g} s, following languages", thrifty(chunk_s), follows=True, as_if=as_if),
    ]


def thrifty(chunk_s: float) -> StreamOptions:
    """Ours with little audio held: what was committed is soon let go.

    On talks of other voices (`speech_clips.py --part dev`) nano makes fewer errors at 5 s than at 6, and
    fewer still at 4: it learnt short clips.
    """
    return StreamOptions(
        chunk_s=chunk_s,
        audio_max_len_s=4.0,
        audio_trim_s=2.0,
        context_bucket_s=0.5,
        max_context_tokens=N_CONTEXT,
    )


def n_units(entry: ManifestEntry) -> int:
    """Words of the reference; characters of Chinese."""
    return len(entry.text.replace(" ", "")) if entry.language == "zh" else len(entry.text.split())
