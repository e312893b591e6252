"""Spans of OpenTelemetry: one for each request, live session and job, which say nothing of what was said."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from sottovoce.api import Model
from sottovoce.errors import MissingExtraError
from sottovoce.server import telemetry
from sottovoce.server.settings import JobSettings
from tests.server.conversation import exchanged
from tests.server.servers import CLIPS, post, serving, wait_until

sdk: Any = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_requests_sessions_and_jobs_have_spans(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nano: Model
) -> None:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()

    def provider() -> object:
        created = sdk.TracerProvider()
        created.add_span_processor(SimpleSpanProcessor(exporter))
        return created

    monkeypatch.setattr("sottovoce.server.services.make_provider", provider)
    with serving(nano, traces=True, jobs=JobSettings(str(tmp_path))) as server:
        parent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
        assert httpx.get(f"{server.url}/v1/models?q=quarterly", headers=parent).status_code == 200
        assert httpx.get(f"{server.url}/nothing").status_code == 404
        exchanged(server, "/v1/live?prompt=quarterly", {"type": "close"})
        said = (CLIPS / "en.flac").read_bytes()
        job = post(server, "/v1/jobs", said, name="quarterly.flac").json()["id"]
        wait_until(lambda: any(span.name == "job" for span in exporter.get_finished_spans()))
    spans = {span.name: span for span in exporter.get_finished_spans()}
    models = spans["GET /v1/models"]
    assert f"{models.context.trace_id:032x}" == TRACE
    assert f"{models.parent.span_id:016x}" == PARENT
    assert models.attributes["http.response.status_code"] == 200
    assert models.attributes["sottovoce.request_id"] == "mine"
    assert spans["GET other"].attributes["http.response.status_code"] == 404
    assert spans["WEBSOCKET /v1/live"].attributes["websocket.close_code"] == 1000
    assert spans["POST /v1/jobs"].attributes["http.response.status_code"] == 202
    assert spans["job"].attributes["sottovoce.job"] == job
    written = json.dumps([json.loads(span.to_json()) for span in exporter.get_finished_spans()])
    assert "quarterly" not in written
    assert "garden" not in written.lower(), "which was said"


def test_without_the_packages_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtraError, match="trace"):
        telemetry.make_provider()
    with telemetry.Tracing().span("none") as set_attribute:
        set_attribute("any", 1)
