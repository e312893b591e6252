"""Compiling plain functions over arrays with numba (extra `fast`); imported only where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

Compiled = TypeVar("Compiled", bound=Callable[..., object])
NEVER = np.float32(-np.inf)


def compiled(function: Compiled) -> Compiled:
    """The function as machine code, made at its first call and kept on disk; runs without Python's lock."""
    made = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return cast(Compiled, made)


def inner(function: Compiled) -> Compiled:
    """As `compiled`, for what compiled functions call often: it makes no arrays, so none are counted."""
    options: dict[str, Any] = {"error_model": "numpy", "forceinline": True, "_nrt": False}
    made = numba.njit(cache=True, nogil=True, **options)(function)
    return cast(Compiled, made)
