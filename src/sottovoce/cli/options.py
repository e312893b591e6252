"""Options that several subcommands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

MODEL = (
    click.option(
        "--model",
        metavar="NAME|PATH",
        help="Model name, hub id, file or folder. [default: base; on CUDA large-v3-turbo]",
    ),
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."),
    click.option("--dtype", default="auto", show_default=True, help="auto, float32, bfloat16 or float16."),
    click.option("--threads", type=click.IntRange(1), help="Processor threads. [default: all cores]"),
)


def with_options(*groups: Sequence[Callable[[Any], Any]]) -> Callable[[Decorated], Decorated]:
    """Decorate a command with all options of the groups; its help shows them in this order."""

    def decorate(command: Decorated) -> Decorated:
        for group in reversed(groups):
            for option in reversed(group):
                command = option(command)
        return command

    return decorate
