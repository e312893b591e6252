"""Spans of OpenTelemetry: one for each request, live session and job, which say nothing of what was said."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from sottovoce.api import Model
from sottovoce.errors import MissingExtraError
from sottovoce.server import telemetry
from sottovoce.server.settings import JobSettings
from tests.server.servers import CLIPS, ServerThread, settings, wait_until

sdk: Any = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_requests_sessions_and_jobs_have_spans(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nano: Model
) -> None:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()

    def provider() -> object:
        made = sdk.TracerProvider()
        made.add_span_processor(SimpleSpanProcessor(exporter))
        return made

    monkeypatch.setattr("sottovoce.server.services.make_provider", provider)
    wanted = replace(settings(), traces=True, jobs=JobSettings(str(tmp_path)))

    async def live(address: str) -> None:
        async with connect(f"ws://{address}/v1/live?prompt=quarterly") as socket:
            await socket.send('{"type": "close"}')
            async for _ in socket:
                pass

    with ServerThread(wanted, lambda name: nano) as server:
        server.wait_until_ready()
        parent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
        assert httpx.get(f"{server.url}/v1/models?q=quarterly", headers=parent).status_code == 200
        assert httpx.get(f"{server.url}/nothing").status_code == 404
        asyncio.run(live(server.address))
        files = {"file": ("quarterly.flac", (CLIPS / "en.flac").read_bytes())}
        job = httpx.post(f"{server.url}/v1/jobs", files=files).json()["id"]
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
