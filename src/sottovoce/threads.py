"""The number of threads that the calling thread computes with.

The native kernels take `n_threads`. PyTorch, where it is loaded, has a number of its own for each calling
thread: an OpenMP thread spins for milliseconds after an operator (`GOMP_SPINCOUNT`), on a core that the
kernels need; beside these, PyTorch's operators are small, so they run on one thread. `torch.set_num_threads`
would also change the default of new threads.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType

_LIBRARY = {"darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}.get(sys.platform, "libtorch_cpu.so")


class _OfThread(threading.local):
    """n_threads: of this thread, None: the default. n_set_aside: of PyTorch outside of `one_torch_thread`;
    None: not inside.
    """

    n_threads: int | None = None
    n_set_aside: int | None = None


class _Default:
    n_threads: int | None = None
    """As `set_threads` was told; None: by the environment."""


_of_thread = _OfThread()


def imported_torch() -> ModuleType | None:
    """Return PyTorch; None: it was not imported, or another thread is importing it."""
    module = sys.modules.get("torch")
    is_partial = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_partial else module


def n_threads() -> int:
    """Return the number outside of `one_torch_thread`."""
    torch = imported_torch()
    if torch is not None:
        return _of_thread.n_set_aside or int(torch.get_num_threads())
    return _of_thread.n_threads or _Default.n_threads or _by_environment()


@cache
def _by_environment() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if given.isdigit() and int(given):
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(n: int) -> None:
    """Set the number of the calling thread and the default of others."""
    _Default.n_threads = n
    use_threads(n)


def use_threads(n: int) -> None:
    """Set the number of the calling thread; PyTorch's new threads begin with it too."""
    _of_thread.n_threads = n
    if (torch := imported_torch()) is not None:
        torch.get_num_threads()  # a thread that has not asked would take over what others set last
        torch.set_num_threads(n)


def tell_torch() -> None:
    """Give PyTorch, which has been imported, the number that was set before."""
    torch, n = imported_torch(), _of_thread.n_threads or _Default.n_threads
    if torch is not None and n is not None:
        torch.set_num_threads(n)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Run PyTorch's operators of this thread on one thread. Also a decorator."""
    torch = imported_torch()
    is_inside = torch is None or _of_thread.n_set_aside
    with nullcontext() if is_inside else _operators_on(1, n_threads()):
        yield


@contextmanager
def all_torch_threads() -> Iterator[None]:
    """Run a PyTorch network on `n_threads` inside `one_torch_thread`. Also a decorator."""
    n_given = _of_thread.n_set_aside
    with nullcontext() if n_given is None else _operators_on(n_given, None):
        yield


@contextmanager
def _operators_on(n: int, set_aside: int | None) -> Iterator[None]:
    torch = sys.modules["torch"]
    n_before, set_aside_before = torch.get_num_threads(), _of_thread.n_set_aside
    set_openmp, set_mkl = _setters()
    set_openmp(n)
    mkl_before = set_mkl(n)
    _of_thread.n_set_aside = set_aside
    try:
        yield
    finally:
        _of_thread.n_set_aside = set_aside_before
        set_mkl(mkl_before)
        set_openmp(n_before)


@cache
def _setters() -> tuple[Callable[[int], int], Callable[[int], int]]:
    try:
        library = ctypes.CDLL(str(Path(str(sys.modules["torch"].__file__)).parent / "lib" / _LIBRARY))
    except OSError:
        return _keep, _keep
    return (
        getattr(library, "omp_set_num_threads", _keep),
        getattr(library, "MKL_Set_Num_Threads_Local", _keep),
    )


def _keep(n: int) -> int:
    return n
