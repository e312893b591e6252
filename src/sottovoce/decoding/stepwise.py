"""Decoding that pauses before each pass of the decoder, so that others may use the model in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

Result = TypeVar("Result")
Stepwise: TypeAlias = Generator[None, None, Result]
"""Yields before each pass of the decoder, and returns its result."""


def finish(steps: Stepwise[Result]) -> Result:
    """Go through all the steps at once; return their result.

    Raises: what the steps raise.
    """
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: Result = end.value
        return result
