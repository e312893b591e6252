"""Counts and times of a server, in Prometheus's text format.

Source: the exposition format 0.0.4. Labels are few and fixed, never what a client made up.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Counter:
    """A sum that only grows, for each combination of labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    _values: dict[tuple[str, ...], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, amount: float = 1.0, *values: str) -> None:
        """Add to the sum of these label values."""
        assert len(values) == len(self.labels)
        with self._lock:
            self._values[values] = self._values.get(values, 0.0) + amount

    def lines(self) -> Iterator[str]:
        yield from head(self.name, self.help, "counter")
        with self._lock:
            rows = sorted(self._values.items())
        for values, amount in rows or ([((), 0.0)] if not self.labels else []):
            yield f"{self.name}{labelled(self.labels, values)} {amount:g}"


@dataclass(slots=True)
class Gauge:
    """A value that is asked for when it is shown."""

    name: str
    help: str
    read: Callable[[], float]

    def lines(self) -> Iterator[str]:
        yield from head(self.name, self.help, "gauge")
        yield f"{self.name} {self.read():g}"


@dataclass(slots=True)
class Gauges:
    """Values that are asked for when they are shown, for each combination of labels."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[], Mapping[tuple[str, ...], float]]

    def lines(self) -> Iterator[str]:
        yield from head(self.name, self.help, "gauge")
        for values, value in self.read().items():
            yield f"{self.name}{labelled(self.labels, values)} {value:g}"


@dataclass(slots=True)
class Histogram:
    """Seconds, in buckets."""

    name: str
    help: str
    _counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    _sum: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, seconds: float) -> None:
        """Count one time."""
        with self._lock:
            self._counts[bisect_left(SECONDS, seconds)] += 1
            self._sum += seconds

    def lines(self) -> Iterator[str]:
        yield from head(self.name, self.help, "histogram")
        with self._lock:
            counts, total = list(self._counts), self._sum
        n = 0
        for bound, count in zip((*SECONDS, float("inf")), counts, strict=True):
            n += count
            name = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f'{self.name}_bucket{{le="{name}"}} {n}'
        yield f"{self.name}_sum {total:g}"
        yield f"{self.name}_count {n}"


class Metrics:
    """What a server counts."""

    def __init__(self) -> None:
        self.requests = Counter(
            "sottovoce_requests_total", "HTTP requests answered.", ("route", "method", "status")
        )
        self.request_seconds = Histogram(
            "sottovoce_request_seconds", "From a request to the end of its answer."
        )
        self.sockets = Counter(
            "sottovoce_sessions_total", "Live sessions that ended, by their close code.", ("route", "code")
        )
        self.file_seconds = Counter("sottovoce_file_audio_seconds_total", "Audio of recordings transcribed.")
        self.live_seconds = Counter("sottovoce_live_audio_seconds_total", "Audio of live sessions received.")
        self.live_wait = Histogram(
            "sottovoce_live_wait_seconds", "Live work between its arrival and its beginning."
        )
        self.live_work = Histogram("sottovoce_live_work_seconds", "Live work between beginning and end.")
        self.gauges: list[Gauge | Gauges] = []

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        families: tuple[Counter | Gauge | Gauges | Histogram, ...] = (
            self.requests,
            self.request_seconds,
            self.sockets,
            self.file_seconds,
            self.live_seconds,
            self.live_wait,
            self.live_work,
            *self.gauges,
        )
        return "".join(f"{line}\n" for family in families for line in family.lines())


def head(name: str, meaning: str, kind: str) -> Iterator[str]:
    """The two lines before the values of a family."""
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def labelled(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Labels as they stand behind a name."""
    if not names:
        return ""
    pairs = ",".join(f'{name}="{escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}"


def escaped(value: str) -> str:
    """A label's value within its quotes."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
