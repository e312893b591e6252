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


class Tracing:
    """Makes spans. provider: OpenTelemetry's `TracerProvider`; None: none are made."""

    def __init__(self, provider: Any = None) -> None:
        self._provider = provider

    @contextmanager
    def span(
        self, name: str, headers: Mapping[str, str] | None = None, **attributes: str
    ) -> Iterator[SetAttribute]:
        """Make a span of what is done inside; yields a function that sets further attributes.

        headers: of a request, whose `traceparent` is the span's parent. attributes: `__` stands for a dot.
        """
        if self._provider is None:
            yield lambda key, value: None
            return
        trace = importlib.import_module("opentelemetry.trace")
        propagate = importlib.import_module("opentelemetry.propagate")
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
        """Send what is left."""
        if self._provider is not None:
            self._provider.shutdown()


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
