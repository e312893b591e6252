"""Whether other programs, given the same weights and the same audio, write the same text.

openai-whisper, transformers, CTranslate2 (the engine of faster-whisper) and whisper.cpp (pywhispercpp)
each read the model in their own format, converted by the library. The first and third are given windows
padded with 0.0, the others windows padded with silence, as they do themselves. All decode greedily with the
language given and no timestamps. Programs that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from recipes.nano import measures
from recipes.nano.measures import Padding, Recording
from sottovoce.api import Model
from sottovoce.audio.mel import mel_filters
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.ggml import save_ggml
from sottovoce.models.checkpoint.huggingface import save_huggingface
from sottovoce.models.checkpoint.openai import save_openai
from sottovoce.types import SAMPLE_RATE

logger = logging.getLogger(__name__)

MAX_TOKENS = 220


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many clips two programs write alike, and the first few that differ (ours, theirs)."""

    program: str
    padding: Padding
    same: int
    clips: int
    different: tuple[tuple[str, str], ...]


def compare(
    checkpoint: Checkpoint, model: Model, clips: Sequence[Recording], folder: Path
) -> list[Agreement]:
    """Let every installed program read the checkpoint from `folder` and write the clips."""
    found = []
    for program, package, padding, make in PROGRAMS:
        if importlib.util.find_spec(package) is None:
            logger.info("%s is not installed and is left out", package)
            continue
        write = make(checkpoint, folder, model)
        ours = [result.text.strip() for result in measures.transcribe(model, clips, padding)]
        theirs = [write(item).strip() for item in clips]
        apart = [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]]
        found.append(Agreement(program, padding, len(clips) - len(apart), len(clips), tuple(apart[:5])))
    return found


def openai_whisper(checkpoint: Checkpoint, folder: Path, model: Model) -> Callable[[Recording], str]:
    """openai-whisper: `decode` of a window."""
    import whisper  # type: ignore[import-untyped]

    save_openai(checkpoint, folder / "nano.pt", torch.float32)
    loaded = whisper.load_model(str(folder / "nano.pt"), device="cpu")

    def write(item: Recording) -> str:
        mel = whisper.pad_or_trim(whisper.log_mel_spectrogram(item.samples), whisper.audio.N_FRAMES)
        options = whisper.DecodingOptions(language=item.language, without_timestamps=True, fp16=False)
        return str(whisper.decode(loaded, mel, options).text)

    return write


def transformers_whisper(checkpoint: Checkpoint, folder: Path, model: Model) -> Callable[[Recording], str]:
    """transformers: `generate` of WhisperForConditionalGeneration."""
    from transformers import WhisperForConditionalGeneration

    save_huggingface(checkpoint, folder / "hf")
    loaded = WhisperForConditionalGeneration.from_pretrained(folder / "hf")
    loaded.train(False)

    def write(item: Recording) -> str:
        tokenizer = model.tokenizer.with_language(item.language)
        features = measures.features_of([item.samples], "silence").mel
        start = torch.tensor([tokenizer.sot_sequence_including_notimestamps])
        with torch.inference_mode():
            heard = loaded.get_encoder()(features)
        tokens = _greedy(
            lambda ids: loaded(encoder_outputs=heard, decoder_input_ids=ids).logits, start, _suppressed(model)
        )
        return tokenizer.decode(tokens)

    return write


def ctranslate2_whisper(checkpoint: Checkpoint, folder: Path, model: Model) -> Callable[[Recording], str]:
    """CTranslate2, through its converter of transformers models: the engine of faster-whisper."""
    import ctranslate2  # type: ignore[import-untyped]

    if not (folder / "hf").exists():
        save_huggingface(checkpoint, folder / "hf")
    save_vocabulary(model, folder / "hf")
    converter = ctranslate2.converters.TransformersConverter(str(folder / "hf"))
    loaded = ctranslate2.models.Whisper(converter.convert(str(folder / "ct2"), force=True), device="cpu")

    def write(item: Recording) -> str:
        tokenizer = model.tokenizer.with_language(item.language)
        features = measures.features_of([item.samples]).mel.numpy()
        found = loaded.generate(
            ctranslate2.StorageView.from_array(np.ascontiguousarray(features)),
            [list(tokenizer.sot_sequence_including_notimestamps)],
            beam_size=1,
            suppress_blank=True,
            suppress_tokens=_suppressed(model)[1:],
        )
        return tokenizer.decode(found[0].sequences_ids[0])

    return write


def whisper_cpp(checkpoint: Checkpoint, folder: Path, model: Model) -> Callable[[Recording], str]:
    """whisper.cpp, through pywhispercpp, without its flash attention, which rounds to half precision."""
    from pywhispercpp.model import ContextParams
    from pywhispercpp.model import Model as CppModel

    t = model.tokenizer
    vocabulary = [t.token_bytes(token) for token in range(t.eot)]
    filters = mel_filters(checkpoint.dims.n_mels)
    save_ggml(checkpoint, folder / "nano.bin", "f16", filters=filters, vocabulary=vocabulary)
    exact: ContextParams = {"flash_attn": False}
    loaded = CppModel(
        str(folder / "nano.bin"), context_params=exact, print_progress=False, print_realtime=False
    )

    def write(item: Recording) -> str:
        # It refuses less than a second, and pads with silence itself.
        samples = np.pad(item.samples, (0, max(0, SAMPLE_RATE + 1600 - len(item.samples))))
        segments = loaded.transcribe(
            samples,
            language=item.language,
            no_timestamps=True,
            single_segment=True,
            no_context=True,
            temperature_inc=0.0,
            suppress_nst=True,
        )
        return "".join(segment.text for segment in segments)

    return write


PROGRAMS: tuple[
    tuple[str, str, Padding, Callable[[Checkpoint, Path, Model], Callable[[Recording], str]]], ...
] = (
    ("openai-whisper", "whisper", "zero", openai_whisper),
    ("transformers", "transformers", "silence", transformers_whisper),
    ("CTranslate2 (faster-whisper)", "ctranslate2", "zero", ctranslate2_whisper),
    ("whisper.cpp", "pywhispercpp", "silence", whisper_cpp),
)


def save_vocabulary(model: Model, folder: Path) -> None:
    """Write a tokenizer.json that names every id, as CTranslate2's converter wants; it cannot cut text."""
    t = model.tokenizer
    printable = [b for b in range(256) if chr(b).isprintable() and chr(b) != " " and b not in range(128, 161)]
    others = (b for b in range(256) if b not in printable)
    letters = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    pieces = {"".join(letters[b] for b in t.token_bytes(token)): token for token in range(t.eot)}
    specials = [
        {"id": token, "content": t.encoding.decode([token]), "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token in range(t.eot, t.n_vocab)
    ]
    content = {
        "version": "1.0",
        "added_tokens": specials,
        "model": {"type": "BPE", "vocab": pieces, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": t.encoding.decode([t.eot])}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _suppressed(model: Model) -> list[int]:
    """What Whisper never writes: first the token that may not come at the start, then signs and specials."""
    t = model.tokenizer
    specials = (t.transcribe, t.translate, t.sot, t.sot_prev, t.sot_lm, t.no_speech)
    return [t.encoding.encode_single_token(" "), *t.non_speech_tokens, *specials]


def _greedy(
    logits: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor, hidden: Sequence[int]
) -> list[int]:
    """Best tokens until the end of text (the first special id), without timestamps."""
    eot = int(start[0, 0]) - 1
    tokens = start
    with torch.inference_mode():
        while tokens.shape[1] < MAX_TOKENS:
            last = logits(tokens)[0, -1].float()
            last[list(hidden[1:])] = -torch.inf
            if tokens.shape[1] == start.shape[1]:
                last[[hidden[0], eot]] = -torch.inf
            best = int(last.argmax())
            if best == eot:
                break
            tokens = torch.cat([tokens, torch.tensor([[best]])], dim=1)
    return [int(token) for token in tokens[0, start.shape[1] :]]
