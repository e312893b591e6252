"""What a call through a `BatchingRuntime` costs beside a direct one, and what an open session holds."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks.harness.report import benchmark_parser, resident_bytes
from sottovoce.api import as_whisper, load_model
from sottovoce.audio.io import load_audio
from sottovoce.runtime.batching import BatchingRuntime
from sottovoce.runtime.calls import DirectRuntime, RunOnHost, Runtime
from sottovoce.types import SAMPLE_RATE

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
N_WARM = 10


def call_us(runtime: Runtime, n_calls: int) -> list[float]:
    """Return the microseconds of each of n calls that do nothing."""
    result = []
    for _ in range(n_calls):
        began = time.perf_counter()
        runtime.run(RunOnHost(int))
        result.append(1e6 * (time.perf_counter() - began))
    return result


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="base")
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--sessions", type=int, default=200)
    given = parser.parse_args()
    model = as_whisper(load_model(given.model), "calls")
    shared = BatchingRuntime(model.backend)
    kinds: dict[str, Runtime] = {"direct": DirectRuntime(model.backend), "batching": shared.caller()}
    for runtime in kinds.values():
        call_us(runtime, 200)
    times = {name: call_us(runtime, given.calls) for name, runtime in kinds.items()}
    for name, result in times.items():
        print(
            f"{name:9} {statistics.median(result):6.1f} us median, {np.percentile(result, 95):6.1f} us 95 %"
        )
    speech = load_audio(str(CLIPS / "en.flac"))[: 3 * SAMPLE_RATE]
    pause = np.zeros(10 * SAMPLE_RATE, np.float32)
    sessions = []
    for name, audio in (("10 s after speech", np.concatenate((speech, pause))), ("in speech", speech)):
        held = []
        for _ in range(given.sessions + N_WARM):
            sessions.append(model.session(["en", "de"], runtime=shared.caller()))
            for start in range(0, len(audio), SAMPLE_RATE // 4):
                sessions[-1].push(audio[start : start + SAMPLE_RATE // 4])
            held.append(resident_bytes() / 2**20)
        held_mb = (held[-1] - held[N_WARM]) / given.sessions
        print(f"{given.sessions} open sessions, {name}: {held_mb:.2f} MB each")
    shared.close()
    shared.join()


if __name__ == "__main__":
    main()
