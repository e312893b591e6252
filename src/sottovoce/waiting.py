"""How long threads of PyTorch wait awake for their next work.

GNU's OpenMP lets them spin for milliseconds after every operation. The native kernels have threads of their
own, which then share their cores with threads that do nothing (docs/benchmarks.md, two threads).
"""

from __future__ import annotations

import os

SPIN_COUNT = "10000"
"""Some tens of microseconds: longer than PyTorch is between two operations of a step, so that its threads
lose nothing by it."""
CHOICES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Environment variables by which a person chooses; then nothing is changed."""


def wait_briefly() -> None:
    """Shorten the waiting where nobody chose it. It is read as torch is loaded, and not again."""
    if not any(name in os.environ for name in CHOICES):
        os.environ[CHOICES[0]] = SPIN_COUNT
