"""Processor seconds, memory and delay of a clip of 3 and of 10 s: new processes, loaded models, the server.

    python -m benchmarks files short_clips ../shared --rounds 5

Programs (the same weights, one thread, a beam of 5) take turns, so that other work on the machine disturbs
all alike; figures are medians, of the processes' own time. A new process imports, loads and reads the short
clip, after one that is not counted. The server answers in seconds after the last byte: a file by its API of
OpenAI, and speech that was sent in real time by Wyoming, where words may come before the last byte. Prints
Markdown tables and one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np

from benchmarks.files.beside import Item, Process
from benchmarks.harness.clips import clips, joined
from benchmarks.harness.report import add_shared, benchmark_parser, listed, show_json, show_table
from benchmarks.server.live_clients import served, wave_file
from sottovoce.audio.io import load_audio
from sottovoce.models.checkpoint.ctranslate2 import save_ctranslate2
from sottovoce.models.load import load_checkpoint, write_checkpoint
from sottovoce.types import SAMPLE_RATE, Samples

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
PIECE_S = 0.1
LANGUAGES = ("en", "auto")
OURS, FASTER, CPP = "ours native", "faster-whisper int8", "whisper.cpp q8_0"
FASTER_SCRIPT = """
import sys
from faster_whisper import WhisperModel
path, clip, language = sys.argv[1:]
model = WhisperModel(path, device="cpu", compute_type="int8", cpu_threads=1)
segments, _ = model.transcribe(clip, language=None if language == "auto" else language, beam_size=5)
print("".join(segment.text for segment in segments))
"""
CPP_SCRIPT = """
import sys
from pywhispercpp.model import Model
path, clip, language = sys.argv[1:]
beam = {"beam_size": 5, "patience": -1.0}
quiet = {"redirect_whispercpp_logs_to": None, "print_progress": False, "print_realtime": False}
model = Model(path, params_sampling_strategy=1, beam_search=beam, n_threads=1, **quiet)
print(" ".join(segment.text for segment in model.transcribe(clip, language=language)))
"""


def commands(model: str, folder: Path) -> dict[str, Callable[[Path, str], list[str]]]:
    """The command of each program for a file and a language; the weights are written into the folder."""
    checkpoint = load_checkpoint(model)
    save_ctranslate2(checkpoint, folder / "ct2", "float16")
    write_checkpoint(checkpoint, folder / "ggml-q8_0.bin", "ggml", "q8_0")
    ours = [sys.executable, "-m", "sottovoce", "transcribe", "--model", model, "--device", "cpu"]
    faster = [sys.executable, "-c", FASTER_SCRIPT, str(folder / "ct2")]
    cpp = [sys.executable, "-c", CPP_SCRIPT, str(folder / "ggml-q8_0.bin")]
    return {
        OURS: lambda clip, language: [*ours, "--language", language, str(clip)],
        FASTER: lambda clip, language: [*faster, str(clip), language],
        CPP: lambda clip, language: [*cpp, str(clip), language],
    }


MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
"""
"""A peak counts the memory of the process that starts another: this one is small."""


def usage_of(command: Sequence[str]) -> tuple[float, float]:
    """Run a process; its user and system seconds, and its peak memory in MB."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *command], stdout=subprocess.PIPE, check=True)
    status, cpu_s, peak_mb = map(float, done.stdout.split())
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    return cpu_s, peak_mb


def cold(
    model: str, engines: Sequence[str], clip: Samples, rounds: int
) -> dict[str, dict[str, tuple[float, float]]]:
    """Processor seconds and peak memory in MB of new processes, by program and language."""
    result: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "clip.wav"
        file.write_bytes(wave_file(pcm(clip)))
        every = commands(model, Path(folder))
        created = {engine: every[engine] for engine in engines}
        for number in range(rounds + 1):
            for language in LANGUAGES:
                for program, command in created.items():
                    usage = usage_of(command(file, language))
                    if number:
                        result.setdefault((program, language), []).append(usage)
    medians = {
        way: tuple(map(statistics.median, zip(*usages, strict=True))) for way, usages in result.items()
    }
    return {program: {language: medians[program, language] for language in LANGUAGES} for program in created}


def cases(samples: Mapping[str, Samples]) -> list[tuple[str, str]]:
    return [(name, language) for name in samples for language in LANGUAGES]


def warm(
    model: str, engines: Sequence[str], samples: Mapping[str, Samples], rounds: int
) -> dict[str, dict[str, float]]:
    """Processor seconds of each program and case, the model loaded and both cases read before."""
    processes = {program: Process(program, model, threads=1) for program in engines}
    result: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        for name, language in cases(samples):
            for program, process in processes.items():
                item = Item(name, samples[name], language, "")
                seconds = process.read(item, 5)["cpu_s"]
                if number:
                    result.setdefault((program, f"{name}, {language}"), []).append(seconds)
    for process in processes.values():
        process.stop()
    return {
        program: {
            f"{name}, {language}": statistics.median(result[program, f"{name}, {language}"])
            for name, language in cases(samples)
        }
        for program in processes
    }


def pcm(samples: Samples) -> bytes:
    return (np.clip(samples, -1.0, 1.0) * 32767).astype("<i2").tobytes()


def answered(model: str, samples: Mapping[str, Samples], rounds: int) -> dict[str, dict[str, float]]:
    """Seconds from the last byte to the answer, by interface and clip."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    result: dict[str, dict[str, list[float]]] = {"OpenAI": {}, "Wyoming": {}}
    with served(model, "auto", "--device", "cpu", "--wyoming", f"tcp://127.0.0.1:{port}") as (_, address):
        for number in range(rounds + 1):
            for name, sound in samples.items():
                for language in LANGUAGES:
                    ways = {
                        "OpenAI": lambda: post(address, pcm(sound), language),  # noqa: B023
                        "Wyoming": lambda: asyncio.run(spoken(port, pcm(sound), language)),  # noqa: B023
                    }
                    for interface, ask in ways.items():
                        seconds = ask()
                        if number:
                            result[interface].setdefault(f"{name}, {language}", []).append(seconds)
    return {
        interface: {case: statistics.median(values) for case, values in of.items()}
        for interface, of in result.items()
    }


def post(address: str, audio: bytes, language: str) -> float:
    fields = {"model": "whisper-1"} | ({} if language == "auto" else {"language": language})
    began = time.monotonic()
    files = {"file": ("clip.wav", wave_file(audio))}
    httpx.post(
        f"http://{address}/v1/audio/transcriptions", files=files, data=fields, timeout=60
    ).raise_for_status()
    return time.monotonic() - began


async def spoken(port: int, audio: bytes, language: str) -> float:
    from wyoming.asr import Transcribe, Transcript
    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.client import AsyncTcpClient

    n_piece = 2 * round(PIECE_S * SAMPLE_RATE)
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(Transcribe(language=None if language == "auto" else language).event())
        await client.write_event(AudioStart(SAMPLE_RATE, 2, 1).event())
        start = time.monotonic()
        for number, at in enumerate(range(0, len(audio), n_piece), start=1):
            await client.write_event(AudioChunk(SAMPLE_RATE, 2, 1, audio[at : at + n_piece]).event())
            await asyncio.sleep(max(0.0, start + number * PIECE_S - time.monotonic()))
        await client.write_event(AudioStop().event())
        began = ended = time.monotonic()
        with suppress(asyncio.TimeoutError):  # each utterance has a transcript: the last one counts
            while (event := await asyncio.wait_for(client.read_event(), 2.0)) is not None:
                if Transcript.is_type(event.type):
                    ended = time.monotonic()
    return ended - began


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", type=listed(), default=[OURS, FASTER, CPP])
    run(parser.parse_args())


def run(arguments: argparse.Namespace) -> None:
    speech = joined(clips(arguments.shared / "data", "test", language="en", with_text=True), 10.0)
    samples = {"3 s": load_audio(CLIP), "10 s": speech[: 10 * SAMPLE_RATE]}
    new = cold(arguments.model, arguments.engines, samples["3 s"], arguments.rounds)
    rows = [
        [program, *(f"{cpu_s:.2f} s, {peak_mb:.0f} MB" for cpu_s, peak_mb in of.values())]
        for program, of in new.items()
    ]
    show_table(["new process", *(f"3 s, {language}" for language in LANGUAGES)], rows)
    heads = [f"{name}, {language}" for name, language in cases(samples)]
    loaded = warm(arguments.model, arguments.engines, samples, arguments.rounds)
    rows = [[program, *(f"{loaded[program][case]:.2f} s" for case in heads)] for program in loaded]
    show_table(["model loaded", *heads], rows)
    server = answered(arguments.model, samples, arguments.rounds)
    rows = [[interface, *(f"{server[interface][case]:.2f} s" for case in heads)] for interface in server]
    show_table(["last byte to answer", *heads], rows)
    show_json("files short_clips", {"cold": new, "warm": loaded, "server": server})


if __name__ == "__main__":
    main()
