"""Metrics for Prometheus, traces for OpenTelemetry, and logs as lines of JSON.

Labels of metrics never come from clients; no log line or span holds a query, a file name, or text.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from sottovoce.errors import needs

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
SetAttribute: TypeAlias = Callable[[str, "str | int | float"], None]
NAME = "sottovoce"
STATUS = "http.response.status_code"
STANDARD_FIELDS = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message", "taskName"}
)
QUIET_LOGGERS = ("uvicorn.error", "uvicorn.access", "asyncio", "websockets.server")


class Metrics:
    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "HTTP requests answered.", "route", "method", "status")
        self.request_seconds = self._histogram("request", "From a request to the end of its answer.")
        self.sessions = self._counter(
            "sessions", "Live sessions that ended, by their close code.", "route", "code"
        )
        self.refused_connections = self._counter(
            "refused_connections", "Connections refused by the limit of the server or of one address."
        )
        self.key_requests = self._counter("key_requests", "Requests and handshakes of a named key.", "key")
        self.key_refused = self._counter(
            "key_refused",
            "Requests and sessions of a named key refused by one of its limits.",
            "key",
            "limit",
        )
        self.key_audio_seconds = self._counter(
            "key_audio_seconds", "Audio that was received with a named key.", "key"
        )
        self.key_sessions = self.gauge("key_sessions", "Live sessions of a named key now.", "key")
        self.jobs = self._counter("jobs", "Jobs that ended, by status.", "status")
        self.webhooks = self._counter(
            "webhooks", "Webhooks delivered, or failed after the last try.", "status"
        )
        self.file_seconds = self._counter("file_audio_seconds", "Audio of recordings transcribed.")
        self.live_seconds = self._counter("live_audio_seconds", "Audio of live sessions received.")
        self.live_wait = self._histogram("live_wait", "Seconds that a live update waited before it began.")
        self.live_work = self._histogram("live_work", "Seconds of a live update, without its wait.")

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"sottovoce_{name}", meaning, labels, registry=self.registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"sottovoce_{name}_total", meaning, labels, registry=self.registry)

    def _histogram(self, name: str, meaning: str) -> Histogram:
        return Histogram(f"sottovoce_{name}_seconds", meaning, buckets=SECONDS, registry=self.registry)


class Tracing:
    """Makes spans. provider: OpenTelemetry's `TracerProvider`, or None."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider

    @contextmanager
    def span(
        self, name: str, headers: Mapping[str, str] | None = None, **attributes: str
    ) -> Iterator[SetAttribute]:
        """Make a span; yields a function that sets attributes.

        headers: of a request, whose `traceparent` is the parent. attributes: `__` stands for a dot.
        """
        if self._provider is None:
            yield lambda key, value: None
            return
        from opentelemetry import propagate, trace

        with self._provider.get_tracer(NAME).start_as_current_span(
            name,
            context=propagate.extract(headers or {}),
            kind=trace.SpanKind.INTERNAL if headers is None else trace.SpanKind.SERVER,
            attributes={key.replace("__", "."): value for key, value in attributes.items()},
            record_exception=False,  # its message may tell what was said
        ) as span:

            def set_attribute(key: str, value: str | int | float) -> None:
                span.set_attribute(key, value)
                if key == STATUS and int(value) >= 500:
                    span.set_status(trace.StatusCode.ERROR)

            yield set_attribute

    def close(self) -> None:
        if self._provider is not None:
            self._provider.shutdown()


def make_provider() -> TracerProvider:
    """Make OpenTelemetry's provider for OTLP over HTTP. Raises: MissingExtraError."""
    with needs("opentelemetry", "trace", "--traces"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    resource = Resource({"service.name": NAME}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


MODEL_LOADED = "model loaded"


class JsonLogFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line.update({name: value for name, value in vars(record).items() if name not in STANDARD_FIELDS})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class PlainLogFormatter(logging.Formatter):
    """Formats what a person at a terminal needs to know."""

    def format(self, record: logging.LogRecord) -> str:
        if record.getMessage() == MODEL_LOADED:
            fields = vars(record)
            return f"{fields['model']} loaded in {fields['seconds']:.1f} s ({fields['runtime']})"
        more = {name: value for name, value in vars(record).items() if name not in STANDARD_FIELDS}
        details = ", ".join(f"{name} {value}" for name, value in more.items())
        return f"{record.levelname.lower()}: {record.getMessage()}{details and f' ({details})'}"


def log_for_people() -> None:
    """Log warnings, and the models that are loaded."""
    _log(PlainLogFormatter(), logging.INFO)
    logging.getLogger().handlers[0].addFilter(
        lambda record: record.levelno >= logging.WARNING or record.getMessage() == MODEL_LOADED
    )


def log_as_json(level: int = logging.INFO) -> None:
    _log(JsonLogFormatter(), level)


def _log(formatter: logging.Formatter, level: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
