"""Calls at the same time: threads of their own, and the same numbers; a system without threads; a fork."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from tests.kernels.arrays import Array, Layer, normal

THREADS = Path("/proc/self/task")
N_THREADS = 7
"""More than other tests ask for, so that a pool that they left must grow."""
N_ROUNDS = 100
ROOT = Path(__file__).parents[2]

CHILD = """
import os, resource, sys
import numpy as np
from tests.kernels.arrays import Layer, normal
layer, x = Layer(normal(0, 64, 64)), normal(1, 40, 64)
alone = layer(x)
if sys.argv[1] == "fork":
    assert np.array_equal(layer(x, n_threads=3), alone)
    child = os.fork()
    if child == 0:
        os._exit(int(not np.array_equal(layer(x, n_threads=3), alone)))
    assert os.waitpid(child, 0)[1] == 0
else:
    used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**22, resource.RLIM_INFINITY))
found = layer(x, n_threads=4)
assert np.array_equal(found, alone)
"""


@pytest.mark.skipif(not THREADS.exists(), reason="threads are counted where Linux lists them")
def test_calls_at_the_same_time_have_threads_of_their_own() -> None:
    layer, x = Layer(normal(0, 512, 512)), normal(1, 2000, 512)
    alone = layer(x)
    assert np.array_equal(layer(x, n_threads=N_THREADS), alone)
    begin = Barrier(2)

    def call() -> Array:
        begin.wait()
        return layer(x, n_threads=N_THREADS)

    with ThreadPoolExecutor(2) as callers:
        [item.result() for item in [callers.submit(begin.wait) for _ in range(2)]]
        before = len(list(THREADS.iterdir()))
        for _ in range(N_ROUNDS):
            for result in [callers.submit(call) for _ in range(2)]:
                assert np.array_equal(result.result(), alone)
            if len(list(THREADS.iterdir())) > before:
                break
        assert len(list(THREADS.iterdir())) > before


@pytest.mark.skipif(not THREADS.exists(), reason="memory is limited where Linux does so")
@pytest.mark.parametrize("case", ["fork", "no threads"])
def test_a_call_does_with_the_threads_that_there_are(case: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CHILD, case], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
