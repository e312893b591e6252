"""Traces of OpenTelemetry: a span for each request, live session and job. Off unless they are wanted.

Spans have what the log has: who asked for what kind of thing, how long it took, what became of it; never an
address with its query, a name of a file, or what was said. Where they go, the variables OTEL_… say.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from sottovoce.errors import MissingExtraError

SetAttribute: TypeAlias = Callable[[str, "str | int | float"], None]
NAME = "sottovoce"
STATUS = "http.response.status_code"
FAULTS = range(500, 600)


class Tracing:
    """Makes spans. provider: OpenTelemetry's `TracerProvider`; None: none are made."""

    def __init__(self, provider: Any = None) -> None:
        self._provider = provider
        if provider is not None:
            self._tracer = provider.get_tracer(NAME)
            self._trace = importlib.import_module("opentelemetry.trace")
            carried = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
            self._context = carried.TraceContextTextMapPropagator()

    @contextmanager
    def span(
        self, name: str, headers: Mapping[str, str] | None = None, **attributes: str
    ) -> Iterator[SetAttribute]:
        """Make a span of what is done inside; gives what sets further attributes of it.

        headers: of a request, whose `traceparent` the span belongs under. attributes: `__` stands for a dot.
        """
        if self._provider is None:
            yield ignore
            return
        with self._tracer.start_as_current_span(
            name,
            context=self._context.extract(headers or {}),
            kind=self._trace.SpanKind.INTERNAL if headers is None else self._trace.SpanKind.SERVER,
            attributes={key.replace("__", "."): value for key, value in attributes.items()},
            record_exception=False,  # its message may tell what was said
        ) as span:

            def set_attribute(key: str, value: str | int | float) -> None:
                span.set_attribute(key, value)
                if key == STATUS and value in FAULTS:
                    span.set_status(self._trace.StatusCode.ERROR)

            yield set_attribute

    def close(self) -> None:
        """Send what is left."""
        if self._provider is not None:
            self._provider.shutdown()


def ignore(key: str, value: str | int | float) -> None:
    """Set nothing."""


def make_tracing(is_wanted: bool) -> Tracing:
    """Make what sends spans by OTLP, or what makes none. Raises: MissingExtraError."""
    return Tracing(make_provider()) if is_wanted else Tracing()


def make_provider() -> Any:
    """Make OpenTelemetry's provider, which sends by OTLP over HTTP. Raises: MissingExtraError."""
    try:
        sdk = importlib.import_module("opentelemetry.sdk.trace")
        resources = importlib.import_module("opentelemetry.sdk.resources")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise MissingExtraError("opentelemetry", "trace", "--traces") from error
    own = resources.Resource({"service.name": NAME})
    provider = sdk.TracerProvider(resource=own.merge(resources.OTELResourceDetector().detect()))
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return provider
