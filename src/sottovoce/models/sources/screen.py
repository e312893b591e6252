"""What a person is told while weights are fetched: one line, and a counter on a terminal.

All of it goes to standard error.
"""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print a line."""
    print(line, file=sys.stderr, flush=True)


def megabytes(n_bytes: int) -> str:
    """With its unit."""
    return f"{n_bytes / 1e6:.0f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e6:.2g} MB"


class Counter:
    """Bytes done of so many, in place; silent where standard error is no terminal."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._is_shown = sys.stderr.isatty()

    def show(self, n_bytes: int) -> None:
        """So many are done."""
        if self._is_shown:
            done = min(n_bytes, self._total)
            sys.stderr.write(f"\r{self._name}: {done / 1e6:.0f} of {megabytes(self._total)}\x1b[K")
            sys.stderr.flush()

    def end(self) -> None:
        """Take the counter away."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
