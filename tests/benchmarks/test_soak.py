"""The soak, for two minutes: the script that runs for half an hour finds nothing to complain of."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="memory is read from /proc")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="the script needs asyncio.TaskGroup")
def test_a_soak_leaves_the_server_as_it_was() -> None:
    command = [sys.executable, str(SCRIPT), "--seconds", "120", "--sessions", "2", "--clip", "en.flac"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
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
    assert sum(last["chaos"].values()) > 0
