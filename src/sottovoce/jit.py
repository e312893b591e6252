"""Compiling plain functions over arrays with numba (extra `fast`); imported only where it is installed."""

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
    """The function as machine code, made at its first call and kept on disk; runs without Python's lock."""
    made = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return cast(Compiled, made)


def inner(function: Compiled) -> Compiled:
    """As `compiled`, for what compiled functions call often: it makes no arrays, so none are counted."""
    options: dict[str, Any] = {"error_model": "numpy", "forceinline": True, "_nrt": False}
    made = numba.njit(cache=True, nogil=True, **options)(function)
    return cast(Compiled, made)


@contextmanager
def compiling_is_told(what: str) -> Iterator[None]:
    """While this lasts, a person at a terminal is told why there is a wait, if machine code is made first.

    what: is compiled, such as "the CTC search".
    """
    with event.install_listener("numba:compile", _Notice(what)):
        yield


class _Notice(event.Listener):
    """One line, at the first function that is not on disk yet."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_told = False

    def on_start(self, event: object) -> None:
        if self._is_told:
            return
        self._is_told = True
        text = f"compiling {self._what} for this processor: 10 to 30 s, once (kept on disk)"
        logger.info(text)
        if sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)

    def on_end(self, event: object) -> None:
        """Nothing is said at the end."""
