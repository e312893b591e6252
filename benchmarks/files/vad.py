"""What finding speech first costs in words: pauses that end a piece, padding, windows in a batch.

    python -m benchmarks files vad ../shared --part dev      # the defaults are chosen there
    python -m benchmarks files vad ../shared                 # other clips, reported

Clips of one language by several speakers are joined to a recording of some minutes with pauses of 0.3 to 3 s
and read window by window, with `mode="vad"` under several settings, and in batches. bfloat16 where the
processor has it, greedy. Prints the errors of words by setting, the processor's time, and one JSON line.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.clips import Clip, clips, joined, spread
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.wer import ScoredUtterance, score
from sottovoce.offline import batched
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import WINDOW_VAD
from sottovoce.types import SAMPLE_RATE

WITHOUT = "vad, nothing read again in halves"
SPOKEN = TranscribeOptions(mode="vad")
SETTINGS = {
    "window by window": TranscribeOptions(),
    "vad": SPOKEN,
    "vad, pauses of 500 ms": replace(SPOKEN, vad=replace(WINDOW_VAD, min_silence_ms=500.0)),
    "vad, pauses of 2000 ms": replace(SPOKEN, vad=replace(WINDOW_VAD, min_silence_ms=2000.0)),
    "vad, padding of 400 ms": replace(SPOKEN, vad=replace(WINDOW_VAD, speech_pad_ms=400.0)),
    "vad, batches of 8": replace(SPOKEN, batch_size=8),
    WITHOUT: SPOKEN,
}


@contextmanager
def read_once() -> Iterator[None]:
    """No text is doubted."""
    with (
        patch.object(batched, "halves_to_read", lambda *_: ()),
        patch.object(batched, "may_be_halved", lambda _: False),
    ):
        yield


def recording(data: Path, part: str, language: str, seconds: float) -> list[Clip]:
    """Clips of so many seconds together, the same share of every set."""
    found = spread(clips(data, part, language=language, with_text=True), 60)  # type: ignore[arg-type]
    chosen: list[Clip] = []
    length = 0.0
    for clip in found:
        if length < seconds:
            chosen.append(clip)
            length += len(load_audio(clip.file)) / SAMPLE_RATE
    return chosen


def errors(model: Model, chosen: Sequence[Clip], options: TranscribeOptions) -> tuple[int, int, float]:
    """Words wrong, words said, and the processor's seconds."""
    language, truth = chosen[0].language, " ".join(clip.text or "" for clip in chosen)
    began = time.process_time()
    text = model.transcribe(joined(chosen, 3600.0), language=language, options=options).text
    seconds = time.process_time() - began
    counts = score([ScoredUtterance(truth, text, language)]).overall.wer.counts
    return counts.n_errors, counts.n_reference, seconds


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    add_part(parser)
    parser.add_argument("--languages", nargs="+", default=["en", "de"])
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load_model(given.model, device="cpu")
    recordings = [recording(given.shared / "data", given.part, one, given.seconds) for one in given.languages]
    rows = []
    show_heads("setting", *given.languages, "all", "processor s")

    for name, options in SETTINGS.items():
        with read_once() if name == WITHOUT else nullcontext():
            found = [errors(model, chosen, options) for chosen in recordings]
        rates = [wrong / said for wrong, said, _ in found]
        rates.append(sum(wrong for wrong, _, _ in found) / sum(said for _, said, _ in found))
        seconds = sum(spent for _, _, spent in found)
        show_row(name, *(f"{rate:.1%}" for rate in rates), f"{seconds:.0f}")
        rows.append({"setting": name, "wer": [round(rate, 4) for rate in rates], "cpu_s": round(seconds)})
    show_json("files vad", {"model": model.name, "part": given.part, "rows": rows})
