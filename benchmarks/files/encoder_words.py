"""Words read wrong with the encoder in the kernels, beside PyTorch's in bfloat16 and float32.

    python -m benchmarks files encoder_words ../shared --per-language 12

Clips of people in four languages whose text is known, none of which chose anything; greedy, the language
given. "native" reads with the decoder of the kernels, whose encoder is told beside it; "torch" with PyTorch
alone. Needs sottovoce-kernels. Prints a table and one JSON line.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import sottovoce
from benchmarks.harness.arguments import add_shared, benchmark_parser
from benchmarks.harness.clips import Clip, clips, spread
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.wer import ErrorCounts, ScoredUtterance, count_errors

LANGUAGES = ("en", "de", "es", "pl")
WAYS = {
    "torch, float32": ("torch", "float32"),
    "torch, bfloat16": ("torch", "bfloat16"),
    "native, encoder PyTorch's in float32": ("native", "float32"),
    "native, encoder PyTorch's in bfloat16": ("native", "bfloat16"),
    "native, encoder in the kernels": ("native", "auto"),
}
"""What the table calls them, to a runtime and a number format."""


def chosen_clips(data: Path, per_language: int) -> list[Clip]:
    found = (clips(data, "test", language=language, with_text=True) for language in LANGUAGES)
    return [clip for of_language in found for clip in spread(of_language, per_language)]


def read(model: sottovoce.Model, found: list[Clip]) -> tuple[ErrorCounts, list[str], float]:
    """Errors in words, texts, and processor seconds."""
    total, texts, processor_s = ErrorCounts(), [], 0.0
    for clip in found:
        samples, began = load_audio(clip.file), time.process_time()
        texts.append(model.transcribe(samples, language=clip.language, beam_size=None).text)
        processor_s += time.process_time() - began
        total += count_errors(ScoredUtterance(clip.text or "", texts[-1], clip.language)).word
    return total, texts, processor_s


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--per-language", type=int, default=12)
    arguments = parser.parse_args()
    found = chosen_clips(arguments.shared / "data", arguments.per_language)
    show_heads("", "words wrong", f"texts as {next(iter(WAYS))}", "processor seconds")
    figures, first = {}, None
    for name, (runtime, dtype) in WAYS.items():
        model = sottovoce.load_model(arguments.model, device="cpu", dtype=dtype, backend=runtime)
        counts, texts, processor_s = read(model, found)
        first = first or texts
        same = sum(one == other for one, other in zip(texts, first, strict=True))
        wrong = f"{counts.n_errors} of {counts.n_reference} ({counts.n_errors / counts.n_reference:.1%})"
        show_row(name, wrong, f"{same} of {len(found)}", f"{processor_s:.1f}")
        figures[name] = {**asdict(counts), "same_texts": same, "processor_s": processor_s}
    show_json("encoder_words", {"model": arguments.model, "clips": len(found), "ways": figures})


if __name__ == "__main__":
    main()
