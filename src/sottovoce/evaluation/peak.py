"""The most memory that this process held, since it was last told to forget.

Linux alone can forget: elsewhere it would be the most since the program began, of whatever ran before.
"""

from __future__ import annotations

from pathlib import Path

PROCESS = Path("/proc/self")
FORGET_PEAK = "5"
"""What Linux takes in `clear_refs` for the peak of resident memory (proc(5))."""


def forget_peak(process: Path = PROCESS) -> None:
    """Let the peak begin again with what is held now, where the system can."""
    try:
        (process / "clear_refs").write_text(FORGET_PEAK)
    except OSError:
        return


def peak_bytes(process: Path = PROCESS) -> int | None:
    """Resident bytes at the most; None where the system does not tell."""
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None
