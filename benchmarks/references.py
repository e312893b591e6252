"""The same weights in the other programs: openai-whisper and faster-whisper, for benchmarks and parity.

faster-whisper loads CTranslate2 folders; its converter wants a Hugging Face folder with a tokenizer,
which is built here from tiktoken's ranks. Needs `make test`'s environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.huggingface import save_huggingface
from sottovoce.models.checkpoint.openai import save_openai

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


def write_tokenizer(n_languages: int, folder: Path) -> None:
    """`tokenizer.json` with the ids of Whisper's multilingual vocabulary."""
    import whisper
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from whisper.tokenizer import get_encoding

    encoding = get_encoding("multilingual", n_languages)
    ranks = Path(whisper.__file__).parent / "assets" / "multilingual.tiktoken"
    first_special = encoding.n_vocab - len(encoding.special_tokens_set)
    special = [encoding.decode([index]) for index in range(first_special, encoding.n_vocab)]
    pattern = encoding._pat_str
    converter = TikTokenConverter(vocab_file=str(ranks), pattern=pattern, extra_special_tokens=special)
    converter.converted().save(str(folder / "tokenizer.json"))


def huggingface_folder(checkpoint: Checkpoint, folder: Path) -> Path:
    """A Hugging Face folder that `transformers` and CTranslate2's converter read, tokenizer included."""
    save_huggingface(checkpoint, folder)
    write_tokenizer(checkpoint.dims.n_languages, folder)
    return folder


def faster_model(
    checkpoint: Checkpoint, folder: Path, compute_type: str, threads: int
) -> faster_whisper.WhisperModel:
    """faster-whisper with these weights, converted by CTranslate2's own converter."""
    from ctranslate2.converters import TransformersConverter
    from faster_whisper import WhisperModel

    source, target = folder / "hf", folder / "ct2"
    if not target.exists():
        source.mkdir()
        huggingface_folder(checkpoint, source)
        files = ["tokenizer.json", "preprocessor_config.json"]
        TransformersConverter(str(source), copy_files=files).convert(str(target))
    return WhisperModel(str(target), device="cpu", compute_type=compute_type, cpu_threads=threads)
