"""The soak, for less than a minute: the script that runs for half an hour finds nothing to complain of."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.server import soak

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
