"""A model for recordings, whose every call lets live work go first.

What a recording does between two calls is short, so that live work waits for one call at most: a window
encoded, or a step of its decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from sottovoce.backends.base import Backend

CALLS = frozenset({"encode", "encode_growing", "first_step", "step"})
"""Of a backend, that take time."""


def live_first(backend: Backend, before: Callable[[], None]) -> Backend:
    """The same backend; before: called ahead of each of its calls, and may take its time."""
    return cast(Backend, _LiveFirst(backend, before))


class _LiveFirst:
    def __init__(self, backend: Backend, before: Callable[[], None]) -> None:
        self._backend = backend
        self._before = before

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if name not in CALLS:
            return found

        @wraps(found)
        def call(*given: Any, **options: Any) -> Any:
            self._before()
            return found(*given, **options)

        return call
