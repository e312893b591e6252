"""A transcription under way: a generator that yields segments, and between them the calls that it needs.

What changes segments on their way (speakers, names, style) is a generator around another one: it takes the
next segment with `next_segment`, which lets the calls through and their results back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from sottovoce.engine.calls import CallGenerator, ModelCall
from sottovoce.types import Segment

SegmentGenerator: TypeAlias = Generator[Segment | ModelCall, Any, None]
"""Yields segments, and calls whose results are sent back into it."""


def next_segment(
    segments: SegmentGenerator, on_step: Callable[[], object] | None = None
) -> CallGenerator[Segment | None]:
    """Yield the calls up to the next segment; return that segment, None at the end.

    on_step: called each time that the generator has gone on, to a call, a segment or its end.
    """
    result: Any = None
    failure: Exception | None = None
    while True:
        try:
            step = segments.send(result) if failure is None else segments.throw(failure)
        except StopIteration:
            step = None
        result = failure = None
        if on_step is not None:
            on_step()
        if step is None or isinstance(step, Segment):
            return step
        try:
            result = yield step
        except Exception as error:
            failure = error
