"""What live speech costs, how late and how right it is: every table and picture of docs/streaming.md.

    python benchmarks/speech_clips.py /tmp/clips
    python benchmarks/streaming.py language /tmp/clips/single.jsonl READERS.jsonl --noise tap.wav
    python benchmarks/streaming.py latency /tmp/clips/single.jsonl READERS.jsonl --picture latency.png
    python benchmarks/streaming.py cost /tmp/clips/talk.jsonl
    python benchmarks/streaming.py long --long-s 3600 --picture hour.png
    python benchmarks/streaming.py switching /tmp/clips/mixed.jsonl /tmp/clips/phrase.jsonl
    python benchmarks/streaming.py single /tmp/clips/long.jsonl READERS.jsonl

language   language of one window: accuracy over its width, clean and in noise
latency    errors against latency over frame_threshold, beside the offline transcript, language given
cost       encoder frames, decoder passes and tokens, probe rows and processor time for a second of audio:
           our schedule and SimulStreaming's, on the same weights and decoder, in turns, language given
long       one stream: processor time a second of audio and memory, a point a minute
switching  F1, delay and mixed error rate of restart and parallel mode
single     false switches on recordings of one language, choice among all of the model's

MANIFEST#PREFIX takes the recordings whose id begins so; --limit N takes N of each manifest, spread over it,
languages in turn; --split test takes what a manifest marks so. Counts do not depend on the machine. Prints a
table, then one JSON line. `live_tables.py` runs all of them.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from live_language import accuracy_rows
from live_sides import schedules, thrifty
from probe import SIZES

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.vad_stream import VadStream
from sottovoce.cli.evaluate import latencies, offline, rates_of
from sottovoce.evaluation.live import LiveRun, run_live
from sottovoce.evaluation.manifest import ManifestEntry, read_manifest
from sottovoce.evaluation.switching import NO_SCORES, score_switches
from sottovoce.evaluation.wer import ScoreOptions, Utterance, score
from sottovoce.streaming.options import StreamOptions
from sottovoce.streaming.parallel import ParallelOptions
from sottovoce.streaming.session import Session, SessionOptions
from sottovoce.types import SAMPLE_RATE, Samples

CLIPS = Path(__file__).parents[1] / "examples" / "clips"
Row = dict[str, Any]


def recordings(given: argparse.Namespace, model: Model) -> Iterator[tuple[str, list[ManifestEntry]]]:
    """Each manifest's name and its recordings in the model's languages."""
    for wish in given.manifests:
        path, _, prefix = wish.partition("#")
        lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
        marked = {line["id"]: line.get("split") for line in lines}
        entries = [
            entry
            for entry in read_manifest(path)
            if entry.languages
            and set(entry.languages) <= set(model.languages)
            and entry.id.startswith(prefix)
            and given.split in (None, marked.get(entry.id))
        ]
        yield prefix.strip("/-") or Path(path).stem, spread(entries, given.limit)


def spread(entries: Sequence[ManifestEntry], limit: int | None) -> list[ManifestEntry]:
    """At most so many, spread over the list, languages in turn."""
    queues: dict[tuple[str, ...], list[ManifestEntry]] = {}
    for entry in entries:
        queues.setdefault(entry.languages if entry.language else (), []).append(entry)
    n_each = math.ceil((limit or len(entries)) / max(1, len(queues)))
    chosen = [
        [queue[int(i * max(1.0, len(queue) / n_each))] for i in range(min(n_each, len(queue)))]
        for queue in queues.values()
    ]
    longest = max(map(len, chosen), default=0)
    turns = [queue[i] for i in range(longest) for queue in chosen if i < len(queue)]
    return turns[: limit or len(turns)]


def session_of(model: Model, languages: Sequence[str], **options: Any) -> Session:
    made = SessionOptions(tuple(languages), **options)
    return Session(model.backend, model.tokenizer, made, vad=VadStream())


def language(model: Model, given: argparse.Namespace) -> list[Row]:
    return [
        row
        for name, entries in recordings(given, model)
        for row in accuracy_rows(model, name, [e for e in entries if e.language], given.noise, given.snr_db)
    ]


def latency(model: Model, given: argparse.Namespace) -> list[Row]:
    groups: dict[str, Row] = {}
    for name, entries in recordings(given, model):
        whole = [offline(model, entry, model.languages) for entry in entries]
        live = []
        for threshold in map(float, given.frame_thresholds.split(",")):
            stream = StreamOptions(chunk_s=given.chunk_s, frame_threshold=threshold)
            runs = [
                run_live(
                    session_of(model, [entry.language or "en"], switching="off", stream=stream),
                    load_audio(str(entry.path)),
                    chunk_s=given.chunk_s,
                )
                for entry in entries
            ]
            live.append({"frame_threshold": threshold, **latencies(entries, whole, runs)})
        rates = rates_of(entries, [text for text, _ in whole])
        groups[name] = {"n_recordings": len(entries), "offline": rates, "live": live}
    if given.picture:
        from live_plots import plot_latency

        plot_latency(given.picture, groups, model.name)
    columns = ("wer", "mer", "laal_s", "word_latency_s", "n_words_timed")
    return [
        {"clips": name, "frame_threshold": row.get("frame_threshold", "offline")}
        | {column: shown(row.get(column)) for column in columns}
        for name, group in groups.items()
        for row in (group["offline"], *group["live"])
    ]


def cost(model: Model, given: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for name, entries in recordings(given, model):
        sides = schedules(given.chunk_s, given.as_if)
        for entry in entries:
            audio = load_audio(str(entry.path))
            for side in sides:
                side.run(model, entry, audio)
        rows += [{"clips": name} | side.row(entries) for side in sides]
    return rows


def long(model: Model, given: argparse.Namespace) -> list[Row]:
    """The demo's clips again and again in one session that follows all languages."""
    names = ("en", "de", "es", "fr", "zh", "mixed")
    audio = np.concatenate([load_audio(str(CLIPS / f"{name}.flac")) for name in names])
    session = session_of(model, model.languages, stream=thrifty(given.chunk_s))
    step = round(given.chunk_s * SAMPLE_RATE)
    curve: list[Row] = []
    at, last, began = 0, 0, time.process_time()
    while at < given.long_s * SAMPLE_RATE:
        session.push(np.take(audio, range(at, at + step), mode="wrap").astype(np.float32))
        at += step
        if at - last >= min(60.0, given.long_s / 10) * SAMPLE_RATE:
            per_second = (time.process_time() - began) / ((at - last) / SAMPLE_RATE)
            point = {"at_s": round(at / SAMPLE_RATE), "cpu_s_per_s": round(per_second, 4)}
            curve.append(point | {"resident_mb": resident_mb()})
            print(json.dumps(curve[-1]), flush=True)
            last, began = at, time.process_time()
    if given.picture:
        from live_plots import plot_hour

        plot_hour(given.picture, curve, model.name)
    return curve[:: max(1, len(curve) // 12)]


def resident_mb() -> int:
    """Memory of this process now; its peak where the system does not tell."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def switching(model: Model, given: argparse.Namespace) -> list[Row]:
    rows = []
    for name, entries in recordings(given, model):
        audio = [load_audio(str(entry.path)) for entry in entries]
        for mode in given.modes.split(","):
            runs = [run_mode(model, mode, one, given) for one in audio]
            rows.append({"clips": name, "mode": mode, "n": len(entries)} | switch_scores(entries, runs))
            if given.texts:
                for entry, run in zip(entries, runs, strict=True):
                    print(f"{entry.id} {mode}\n  {entry.text}\n  {run.text}")
    return rows


def run_mode(model: Model, mode: str, audio: Samples, given: argparse.Namespace) -> LiveRun:
    parallel = ParallelOptions(**json.loads(given.parallel))
    stream = StreamOptions(chunk_s=given.chunk_s)
    session = session_of(model, model.languages, switching=mode, stream=stream, parallel=parallel)
    return run_live(session, audio, chunk_s=given.chunk_s)


def switch_scores(entries: Sequence[ManifestEntry], runs: Sequence[LiveRun]) -> Row:
    wide = narrow = NO_SCORES
    for entry, run in zip(entries, runs, strict=True):
        spans = [(span.start_s, span.end_s, span.language) for span in entry.spans]
        wide += score_switches(run.switches, spans, duration_s=run.duration_s)
        narrow += score_switches(run.switches, spans, duration_s=run.duration_s, tolerance_s=0.5)
    utterances = [Utterance(e.text, r.text, e.languages) for e, r in zip(entries, runs, strict=True)]
    errors = score(utterances, ScoreOptions(n_resamples=0)).overall.mer
    return {
        "true": wide.n_true,
        "found": wide.n_found,
        "f1_1s": shown(wide.f1),
        "f1_0.5s": shown(narrow.f1),
        "delay_s": shown(wide.median_delay_s),
        "flaps": wide.n_flaps,
        "mer": shown(errors.rate),
        "deleted": errors.counts.deletions,
        "inserted": errors.counts.insertions,
        "cpu_s_per_s": shown(sum(run.cpu_s for run in runs) / sum(run.duration_s for run in runs)),
    }


def single(model: Model, given: argparse.Namespace) -> list[Row]:
    rows = []
    for name, entries in recordings(given, model):
        seconds, wrong, false = 0.0, [], []
        for entry in entries:
            audio = load_audio(str(entry.path))
            session = session_of(model, model.languages, stream=thrifty(given.chunk_s))
            run = run_live(session, audio, chunk_s=given.chunk_s)
            seconds += run.duration_s
            wrong += [entry.id] if run.first_language not in (None, entry.language) else []
            false += [(entry.id, one.source, one.target, round(one.at_s, 1)) for one in run.switches]
        print(f"{name}: first language wrong in {wrong}, false switches {false}", flush=True)
        row = {"clips": name, "n": len(entries), "minutes": round(seconds / 60, 1)}
        rows.append(row | {"wrong_first": len(wrong), "false_switches": len(false)})
    return rows


def shown(value: float | None) -> float | None:
    return None if value is None else round(float(value), 3)


def show(rows: Sequence[Row]) -> None:
    columns = list(rows[0])
    table = [columns, *([str(one[name]) for name in columns] for one in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


COMMANDS = {
    "language": language,
    "latency": latency,
    "cost": cost,
    "long": long,
    "switching": switching,
    "single": single,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=sorted(COMMANDS))
    parser.add_argument("manifests", nargs="*", metavar="MANIFEST[#PREFIX]")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--limit", type=int, help="recordings of each manifest")
    parser.add_argument("--split", help="only recordings that the manifest marks so")
    parser.add_argument("--chunk-s", type=float, default=0.5)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--noise", nargs="*", default=[], help="language: files to mix in, in turns")
    parser.add_argument("--snr-db", type=float, default=10.0, help="language")
    parser.add_argument("--frame-thresholds", default="5,10,25,50,100", help="latency")
    parser.add_argument("--as-if", choices=sorted(SIZES), help="cost: calls cost those of a random model")
    parser.add_argument("--long-s", type=float, default=3600.0, help="long")
    parser.add_argument("--modes", default="restart,parallel", help="switching")
    parser.add_argument("--parallel", default="{}", help="switching: ParallelOptions as JSON")
    parser.add_argument("--texts", action="store_true", help="switching: print what was said and heard")
    given = parser.parse_args()
    if given.command != "long" and not given.manifests:
        parser.error(f"{given.command}: expected at least one manifest")
    return given


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    model = load_model(given.model, device="cpu", dtype="float32")
    rows = COMMANDS[given.command](model, given)
    show(rows)
    machine = {"machine": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    print(json.dumps({"model": given.model, "dtype": "float32", **machine, "rows": rows}))


if __name__ == "__main__":
    main()
