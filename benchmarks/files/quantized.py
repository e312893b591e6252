"""What quantising costs: bytes, how far the weights move, and words that are read otherwise.

    python -m benchmarks files quantized ../shared

Writes the model in each of ggml's types, and in int8 for CTranslate2 (what `--dtype int8` does), tells what
its writer counts, and has our own decoder read clips of people (none of which chose a setting) with the
weights of the file, greedily, the language given.
Prints a table and one JSON line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import sottovoce
from benchmarks.harness.arguments import add_shared, benchmark_parser
from benchmarks.harness.clips import Clip, clips, spread
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.wer import ErrorCounts, ScoredUtterance, count_errors
from sottovoce.models.checkpoint.convert import write_checkpoint
from sottovoce.models.checkpoint.ggml_blocks import WRITTEN
from sottovoce.models.load import load_checkpoint

LANGUAGES = ("en", "de", "es", "pl")


def errors(path: Path, found: Sequence[Clip], dtype: str) -> ErrorCounts:
    """Words that a file's weights read wrong."""
    model = sottovoce.load_model(str(path), device="cpu", dtype=dtype)
    total = ErrorCounts()
    for number, clip in enumerate(found, 1):
        heard = model.transcribe(load_audio(clip.file), language=clip.language, beam_size=None).text
        total += count_errors(ScoredUtterance(clip.text or "", heard, clip.language)).word
        print(f"\r{path.name}: {number} of {len(found)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return total


def n_bytes(path: Path) -> int:
    """Of a file, or of all in a folder."""
    return sum(part.stat().st_size for part in ([path] if path.is_file() else path.iterdir()))


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--types", type=lambda text: text.split(","), default=[*WRITTEN, "int8"])
    parser.add_argument("--per-language", type=int, default=8, help="clips of each of four languages")
    parser.add_argument("--dtype", default="bfloat16", help="what the weights are read in")
    arguments = parser.parse_args()
    checkpoint = load_checkpoint(arguments.model)
    found = [
        clip
        for language in LANGUAGES
        for clip in spread(
            clips(arguments.shared / "data", "test", language=language, with_text=True),
            arguments.per_language,
        )
    ]
    show_heads("type", "MB", "relative RMS error", "largest error", "worst tensor", "words wrong")

    figures = {}
    for name in arguments.types:
        with TemporaryDirectory() as folder:
            path = Path(folder) / name
            loss = write_checkpoint(checkpoint, path, "ct2" if name == "int8" else "ggml", name)
            size, counts = n_bytes(path) / 1e6, errors(path, found, arguments.dtype)
        lost = (
            "– | – | –"
            if loss is None
            else f"{loss.relative_rms:.2%} | {loss.largest_error:.2g} "
            f"| `{loss.worst}` ({loss.worst_relative_rms:.2%})"
        )
        show_row(name, f"{size:.1f}", lost, f"{counts.n_errors} of {counts.n_reference}")
        figures[name] = {"mb": round(size, 1), "errors": counts.n_errors, "loss": loss and asdict(loss)}
    show_json("files quantized", {"clips": len(found), "types": figures})
