"""One long recording read by several processes beside one: what is written otherwise, and how fast.

    python -m benchmarks files processors ../shared --seconds 180

Clips of people that report, joined with pauses, are read by one process and by several, greedily, language
given, one thread each. Words that differ are counted, those that begin within 30 s behind a cut apart: a
window that begins elsewhere may read them otherwise, and has no text before it. The speed is the ratio of
times on the clock; the processes load the model anew. Prints a table and one JSON line.
"""

from __future__ import annotations

import os
import tempfile
import time
import wave
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness.arguments import add_shared, benchmark_parser
from benchmarks.harness.clips import clips, joined, spread
from benchmarks.harness.tables import show_heads, show_json
from sottovoce.api import Model, load_model
from sottovoce.archive.multiprocess import parts_of, transcribe_parts
from sottovoce.audio.vad import speech_segments
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.options.vad import WINDOW_VAD
from sottovoce.text.normalize import plain
from sottovoce.types import SAMPLE_RATE, Samples, Segment

NEAR_S = 30.0


def written(path: Path, samples: Samples) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def words_of(segments: Sequence[Segment]) -> list[tuple[str, float]]:
    """Words as they are compared, and where their segments begin."""
    return [(word, segment.start) for segment in segments for word in plain(segment.text).split()]


def differing(
    one: Sequence[tuple[str, float]], other: Sequence[tuple[str, float]], cuts: Sequence[float]
) -> tuple[int, int]:
    """How many words of one differ from the other's: within `NEAR_S` behind a cut, and elsewhere."""
    blocks = SequenceMatcher(None, [word for word, _ in one], [word for word, _ in other], autojunk=False)
    near = far = 0
    for kind, first, last, other_first, other_last in blocks.get_opcodes():
        if kind == "equal":
            continue
        times = [start for _, start in (*one[first:last], *other[other_first:other_last])]
        n_words = max(last - first, other_last - other_first)
        if any(cut - 1.0 <= start <= cut + NEAR_S for cut in cuts for start in times):
            near += n_words
        else:
            far += n_words
    return near, far


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--processes", type=lambda text: [int(one) for one in text.split(",")], default=[2])
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    load = partial(load_model, given.model, device="cpu")
    model: Model = load()
    chosen = spread(clips(given.shared / "data", "test", language="en", with_text=True), 1000)
    samples = joined(chosen, given.seconds)
    duration_s = len(samples) / SAMPLE_RATE
    options = model.options("en", None, None, None, TranscribeOptions())
    speech = speech_segments(samples, WINDOW_VAD)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.wav"
        written(path, samples)
        began = time.monotonic()
        alone = words_of(list(model.transcribe(str(path), options=options)))
        alone_s = time.monotonic() - began
        for n_processes in given.processes:
            cuts = [part.start_s for part in parts_of(speech, 0.0, duration_s, n_processes)[1:]]
            began = time.monotonic()
            with transcribe_parts(model, load, str(path), options, n_processes) as parts:
                together = words_of(list(parts))
            took_s = time.monotonic() - began
            near, far = differing(alone, together, cuts)
            lines.append(
                {
                    "processes": n_processes,
                    "seconds": round(duration_s),
                    "words": len(alone),
                    "near_cuts": near,
                    "elsewhere": far,
                    "speed": round(alone_s / took_s, 2),
                }
            )
    show_heads("processes", "seconds", "words", "others behind cuts", "others elsewhere", "speed")

    for line in lines:
        print("| " + " | ".join(map(str, line.values())) + " |")
    show_json("files processors", {"model": given.model, "lines": lines})
