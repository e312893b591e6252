"""Compilation of plain functions over arrays with numba (extra `fast`); imported only if installed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba
from numba.core import event

logger = logging.getLogger(__name__)

Compiled = TypeVar("Compiled", bound=Callable[..., object])


def compiled(function: Compiled) -> Compiled:
    """Compile a function over arrays at its first call, without the GIL, with a cache on disk."""
    made = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return cast(Compiled, made)


def inner(function: Compiled) -> Compiled:
    """Compile and inline a function for innermost loops.

    It allocates no arrays, so numba counts no references in it.
    """
    options: dict[str, Any] = {"error_model": "numpy", "forceinline": True, "_nrt": False}
    made = numba.njit(cache=True, nogil=True, **options)(function)
    return cast(Compiled, made)


@contextmanager
def notice_of_compiling(what: str) -> Iterator[None]:
    """Log once, and print on a terminal's standard error, that compilation begins; silent if everything is
    cached.

    what: such as "the CTC search".
    """
    with event.install_listener("numba:compile", _Notice(what)):
        yield


class _Notice(event.Listener):
    """Writes one line at the first function that is not cached on disk."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_written = False

    def on_start(self, event: object) -> None:
        if self._is_written:
            return
        self._is_written = True
        text = f"compiling {self._what} for this processor: 10 to 30 s, once (kept on disk)"
        logger.info(text)
        if sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)

    def on_end(self, event: object) -> None:
        """Does nothing: the line is written at the start."""
