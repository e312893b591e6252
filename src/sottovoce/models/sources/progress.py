"""Progress of fetching weights on standard error: one line, and a counter on a terminal."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print a line."""
    print(line, file=sys.stderr, flush=True)


def megabytes(n_bytes: int) -> str:
    """Format a number of bytes in MB."""
    return f"{n_bytes / 1e6:.0f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e6:.2g} MB"


class DownloadProgress:
    """A counter of bytes, rewritten in place; silent where standard error is no terminal."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._is_shown = sys.stderr.isatty()

    def show(self, n_bytes: int) -> None:
        """Show that n_bytes are done."""
        if self._is_shown:
            done = min(n_bytes, self._total)
            sys.stderr.write(f"\r{self._name}: {done / 1e6:.0f} of {megabytes(self._total)}\x1b[K")
            sys.stderr.flush()

    def end(self) -> None:
        """Erase the counter."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
