"""Work that somebody waits for, unless something else ends first: its client leaves, the server goes down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from sottovoce.serving.parsing.faults import ApiError

T = TypeVar("T")


async def unless(ends: Callable[[], Awaitable[object]], work: Awaitable[T], fault: ApiError) -> T:
    """Return what is awaited; where the other ends first, that is cancelled.

    Raises: the fault then; what the work raises.
    """
    found: list[T] = []

    async def wait() -> None:
        found.append(await work)
        tasks.cancel_scope.cancel()

    async def look() -> None:
        await ends()
        tasks.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(look)
    except BaseException as error:  # a group's; one alone says what it is about
        raise alone(error) from None
    if not found:
        raise fault
    return found[0]


def alone(error: BaseException) -> BaseException:
    """Return the one error of a group of tasks, or the group."""
    while (inner := getattr(error, "exceptions", None)) is not None and len(inner) == 1:
        error = inner[0]
    return error
