"""Does memory grow with the length of the recording? Transcribe a short and a long one, compare peaks.

    python -m benchmarks files memory --model base    # 3 minutes against 3 hours; and options of `transcribe`

Both recordings repeat the demo's clips. Each is transcribed by the command line in a process of its
own; the peak is the resident set that the kernel reports for that process. Prints a table, then one
JSON line.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
import wave
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.report import benchmark_parser, show_json
from sottovoce.audio.io import load_audio

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
RATE = 16_000
LENGTHS_S = 180.0, 3 * 3600.0
LIMIT_MB = 150.0


@dataclass(frozen=True, slots=True)
class Peak:
    """One transcription: seconds of audio, seconds it took, peak resident memory."""

    audio_s: float
    wall_s: float
    peak_mb: float


def write_recording(path: Path, seconds: float) -> None:
    """A 16-bit wave file of `seconds`, written clip by clip."""
    clips = [(load_audio(clip) * 32767).astype(np.int16) for clip in sorted(CLIPS.glob("*.flac"))]
    left = int(seconds * RATE)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        index = 0
        while left > 0:
            piece = clips[index % len(clips)][:left]
            file.writeframes(piece.tobytes())
            left -= len(piece)
            index += 1


def measure(path: Path, seconds: float, model: str, arguments: list[str]) -> Peak:
    command = [sys.executable, "-m", "sottovoce", "transcribe", str(path), "--model", model]
    command += ["--output-format", "json", "--output-dir", str(path.parent), *arguments]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"transcribing {seconds:g} s failed with status {status}")
    scale = 2**20 if platform.system() == "Darwin" else 2**10
    return Peak(seconds, time.perf_counter() - began, usage.ru_maxrss / scale)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="nano")
    options, rest = parser.parse_known_args()
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        for seconds in LENGTHS_S:
            path = Path(folder) / f"{seconds:g}s.wav"
            write_recording(path, seconds)
            peaks.append(measure(path, seconds, options.model, rest))
            path.unlink()
    print(f"{'audio':>10} {'wall':>10} {'x real time':>12} {'peak':>10}")
    for peak in peaks:
        speed = peak.audio_s / peak.wall_s
        print(f"{peak.audio_s:8.0f} s {peak.wall_s:8.1f} s {speed:12.1f} {peak.peak_mb:7.0f} MB")
    growth = peaks[1].peak_mb - peaks[0].peak_mb
    print(f"growth {growth:+.0f} MB (limit {LIMIT_MB:g} MB)")
    show_json("files memory", {"growth_mb": round(growth, 1), "runs": [asdict(p) for p in peaks]})
    sys.exit(growth > LIMIT_MB)
