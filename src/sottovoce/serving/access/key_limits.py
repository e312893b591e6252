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

MINUTE_S, DAY_S = 60.0, 86_400.0
SESSION_RETRY_S = 10.0
QUOTA = "insufficient_quota"
"""OpenAI's type and code of what is used up."""


@dataclass(slots=True)
class KeyUsage:
    """What one key has done. requests_s: when, by the clock, in the last minute. day: since 1970, in UTC."""

    requests_s: deque[float] = field(default_factory=deque)
    n_sessions: int = 0
    day: int = 0
    audio_s: float = 0.0


class KeyLimits:
    """Counts what keys do, and refuses what is too much; keys without a name have no limits of their own.

    clock: seconds that only grow. now: seconds since 1970.
    """

    def __init__(
        self,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._now = now
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
        """Take a place for a live session. Raises: ApiError 429 for too many, or a day that is used up."""
        if key is None or not key.name:
            yield
            return
        self.check_audio(key)
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

    def check_audio(self, key: ApiKey | None) -> None:
        """Check that a key may send audio today. Raises: ApiError 429."""
        if (
            key is not None
            and key.audio_s_per_day is not None
            and self._today(key).audio_s >= key.audio_s_per_day
        ):
            raise self._used_up(key, key.audio_s_per_day)

    def take_recording(self, key: ApiKey | None, audio_s: float) -> None:
        """Count a recording before it is worked on.

        Raises: ApiError 429 where less is left of the day, 413 where no day has so much.
        """
        if key is None or not key.name:
            return
        most_s = key.audio_s_per_day
        if most_s is not None and audio_s > most_s:
            message = f"file: expected at most {most_s:g} s of audio, a day of this key, got {audio_s:.0f} s"
            fault = ApiError(message, status=413, param="file", code="audio_too_long")
            raise self._refused(key, "audio", fault)
        if most_s is not None and self._today(key).audio_s + audio_s > most_s:
            raise self._used_up(key, most_s)
        self._add(key, audio_s)

    def take_live(self, key: ApiKey | None, audio_s: float) -> None:
        """Count audio of a live session, that was worked on. Raises: ApiError 429 where it is too much."""
        if key is None or not key.name:
            return
        self._add(key, audio_s)
        if key.audio_s_per_day is not None and self._today(key).audio_s > key.audio_s_per_day:
            raise self._used_up(key, key.audio_s_per_day)

    def _add(self, key: ApiKey, audio_s: float) -> None:
        self._today(key).audio_s += audio_s
        self._metrics.key_audio_seconds.labels(key.name).inc(audio_s)

    def _of(self, key: ApiKey) -> KeyUsage:
        return self._usage.setdefault(key.name, KeyUsage())

    def _today(self, key: ApiKey) -> KeyUsage:
        """Return the usage of a key, whose audio is that of this day."""
        usage, day = self._of(key), int(self._now() // DAY_S)
        if usage.day != day:
            usage.day, usage.audio_s = day, 0.0
        return usage

    def _used_up(self, key: ApiKey, most_s: float) -> ApiError:
        message = f"API key: expected at most {most_s:g} s of audio a day (UTC)"
        left_s = DAY_S - self._now() % DAY_S
        fault = ApiError(message, status=429, kind=QUOTA, code=QUOTA, retry_s=left_s)
        return self._refused(key, "audio", fault)

    def _refused(self, key: ApiKey, limit: str, fault: ApiError) -> ApiError:
        self._metrics.key_refused.labels(key.name, limit).inc()
        return fault
