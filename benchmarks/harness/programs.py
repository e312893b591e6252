"""The programs that transcribe files, all with the same weights, each behind one call.

Every program keeps its own defaults (timestamps, thresholds, draws at higher temperatures where a text
looks wrong); only language, beam size and threads are given. whisper.cpp reads a ggml file, CTranslate2
and transformers a folder, that are written here from our checkpoint. Needs `make test-all`'s environment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.ctranslate2 import save_ctranslate2
from sottovoce.models.checkpoint.torch_file import save_openai
from sottovoce.models.load import write_checkpoint
from sottovoce.options.decoding import FallbackOptions
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE, Samples

if TYPE_CHECKING:
    import faster_whisper
    import whisper


def openai_model(checkpoint: Checkpoint, folder: Path) -> whisper.model.Whisper:
    """openai-whisper's network with these weights, float32 on the CPU."""
    import whisper

    path = folder / f"{checkpoint.name}.pt"
    save_openai(checkpoint, path, "float32")
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
    """The weights of a program. folder: for the files that it reads, removed afterwards."""

    checkpoint: Checkpoint
    folder: Path
    threads: int


Reader: TypeAlias = Callable[[Samples, str, int], str]
"""A program: the text of samples in a language ("auto": detected), by a beam of so many (1: greedy)."""


def ours(
    weights: Weights,
    dtype: str,
    *,
    vad: bool = False,
    batch_size: int = 1,
    bare: bool = False,
    runtime: str = "torch",
) -> Reader:
    """dtype as in `load_model`. vad: only speech by Silero is read, batch_size windows at once. bare: each
    window is decoded once, and its text is believed. runtime: a name of `BACKENDS`.
    """
    from sottovoce.api import Model
    from sottovoce.models.devices import CPU, choose_number_format
    from sottovoce.options.transcribe import TranscribeOptions
    from sottovoce.runtime.registry import BACKENDS

    checkpoint = weights.checkpoint
    model = Model(checkpoint, BACKENDS[runtime](checkpoint, CPU, choose_number_format(dtype, CPU)))
    options = TranscribeOptions(mode="vad" if vad else "seek", batch_size=batch_size)
    if bare:
        options = replace(options, fallback=BELIEVED)

    def read(samples: Samples, language: str, beam_size: int) -> str:
        result = model.transcribe(samples, language=language, beam_size=beam_size, options=options)
        return "".join(segment.text for segment in result)

    return read


def openai(weights: Weights) -> Reader:
    model = openai_model(weights.checkpoint, weights.folder)

    def read(samples: Samples, language: str, beam_size: int) -> str:
        beam = beam_size if beam_size > 1 else None
        return str(model.transcribe(samples, language=language, beam_size=beam, fp16=False)["text"])

    return read


def faster(weights: Weights, compute_type: str, *, vad: bool = False, batched: bool = False) -> Reader:
    from faster_whisper import BatchedInferencePipeline

    model = faster_model(weights.checkpoint, weights.folder, compute_type, weights.threads)
    transcribe = BatchedInferencePipeline(model).transcribe if batched else model.transcribe
    more: dict[str, Any] = {"batch_size": BATCH} if batched else {"vad_filter": vad}

    def read(samples: Samples, language: str, beam_size: int) -> str:
        given = None if language == "auto" else language
        segments, _ = transcribe(samples, language=given, beam_size=beam_size, **more)
        return "".join(segment.text for segment in segments)

    return read


def whisper_cpp(weights: Weights, ftype: str) -> Reader:
    """Its greedy search and its beam search, on a ggml file of ours."""
    path = weights.folder / f"ggml-{ftype}.bin"
    write_checkpoint(weights.checkpoint, path, "ggml", ftype)

    def read(samples: Samples, language: str, beam_size: int) -> str:
        # It reads nothing in recordings of less than a second.
        padded = np.pad(samples, (0, max(0, SAMPLE_RATE + 1600 - len(samples))))
        result = cpp_model(path, beam_size, weights.threads).transcribe(padded, language=language)
        return " ".join(segment.text.strip() for segment in result)

    return read


@lru_cache(maxsize=1)
def cpp_model(path: Path, beam_size: int, threads: int) -> Any:
    """whisper.cpp with a ggml file; its search is chosen when it is loaded."""
    from pywhispercpp.model import Model

    logging.getLogger("pywhispercpp").setLevel(logging.WARNING)
    beams: dict[str, Any] = {"beam_search": {"beam_size": beam_size, "patience": -1.0}}
    return Model(
        str(path),
        params_sampling_strategy=int(beam_size > 1),
        redirect_whispercpp_logs_to=None,
        n_threads=threads,
        print_progress=False,
        print_realtime=False,
        **(beams if beam_size > 1 else {}),
    )


def transformers(weights: Weights) -> Reader:
    """`generate` of transformers, with timestamps, which its long form needs too."""
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    folder = weights.folder / "hf"
    write_checkpoint(weights.checkpoint, folder, "hf", "float32")
    features = WhisperFeatureExtractor.from_pretrained(folder)
    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = Tokenizer.for_model(weights.checkpoint.dims.n_vocab)

    def read(samples: Samples, language: str, beam_size: int) -> str:
        is_long = len(samples) > 30 * SAMPLE_RATE
        inputs = features(
            samples,
            sampling_rate=SAMPLE_RATE,
            return_tensors="pt",
            truncation=not is_long,
            padding="longest" if is_long else "max_length",
            return_attention_mask=True,
        )
        with torch.inference_mode():
            tokens = model.generate(
                inputs.input_features,
                attention_mask=inputs.attention_mask,
                language=language,
                task="transcribe",
                num_beams=beam_size,
                return_timestamps=True,
            )[0]
        return tokenizer.decode([token for token in tokens.tolist() if token < tokenizer.eot])

    return read


BUILDERS: MappingProxyType[str, Callable[[Weights], Reader]] = MappingProxyType(
    {
        "ours bfloat16": partial(ours, dtype="bfloat16"),
        "ours bfloat16 bare": partial(ours, dtype="bfloat16", bare=True),
        "ours int8": partial(ours, dtype="int8"),
        "ours native": partial(ours, dtype="auto", runtime="native"),
        "ours native int8": partial(ours, dtype="int8", runtime="native"),
        "ours float32": partial(ours, dtype="float32"),
        "openai-whisper float32": openai,
        "faster-whisper int8": partial(faster, compute_type="int8"),
        "faster-whisper float32": partial(faster, compute_type="float32"),
        "ours bfloat16 vad": partial(ours, dtype="bfloat16", vad=True),
        "ours bfloat16 batched": partial(ours, dtype="bfloat16", vad=True, batch_size=BATCH),
        "ours native batched": partial(ours, dtype="auto", vad=True, batch_size=BATCH, runtime="native"),
        "faster-whisper int8 vad": partial(faster, compute_type="int8", vad=True),
        "faster-whisper int8 batched": partial(faster, compute_type="int8", batched=True),
        "whisper.cpp f16": partial(whisper_cpp, ftype="f16"),
        "whisper.cpp q8_0": partial(whisper_cpp, ftype="q8_0"),
        "whisper.cpp q5_1": partial(whisper_cpp, ftype="q5_1"),
        "transformers float32": transformers,
    }
)
