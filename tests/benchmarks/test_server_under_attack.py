"""The benchmarks of the server: attacks, and a soak."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import pkgutil
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import benchmarks
from benchmarks.live.runs import built, options_from
from benchmarks.server import soak

if sys.version_info < (3, 11):
    pytest.skip("the programs need asyncio.timeout", allow_module_level=True)

from benchmarks.server.attackers import ATTACKS, attack
from benchmarks.server.fuzz import ENDS, frame, fuzz_frames
from benchmarks.server.live_clients import Lateness, part, speak, speech
from sottovoce.server.settings import ServerLimits, Work
from sottovoce.streaming.options import CommitOptions, StreamOptions
from tests.server.servers import SlowModel, serving


def test_frames_are_of_all_kinds_and_come_again() -> None:
    frames = [frame(random.Random(seed)) for seed in range(300)]
    assert frames == [frame(random.Random(seed)) for seed in range(300)]
    kinds = {type(item) for item in frames}
    assert kinds == {str, bytes}
    texts = [item for item in frames if isinstance(item, str)]
    broken = 0
    for text in texts:
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            broken += 1
    assert 0 < broken < len(texts)


def test_fuzzed_frames_are_no_fault() -> None:
    with serving(SlowModel()) as server:
        result = asyncio.run(fuzz_frames(server.address, 1_000, seed=1))
    assert result["frames"] >= 1_000
    assert not [name for name in result if "FAULT" in name]
    assert {name.split()[0] for name in result} - {"frames"} == {path.partition("?")[0] for path in ENDS}


def test_a_session_that_fails_is_a_fault() -> None:
    def fail() -> None:
        raise RuntimeError

    with serving(SlowModel(fail)) as server:
        result = asyncio.run(fuzz_frames(server.address, 800, seed=2))
    assert [name for name in result if "FAULT" in name]


@pytest.mark.parametrize("name", ["phrases", "half requests", "known speakers", "strangers"])
def test_attackers_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "known speakers":  # eight at a time do not come to an end
        monkeypatch.setattr("benchmarks.server.attackers.N_AT_ONCE", 2)
    limits = ServerLimits(head_s=0.5, upload_s=0.5)
    with serving(SlowModel(), limits=limits) as server:
        result: Counter[str] = asyncio.run(attack(name, server.address, 1.0))
    assert result
    assert "500" not in result
    assert name in ATTACKS


def test_clients_measure_how_late_they_are_and_who_is_refused() -> None:
    async def run() -> None:
        audio = speech("en.flac")
        await asyncio.gather(*(speak(server.address, audio, 2.5, late) for _ in range(2)))

    late = Lateness()
    with serving(SlowModel(), work=Work(forecast=False, engines=1)) as server:
        server.services.registry.schedulers[0].most_sessions = 1
        asyncio.run(run())
    assert (late.n_taken, [code for code, _ in late.refused], late.faults) == (1, [429], [])
    assert len(late.words_s) == 2  # a word for every second
    assert part(late.words_s, 0.5) < 20.0
    assert late.behind_s


ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="memory is read from /proc")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="the script needs asyncio.TaskGroup")
def test_a_soak_leaves_the_server_as_it_was() -> None:
    command = [sys.executable, "-m", "benchmarks", "server", "soak"]
    command += ["--seconds", "6", "--sessions", "2", "--clip", "en.flac"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=480)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, said
    assert "all as it was" in said
    last = json.loads(said.splitlines()[-1])
    assert len(last["chaos"]) >= 3, "each of the three that disturb begins with another kind"


def test_what_grows_is_told() -> None:
    states = [soak.State(at_s, 500.0, at_s, 20, 30) for at_s in range(0, 1801, 5)]
    level = soak.Heard([(float(at_s), 1.0) for at_s in range(1800)])
    later = soak.Heard([(float(at_s), 1.0 + at_s / 600) for at_s in range(1800)])
    assert soak.levels(states, states[-1], level) == []
    assert soak.levels(states, states[-1], later) == ["words come 1.5 s later than before"]
    short = [state for state in states if state.at_s <= 300]
    assert soak.levels(short, short[-1], later) == []
    grown = [soak.State(s.at_s, 500.0 + s.at_s, s.cpu_s, 20, 30) for s in states]
    assert soak.levels(grown, soak.State(1800.0, 2300.0, 1.0, 20, 60), level) == [
        "memory grew by 902 MB",
        "30 files stay open",
    ]


NEED_REFERENCES = {"benchmarks.language.fit", "benchmarks.text.english"}
"""They import scipy and sacrebleu, which `make test-all` installs."""
MODULES = pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")
NAMES = [module.name for module in MODULES if not module.ispkg and not module.name.endswith("__main__")]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) if name in NEED_REFERENCES else name for name in NAMES],
)
def test_a_benchmark_is_imported(name: str) -> None:
    assert importlib.import_module(name).__doc__, "it says what it measures"


def test_options_of_a_session_are_read_from_a_command() -> None:
    given = options_from(["commit.commit_prob=0.5", "latency=low"])
    assert built(StreamOptions, given) == StreamOptions(commit=CommitOptions(commit_prob=0.5), latency="low")
