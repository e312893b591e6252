"""Counts and times of a server, for Prometheus. Labels are few and fixed, never what a client made up."""

from __future__ import annotations

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of histograms."""


class Metrics:
    """The counters and histograms of one server; values read at scrape time register with `registry`."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "HTTP requests answered.", "route", "method", "status")
        self.request_seconds = self._histogram("request", "From a request to the end of its answer.")
        self.sessions = self._counter(
            "sessions", "Live sessions that ended, by their close code.", "route", "code"
        )
        self.refused_connections = self._counter(
            "refused_connections", "Connections that had no place, of all or of their address."
        )
        self.key_requests = self._counter("key_requests", "Requests and handshakes of a named key.", "key")
        self.key_refused = self._counter("key_refused", "What a named key had too much of.", "key", "limit")
        self.key_audio_seconds = self._counter("key_audio_seconds", "Audio taken of a named key.", "key")
        self.key_sessions = Gauge(
            "sottovoce_key_sessions", "Live sessions of a named key now.", ("key",), registry=self.registry
        )
        self.jobs = self._counter("jobs", "Jobs that are over.", "status")
        self.webhooks = self._counter("webhooks", "Addresses of jobs that were told, or given up.", "status")
        self.file_seconds = self._counter("file_audio_seconds", "Audio of recordings transcribed.")
        self.live_seconds = self._counter("live_audio_seconds", "Audio of live sessions received.")
        self.live_wait = self._histogram("live_wait", "Live work between its arrival and its beginning.")
        self.live_work = self._histogram("live_work", "Live work between beginning and end.")

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"sottovoce_{name}_total", meaning, labels, registry=self.registry)

    def _histogram(self, name: str, meaning: str) -> Histogram:
        return Histogram(f"sottovoce_{name}_seconds", meaning, buckets=SECONDS, registry=self.registry)
