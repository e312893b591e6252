"""The number of threads of PyTorch's operators in the calling thread.

An OpenMP thread spins for milliseconds after an operator (`GOMP_SPINCOUNT`), on a core that the native
kernels need; beside these, PyTorch's operators are small, so they run on one thread. OpenMP and MKL keep the
number per calling thread; `torch.set_num_threads` would also change the default of new threads.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

import torch

_LIBRARY = {"darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}.get(sys.platform, "libtorch_cpu.so")


class _SetAside(threading.local):
    """n_threads: of this thread outside of `one_torch_thread`; None: not inside."""

    n_threads: int | None = None


_set_aside = _SetAside()


def n_threads() -> int:
    """Return the number outside of `one_torch_thread`."""
    return _set_aside.n_threads or torch.get_num_threads()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Run PyTorch's operators of this thread on one thread. Also a decorator."""
    with nullcontext() if _set_aside.n_threads else _operators_on(1, torch.get_num_threads()):
        yield


@contextmanager
def all_torch_threads() -> Iterator[None]:
    """Run a PyTorch network on `n_threads` inside `one_torch_thread`. Also a decorator."""
    n_given = _set_aside.n_threads
    with nullcontext() if n_given is None else _operators_on(n_given, None):
        yield


@contextmanager
def _operators_on(n: int, set_aside: int | None) -> Iterator[None]:
    n_before, set_aside_before = torch.get_num_threads(), _set_aside.n_threads
    set_openmp, set_mkl = _setters()
    set_openmp(n)
    mkl_before = set_mkl(n)
    _set_aside.n_threads = set_aside
    try:
        yield
    finally:
        _set_aside.n_threads = set_aside_before
        set_mkl(mkl_before)
        set_openmp(n_before)


@cache
def _setters() -> tuple[Callable[[int], int], Callable[[int], int]]:
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / _LIBRARY))
    except OSError:
        return _keep, _keep
    return (
        getattr(library, "omp_set_num_threads", _keep),
        getattr(library, "MKL_Set_Num_Threads_Local", _keep),
    )


def _keep(n: int) -> int:
    return n
