"""Does another checkout write the same texts in the same time? Files, batches, live, and live beside uploads.

    git worktree add --detach ../before COMMIT
    python -m benchmarks files checkouts ../shared --before ../before --clips 200 --log checkouts.jsonl
    python -m benchmarks files checkouts ../shared --before ../before --beside 3 --ways ""

Each checkout works in a process of its own, on one thread. Both read each clip in turn, and take turns in
reading it first, so that a noisy machine disturbs both alike; time is the process's own. `long`, `batch` and
`live1` to `live8` take eight clips a reading: joined, or as so many live sessions at once through one
`BatchingRuntime`. A reading differs if any text, time or language does. `--beside N` measures N times, in
turns and in real time, how late the updates of `--live` sessions are beside two uploads. Clips are people's
(`harness.clips`), those that report. Prints a Markdown table and one JSON line.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import load_model
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.speed import peak_bytes
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.runtime.batching import BatchingRuntime, Priority
from sottovoce.types import SAMPLE_RATE, Samples

UPDATE = SAMPLE_RATE // 2
BESIDE_S, N_UPLOADS = 25, 2
GROUP = 8
"""Clips of one reading, for the ways that take several at once."""
SINGLE = ("default", "words", "phrases", "live", "list", "any")
PHRASES = ("Kubernetes", "the president", "Saoirse Ronan", "in the morning", "movable metal letters")
GROUPED = ("long", "batch", "live1", "live4", "live8")


def read(model: Any, way: str, clips: Sequence[tuple[str, str]]) -> Any:
    """Return what a way makes of clips, each a file and its language, as it can be compared."""
    audio = [load_audio(file) for file, _ in clips]
    language = clips[0][1] if len(clips[0][1]) == 2 else None
    match way:
        case "default":
            result = model.transcribe(audio[0])
            return [(s.text, s.start, s.end, s.language) for s in result]
        case "words":
            result = model.transcribe(audio[0], language=language, word_timestamps=True)
            return [(w.word, w.start, w.end) for s in result for w in s.words or ()]
        case "phrases":
            result = model.transcribe(audio[0], beam_size=5, fusion=model.fusion(hotwords=PHRASES))
            return [(s.text, s.start) for s in result]
        case "long":
            return [(s.text, s.start) for s in model.transcribe(np.concatenate(audio))]
        case "batch":
            options = TranscribeOptions(mode="vad", batch_size=8)
            return [(s.text, s.start) for s in model.transcribe(np.concatenate(audio), options=options)]
        case "live":
            return spoken(model.session([language or "en"]), audio[0])
        case "list":
            return spoken(model.session(sorted({"en", "de", "es", language or "fr"})), audio[0])
        case "any":
            return spoken(model.session(), audio[0])
    return together(model, [language or "en"], audio, int(way.removeprefix("live")))


def spoken(session: Any, samples: Samples) -> list[str]:
    events = [
        item
        for start in range(0, len(samples), UPDATE)
        for item in session.push(samples[start : start + UPDATE])
    ]
    return [str(item.text) for item in (*events, *session.close()) if hasattr(item, "text")]


def together(model: Any, languages: list[str], audio: Sequence[Samples], n_sessions: int) -> list[list[str]]:
    """Return the texts of the clips, read by so many live sessions at once."""
    runtime = BatchingRuntime(model.backend)
    texts: list[list[str]] = [[] for _ in audio]

    def one(first: int) -> None:
        for index in range(first, len(audio), n_sessions):
            with runtime.caller() as caller:
                texts[index] = spoken(model.session(languages, runtime=caller), audio[index])

    run([lambda first=first: one(first) for first in range(n_sessions)])  # type: ignore[misc]
    runtime.close()
    return texts


def run(works: Sequence[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(works)) as pool:
        list(pool.map(lambda work: work(), works))


def beside(model: Any, clips: Sequence[tuple[str, str]], n_live: int) -> list[float]:
    """Return how late (seconds) the updates of live sessions are beside two uploads, in real time."""
    samples = np.concatenate([load_audio(file) for file, _ in clips])
    runtime = BatchingRuntime(model.backend, n_engines=2, n_threads=2)
    ended = threading.Event()
    late: list[float] = []

    def upload() -> None:
        while not ended.is_set():
            with runtime.caller(Priority.FILE) as caller:
                for _ in model.transcribe(samples[: 60 * SAMPLE_RATE], language="en", runtime=caller):
                    if ended.is_set():
                        break

    def speak(index: int) -> None:
        kept = samples[index * 10 * SAMPLE_RATE :][: BESIDE_S * SAMPLE_RATE]
        with runtime.caller() as caller:
            session = model.session(["en"], runtime=caller)
            began = time.monotonic() + index / 6
            for number, start in enumerate(range(0, len(kept), UPDATE), 1):
                due = began + number * UPDATE / SAMPLE_RATE
                time.sleep(max(0.0, due - time.monotonic()))
                session.push(kept[start : start + UPDATE])
                late.append(time.monotonic() - due)
            session.close()

    def speakers() -> None:
        run([lambda index=index: speak(index) for index in range(n_live)])  # type: ignore[misc]
        ended.set()

    run([speakers, *[upload] * N_UPLOADS])
    runtime.close()
    return late


def serve(name: str, backend: str) -> None:
    """Answer readings, a JSON line each, until standard input ends: the process of one checkout."""
    import torch

    torch.set_num_threads(1)
    model = load_model(name, backend=backend)
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        way, clips = json.loads(line)
        began = time.process_time()
        n_live = way.removeprefix("beside")
        result = read(model, way, clips) if n_live == way else beside(model, clips, int(n_live))
        answer = {"found": result, "cpu_s": time.process_time() - began, "peak": peak_bytes()}
        print(json.dumps(answer), file=answers, flush=True)


class Checkout:
    """The process of one checkout."""

    def __init__(self, folder: Path, model: str, backend: str) -> None:
        command = [sys.executable, __file__, "--serve", model, backend]
        environment = os.environ | {"PYTHONPATH": str(folder.resolve() / "src")}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def read(self, way: str, clips: Sequence[tuple[str, str]]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps((way, clips)) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    from benchmarks.harness.clips import clips, spread
    from benchmarks.harness.report import (
        Log,
        add_shared,
        benchmark_parser,
        listed,
        show_heads,
        show_json,
        show_row,
    )

    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument(
        "--now", type=Path, default=Path(__file__).parents[2], help="this checkout [this one]"
    )
    parser.add_argument("--model", default="base")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--ways", type=listed(), default=[*SINGLE, *GROUPED])
    parser.add_argument(
        "--beside", type=int, default=0, help="times that live beside uploads is measured [0]"
    )
    parser.add_argument("--live", type=int, default=3, help="live sessions beside the uploads [3]")
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    chosen = spread(
        [entry for entry in clips(given.shared / "data", "test") if len(entry.languages) == 1], given.clips
    )
    items = [(str(entry.file), entry.language) for entry in chosen]
    log = Log(given.log)
    folders = {"before": given.before, "now": given.now}
    sides = {name: Checkout(folder, given.model, given.backend) for name, folder in folders.items()}
    for side in sides.values():
        side.read("default", items[:1])  # the first reading of a process is not its speed
    show_heads("way", "clips", "readings that differ", "processor time, now to before", "median of readings")
    figures: dict[str, Any] = {}
    for way in filter(None, given.ways):
        size = GROUP if way in GROUPED else 1
        groups = [items[at : at + size] for at in range(0, len(items), size)]
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for number, group in enumerate(groups):
            for name in list(sides)[:: 1 if number % 2 else -1]:
                key, item = f"{name} {way}", " ".join(file for file, _ in group)
                if log.get(key, item) is None:
                    log.add(key, item, sides[name].read(way, group))
                rows[name].append(log.found[key, item])
            print(f"\r{way}: {number + 1} of {len(groups)}", end="", file=sys.stderr, flush=True)
        differ = [i for i, (a, b) in enumerate(zip(*rows.values(), strict=True)) if a["found"] != b["found"]]
        times = [[row["cpu_s"] for row in result] for result in rows.values()]
        ratio = sum(times[1]) / sum(times[0])
        middle = statistics.median(now / before for before, now in zip(*times, strict=True))
        figures[way] = {
            "clips": len(items),
            "differ": [groups[i] for i in differ],
            "ratio": ratio,
            "median": middle,
        }
        print("\r", end="", file=sys.stderr)
        show_row(way, len(items), len(differ), f"{ratio:.3f}", f"{middle:.3f}")
    late_s: dict[str, list[list[float]]] = {name: [] for name in sides}
    for _ in range(given.beside):
        for name, side in sides.items():
            late_s[name].append(side.read(f"beside{given.live}", items[:20])["found"])
    for name, side in sides.items():
        peak = side.read("default", items[:1])["peak"]
        late = [(statistics.median(entry), float(np.percentile(entry, 95))) for entry in late_s[name]]
        print(
            f"{name}: peak {(peak or 0) / 2**20:.0f} MB",
            *(f"late {a:.3f} s, 95 % {b:.3f} s" for a, b in late),
            sep="; ",
        )
        figures[name] = {"peak": peak, "late": late}
        side.stop()
    show_json("files checkouts", figures)


if __name__ == "__main__":
    serve(*sys.argv[2:])
