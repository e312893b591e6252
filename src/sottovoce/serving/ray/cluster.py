"""Joining a Ray cluster."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from sottovoce.errors import MissingExtraError, OptionError


def connect(address: str | None) -> None:
    """Join a cluster, or make one of this machine alone; ray's own lines are not shown.

    Raises: MissingExtraError; OptionError where no cluster answers.
    """
    ray = library("ray")
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_worker_niceness", "0")  # they are the job, not something beside it
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (ConnectionError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise OptionError(f"--ray-address '{address}': expected a Ray cluster ({first_line})") from error


def library(name: str) -> Any:
    """Import a part of ray.

    Raises: MissingExtraError.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError((error.name or "ray").partition(".")[0], "ray", "--ray") from error


def counts(option: str, text: str) -> tuple[int, int]:
    """Read how many at least and at most, from N or MIN-MAX.

    Raises: OptionError.
    """
    least, dash, most = text.partition("-")
    if not least.isdigit() or (dash and not most.isdigit()):
        raise OptionError(f"{option}: expected a number or MIN-MAX, got '{text}'")
    return int(least), int(most) if dash else int(least)
