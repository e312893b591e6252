"""The programs that transcribe files, all with the same weights, each behind one call.

Every program keeps its own defaults (timestamps, thresholds, draws at higher temperatures where a text
looks wrong); only language, beam size and threads are given. whisper.cpp reads a ggml file, CTranslate2
and transformers a folder, that are written here from our checkpoint. Needs `make test`'s environment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.convert import write_checkpoint
from sottovoce.models.checkpoint.ctranslate2 import save_ctranslate2
from sottovoce.models.checkpoint.openai import save_openai
from sottovoce.options.fallback import FallbackOptions
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE, Samples

if TYPE_CHECKING:
    import faster_whisper
    import whisper


def openai_model(checkpoint: Checkpoint, folder: Path) -> whisper.model.Whisper:
    """openai-whisper's network with these weights, float32 on the CPU."""
    import whisper

    path = folder / f"{checkpoint.name}.pt"
    save_openai(checkpoint, path, torch.float32)
    model = whisper.load_model(str(path), device="cpu").float().eval()
    if checkpoint.alignment_heads:
        mask = torch.zeros(checkpoint.dims.n_text_layer, checkpoint.dims.n_text_head, dtype=torch.bool)
        for layer, head in checkpoint.alignment_heads:
            mask[layer, head] = True
        model.register_buffer("alignment_heads", mask.to_sparse(), persistent=False)
    return model


def faster_model(
    checkpoint: Checkpoint, folder: Path, compute_type: str, threads: int
) -> faster_whisper.WhisperModel:
    """faster-whisper with these weights."""
    from faster_whisper import WhisperModel

    target = folder / "ct2"
    if not target.exists():
        save_ctranslate2(checkpoint, target, "float32")
    return WhisperModel(str(target), device="cpu", compute_type=compute_type, cpu_threads=threads)


BATCH = 8
"""Windows at once where a program works in batches: faster-whisper's default."""
BELIEVED = FallbackOptions(
    temperatures=(0.0,),
    compression_ratio_threshold=None,
    logprob_threshold=None,
    no_speech_threshold=None,
)


@dataclass(frozen=True, slots=True)
class Weights:
    """What an engine is built from. folder: for the files that it wants, removed afterwards."""

    checkpoint: Checkpoint
    folder: Path
    threads: int


class Engine(Protocol):
    """One program: the text of a recording. beam_size: 1 is greedy."""

    def text(self, samples: Samples, language: str, beam_size: int) -> str: ...


class Ours:
    """dtype as in `load_model`; in mode "vad" only what Silero hears is read, batch_size windows at once.
    bare: each window is read once, and what was read is believed. runtime: a name of `BACKENDS`."""

    def __init__(
        self,
        weights: Weights,
        dtype: str,
        *,
        vad: bool = False,
        batch_size: int = 1,
        bare: bool = False,
        runtime: str = "torch",
    ) -> None:
        from sottovoce.api import Model
        from sottovoce.backends.registry import BACKENDS, choose_number_format
        from sottovoce.options.transcribe import TranscribeOptions

        device = torch.device("cpu")
        checkpoint = weights.checkpoint
        backend = BACKENDS[runtime](checkpoint, device, choose_number_format(dtype, device))
        self._model = Model(checkpoint, backend)
        self._options = TranscribeOptions(mode="vad" if vad else "seek", batch_size=batch_size)
        if bare:
            self._options = replace(self._options, fallback=BELIEVED)

    def text(self, samples: Samples, language: str, beam_size: int) -> str:
        segments = self._model.transcribe(
            samples, language=language, beam_size=beam_size, options=self._options
        )
        return "".join(segment.text for segment in segments)


class OpenAI:
    def __init__(self, weights: Weights) -> None:
        self._model = openai_model(weights.checkpoint, weights.folder)

    def text(self, samples: Samples, language: str, beam_size: int) -> str:
        beam = beam_size if beam_size > 1 else None
        found = self._model.transcribe(samples, language=language, beam_size=beam, fp16=False)
        return str(found["text"])


class Faster:
    def __init__(
        self, weights: Weights, compute_type: str, *, vad: bool = False, batched: bool = False
    ) -> None:
        from faster_whisper import BatchedInferencePipeline

        model = faster_model(weights.checkpoint, weights.folder, compute_type, weights.threads)
        self._transcribe = BatchedInferencePipeline(model).transcribe if batched else model.transcribe
        self._more: dict[str, int | bool] = {"batch_size": BATCH} if batched else {"vad_filter": vad}

    def text(self, samples: Samples, language: str, beam_size: int) -> str:
        segments, _ = self._transcribe(samples, language=language, beam_size=beam_size, **self._more)
        return "".join(segment.text for segment in segments)


class WhisperCpp:
    """Its greedy search and its beam search, on a ggml file of ours."""

    def __init__(self, weights: Weights, ftype: str) -> None:
        path = weights.folder / f"ggml-{ftype}.bin"
        write_checkpoint(weights.checkpoint, path, "ggml", ftype)
        self._path, self._threads = path, weights.threads
        self._models: dict[int, object] = {}

    def text(self, samples: Samples, language: str, beam_size: int) -> str:
        from pywhispercpp.model import Model

        if beam_size not in self._models:
            beams: dict[str, object] = {"beam_search": {"beam_size": beam_size, "patience": -1.0}}
            logging.getLogger("pywhispercpp").setLevel(logging.WARNING)
            self._models = {
                beam_size: Model(
                    str(self._path),
                    params_sampling_strategy=int(beam_size > 1),
                    redirect_whispercpp_logs_to=None,
                    n_threads=self._threads,
                    print_progress=False,
                    print_realtime=False,
                    **(beams if beam_size > 1 else {}),
                )
            }
        # It hears nothing in recordings of less than a second.
        padded = np.pad(samples, (0, max(0, SAMPLE_RATE + 1600 - len(samples))))
        segments = self._models[beam_size].transcribe(padded, language=language)  # type: ignore[attr-defined]
        return " ".join(segment.text.strip() for segment in segments)


class Transformers:
    """`generate` of transformers, with timestamps: what its long form needs too."""

    def __init__(self, weights: Weights) -> None:
        from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

        folder = weights.folder / "hf"
        write_checkpoint(weights.checkpoint, folder, "hf", "float32")
        self._features = WhisperFeatureExtractor.from_pretrained(folder)
        self._model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
        self._tokenizer = Tokenizer.for_model(weights.checkpoint.dims.n_vocab)

    def text(self, samples: Samples, language: str, beam_size: int) -> str:
        is_long = len(samples) > 30 * SAMPLE_RATE
        inputs = self._features(
            samples,
            sampling_rate=SAMPLE_RATE,
            return_tensors="pt",
            truncation=not is_long,
            padding="longest" if is_long else "max_length",
            return_attention_mask=True,
        )
        with torch.inference_mode():
            tokens = self._model.generate(
                inputs.input_features,
                attention_mask=inputs.attention_mask,
                language=language,
                task="transcribe",
                num_beams=beam_size,
                return_timestamps=True,
            )[0]
        return self._tokenizer.decode([token for token in tokens.tolist() if token < self._tokenizer.eot])


BUILDERS: MappingProxyType[str, Callable[[Weights], Engine]] = MappingProxyType(
    {
        "ours bfloat16": lambda weights: Ours(weights, "bfloat16"),
        "ours bfloat16 bare": lambda weights: Ours(weights, "bfloat16", bare=True),
        "ours int8": lambda weights: Ours(weights, "int8"),
        "ours native": lambda weights: Ours(weights, "auto", runtime="native"),
        "ours native int8": lambda weights: Ours(weights, "int8", runtime="native"),
        "ours float32": lambda weights: Ours(weights, "float32"),
        "openai-whisper float32": OpenAI,
        "faster-whisper int8": lambda weights: Faster(weights, "int8"),
        "faster-whisper float32": lambda weights: Faster(weights, "float32"),
        "ours bfloat16 vad": lambda weights: Ours(weights, "bfloat16", vad=True),
        "ours bfloat16 batched": lambda weights: Ours(weights, "bfloat16", vad=True, batch_size=BATCH),
        "ours native batched": lambda weights: Ours(
            weights, "auto", vad=True, batch_size=BATCH, runtime="native"
        ),
        "faster-whisper int8 vad": lambda weights: Faster(weights, "int8", vad=True),
        "faster-whisper int8 batched": lambda weights: Faster(weights, "int8", batched=True),
        "whisper.cpp f16": lambda weights: WhisperCpp(weights, "f16"),
        "whisper.cpp q8_0": lambda weights: WhisperCpp(weights, "q8_0"),
        "whisper.cpp q5_1": lambda weights: WhisperCpp(weights, "q5_1"),
        "transformers float32": Transformers,
    }
)
