"""What part of the processors other programs took while something was measured (Linux)."""

from __future__ import annotations

import os
import time
from pathlib import Path

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class OtherPrograms:
    """Looks at the processors from now on: all time that this process and those it begins did not have."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._other_s = busy_s() - family_s(os.getpid())

    @property
    def part(self) -> float:
        """Of all processors since then, 0 to 1."""
        passed_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        return max(0.0, busy_s() - family_s(os.getpid()) - self._other_s) / max(passed_s, TICK_S)


def busy_s() -> float:
    """Processor time of all programs so far (seconds)."""
    times = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(times) - times[3] - times[4]) * TICK_S  # but idle and waiting for disks


def begun_by(process: int) -> list[int]:
    """The numbers of the processes that one has begun."""
    lists = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


def family_s(pid: int) -> float:
    """Processor time of a process, of those that it has begun, and of those of them that have ended."""
    try:
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        return sum(map(int, times)) * TICK_S + sum(map(family_s, begun_by(pid)))
    except OSError:  # it has just gone, and its parent has its time
        return 0.0
