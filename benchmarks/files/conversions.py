"""One model in four formats, each loaded by its own program: the same words, and how long opening takes.

    python -m benchmarks files conversions --model base --clips manifest.jsonl
    python -m benchmarks files conversions --model base.pt --clips manifest.jsonl --ids a,b --type f32

Every format is written from the checkpoint first, and every other one then from what was read of that:
twelve conversions, and four in place. openai-whisper, transformers, faster-whisper and whisper.cpp
(pywhispercpp) decode the clips greedily from the written files; a program's text must not depend on where
its file came from. Between programs it may: they pad and fall back differently, so those rows are for
reading. Needs the `reference` extra. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.harness.tables import show_json
from sottovoce.audio.io import load_audio
from sottovoce.models.checkpoint.convert import write_checkpoint
from sottovoce.models.load import load_checkpoint, open_checkpoint
from sottovoce.types import Samples

KINDS = ("pt", "hf", "ggml", "ct2")
SUFFIX = {"pt": ".pt", "ggml": ".bin"}
N_OPENED = 3


@dataclass(frozen=True, slots=True)
class Clip:
    """A recording of up to 30 s, and its language."""

    name: str
    samples: Samples
    language: str


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    clips = _clips(options.clips, options.ids.split(",") if options.ids else None)
    with tempfile.TemporaryDirectory() as folder:
        files = _convert(options.model, Path(folder), options.type)
        opened = {kind: _seconds_to_open(files[kind, kind]) for kind in KINDS}
        texts = {key: PROGRAMS[key[1]](file, clips) for key, file in sorted(files.items(), key=_by_target)}
    _print_conversions(texts)
    _print_texts(texts, clips)
    print("\nopening, median seconds: " + ", ".join(f"{kind} {opened[kind]:.2f}" for kind in KINDS))
    rows = [{"from": source, "to": target, "texts": found} for (source, target), found in texts.items()]
    same = {target: _n_texts(texts, target) for target in KINDS}
    asked = {"model": options.model, "type": options.type}
    show_json("files conversions", asked | {"different": same, "rows": rows, "opening_s": opened})


def _convert(model: str, folder: Path, number: str) -> dict[tuple[str, str], Path]:
    """(from, to) to the written file; (kind, kind) is written from the checkpoint itself."""
    files: dict[tuple[str, str], Path] = {}
    checkpoint = load_checkpoint(model)
    for source in KINDS:
        files[source, source] = folder / f"{source}{SUFFIX.get(source, '')}"
        write_checkpoint(checkpoint, files[source, source], source, number)
    for source in KINDS:
        read = load_checkpoint(files[source, source])
        for target in KINDS:
            if source != target:
                files[source, target] = folder / f"{source}-{target}{SUFFIX.get(target, '')}"
                write_checkpoint(read, files[source, target], target, number)
    return files


def _seconds_to_open(path: Path) -> float:
    """Median time until every weight was read once, as a file may be mapped and not read."""
    taken = []
    for _ in range(N_OPENED):
        start = time.perf_counter()
        for tensor in open_checkpoint(path).tensors.values():
            tensor.view(-1)[::512].sum()
        taken.append(time.perf_counter() - start)
        gc.collect()
    return statistics.median(taken)


def _openai(file: Path, clips: list[Clip]) -> list[str]:
    import whisper

    model = whisper.load_model(str(file), device="cpu")
    decoded = [
        model.transcribe(clip.samples, language=clip.language, fp16=False, temperature=0.0) for clip in clips
    ]
    return [str(one["text"]).strip() for one in decoded]


def _transformers(folder: Path, clips: list[Clip]) -> list[str]:
    from transformers import AutoProcessor, WhisperForConditionalGeneration

    processor = AutoProcessor.from_pretrained(folder)
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    texts = []
    for clip in clips:
        inputs = processor(clip.samples, sampling_rate=16_000, return_tensors="pt")
        asked = {"language": clip.language} if model.generation_config.is_multilingual else {}
        ids = model.generate(inputs.input_features, return_timestamps=True, num_beams=1, **asked)
        texts.append(processor.batch_decode(ids, skip_special_tokens=True)[0].strip())
    return texts


def _whisper_cpp(file: Path, clips: list[Clip]) -> list[str]:
    from pywhispercpp.model import Model

    model = Model(
        str(file), n_threads=torch.get_num_threads(), redirect_whispercpp_logs_to=None,
        context_params={"use_gpu": False, "flash_attn": False},
        print_progress=False, print_realtime=False, temperature=0.0, temperature_inc=0.0,
    )  # fmt: skip
    texts = []
    for clip in clips:
        segments = model.transcribe(np.asarray(clip.samples, dtype=np.float32), language=clip.language)
        texts.append(" ".join(segment.text.strip() for segment in segments))
    return texts


def _faster_whisper(folder: Path, clips: list[Clip]) -> list[str]:
    from faster_whisper import WhisperModel

    threads = torch.get_num_threads()
    model = WhisperModel(str(folder), device="cpu", compute_type="float32", cpu_threads=threads)
    texts = []
    for clip in clips:
        segments, _ = model.transcribe(clip.samples, language=clip.language, beam_size=1, temperature=0.0)
        texts.append("".join(segment.text for segment in segments).strip())
    return texts


PROGRAMS: dict[str, Callable[[Path, list[Clip]], list[str]]] = {
    "pt": _openai,
    "hf": _transformers,
    "ggml": _whisper_cpp,
    "ct2": _faster_whisper,
}
NAMES = {"pt": "openai-whisper", "hf": "transformers", "ggml": "whisper.cpp", "ct2": "faster-whisper"}


def _by_target(entry: tuple[tuple[str, str], Path]) -> tuple[str, str]:
    (source, target), _ = entry
    return target, source


def _n_texts(texts: dict[tuple[str, str], list[str]], target: str) -> int:
    """In how many clips a program's text depends on where its file came from."""
    found = [texts[source, target] for source in KINDS]
    return sum(len(set(of_clip)) > 1 for of_clip in zip(*found, strict=True))


def _print_conversions(texts: dict[tuple[str, str], list[str]]) -> None:
    print("| from | " + " | ".join(f"{kind}: {NAMES[kind]}" for kind in KINDS) + " |")
    print("|---" * (len(KINDS) + 1) + "|")
    for source in KINDS:
        cells = []
        for target in KINDS:
            pairs = zip(texts[source, target], texts[target, target], strict=True)
            equal = [ours == theirs for ours, theirs in pairs]
            cells.append("–" if source == target else f"{sum(equal)} of {len(equal)} equal")
        print(f"| {source} | " + " | ".join(cells) + " |")


def _print_texts(texts: dict[tuple[str, str], list[str]], clips: list[Clip]) -> None:
    for i, clip in enumerate(clips):
        print(f"\n{clip.name}")
        for kind in KINDS:
            print(f"  {NAMES[kind]:15} {texts[kind, kind][i]}")


def _clips(manifest: Path, ids: list[str] | None) -> list[Clip]:
    lines = map(json.loads, manifest.read_text(encoding="utf-8").splitlines())
    chosen = [line for line in lines if (line["id"] in ids if ids else isinstance(line["language"], str))]
    return [
        Clip(line["id"], load_audio(str(manifest.parent / line["file"])), line["language"])
        for line in (chosen if ids else chosen[:2])
    ]


def _options() -> argparse.Namespace:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="base", help="a name, or any checkpoint")
    parser.add_argument("--clips", type=Path, required=True, help="a manifest of recordings of up to 30 s")
    parser.add_argument("--ids", help="which of them, separated by commas [default: the first two]")
    parser.add_argument("--type", default="f16", help="f32 or f16")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()
