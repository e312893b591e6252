"""Keeps clients from filling the log: warnings that any of them can cause are logged once a minute."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

logger = logging.getLogger(__name__)

LOG_EVERY_S = 60.0
UNWANTED = (
    "ASGI callable returned without completing handshake.",
    "Invalid UTF-8 sequence received from client.",
)
"""Errors that uvicorn logs for a refused handshake and for a client's message that is no text: no faults."""


class QuietLoop:
    """Handles errors of an event loop; logs once a minute that the system accepts no more connections."""

    def __init__(self) -> None:
        self._logged_s = -LOG_EVERY_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "socket.accept()" not in str(context.get("message")):
            loop.default_exception_handler(context)
        elif loop.time() - self._logged_s >= LOG_EVERY_S:
            self._logged_s = loop.time()
            logger.error("the system takes no more connections", extra={"cause": str(context["exception"])})


class QuietLog(logging.Filter):
    """Lets each warning of the server's connections through once a minute, and none of `UNWANTED`."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_s: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging."""
        now_s, place = time.monotonic(), (record.pathname, record.lineno)
        if record.msg in UNWANTED:
            return False
        if record.levelno != logging.WARNING:
            return True
        if now_s - self._logged_s.get(place, -LOG_EVERY_S) < LOG_EVERY_S:
            return False
        self._logged_s[place] = now_s
        return True


def quieten(*names: str) -> None:
    """Keep loggers from repeating themselves."""
    for name in names:
        found = logging.getLogger(name)
        if not any(isinstance(one, QuietLog) for one in found.filters):
            found.addFilter(QuietLog())
