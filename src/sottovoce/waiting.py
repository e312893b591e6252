"""How long threads of PyTorch wait awake for their next work.

OpenMP's own 300,000 turns take the processor from whatever else runs: from a thread that is waited for, from
other programs, and from the threads of the native kernels (docs/benchmarks.md, docs/figures/serving.md).
"""

from __future__ import annotations

import os

SPIN_COUNT = "1000"
"""Turns, microseconds, after which a thread sleeps; without any an idle machine is slower."""
CHOICES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Environment variables by which a person chooses; then nothing is changed."""


def wait_briefly() -> None:
    """Shorten the waiting where nobody chose it. It is read as torch is loaded, and not again."""
    if not any(name in os.environ for name in CHOICES):
        os.environ[CHOICES[0]] = SPIN_COUNT
