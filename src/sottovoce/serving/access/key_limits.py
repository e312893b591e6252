"""What each key has asked for, and what is too much of it. Knows no web framework.

Counts are of this process, by the names of keys: a new start begins with none.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sottovoce.serving.access.api_keys import ApiKey
from sottovoce.serving.metrics import Metrics
from sottovoce.serving.parsing.faults import ApiError, busy

MINUTE_S = 60.0
SESSION_RETRY_S = 10.0


@dataclass(slots=True)
class KeyUsage:
    """What one key has done. requests_s: when, by the clock, in the last minute."""

    requests_s: deque[float] = field(default_factory=deque)
    n_sessions: int = 0


class KeyLimits:
    """Counts what keys do, and refuses what is too much; keys without a name have no limits of their own.

    clock: seconds that only grow.
    """

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._usage: dict[str, KeyUsage] = {}

    def take_request(self, key: ApiKey | None) -> None:
        """Count a request or a handshake. Raises: ApiError 429 where there are too many in a minute."""
        if key is None or not key.name:
            return
        self._metrics.key_requests.labels(key.name).inc()
        if key.requests_per_minute is None:
            return
        past_s, now_s = self._of(key).requests_s, self._clock()
        while past_s and past_s[0] <= now_s - MINUTE_S:
            past_s.popleft()
        if len(past_s) >= key.requests_per_minute:
            what = f"expected at most {key.requests_per_minute} requests a minute"
            raise self._refused(key, "requests", busy(f"API key: {what}", past_s[0] + MINUTE_S - now_s))
        past_s.append(now_s)

    @contextmanager
    def session(self, key: ApiKey | None) -> Iterator[None]:
        """Take a place for a live session. Raises: ApiError 429 for too many."""
        if key is None or not key.name:
            yield
            return
        usage = self._of(key)
        if key.sessions is not None and usage.n_sessions >= key.sessions:
            what = f"API key: expected at most {key.sessions} live sessions at a time"
            raise self._refused(key, "sessions", busy(what, SESSION_RETRY_S))
        usage.n_sessions += 1
        gauge = self._metrics.key_sessions.labels(key.name)
        gauge.inc()
        try:
            yield
        finally:
            usage.n_sessions -= 1
            gauge.dec()

    def count_audio(self, key: ApiKey | None, audio_s: float) -> None:
        """Count audio that was taken, for `/metrics`."""
        if key is not None and key.name:
            self._metrics.key_audio_seconds.labels(key.name).inc(audio_s)

    def _of(self, key: ApiKey) -> KeyUsage:
        return self._usage.setdefault(key.name, KeyUsage())

    def _refused(self, key: ApiKey, limit: str, fault: ApiError) -> ApiError:
        self._metrics.key_refused.labels(key.name, limit).inc()
        return fault
