"""The OpenAPI document says what the code reads: requests made from it and messages made up find no fault."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sottovoce.server.api import HttpRoute, document
from sottovoce.server.apis.deepgram import COMMON_PARAMS, REFUSED, STREAM_PARAMS
from sottovoce.server.apis.flux import TURN_PARAMS
from sottovoce.server.apis.jobs import WEBHOOK_URL
from sottovoce.server.apis.openai_files import SUPPORTED
from sottovoce.server.apis.sottovoce_live import FIELDS
from sottovoce.server.app import APIS
from sottovoce.server.fields import fields_of
from tests.conftest import N_EXAMPLES
from tests.server.servers import ServerThread

FEW = settings(
    max_examples=10,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
MORE = settings(
    max_examples=N_EXAMPLES // 4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def properties(path: str) -> set[str]:
    body: Any = document(APIS)["paths"]
    return set(body[path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"])


def test_it_has_every_path_and_field_that_is_read(quiet_server: ServerThread) -> None:
    assert httpx.get(f"{quiet_server.url}/openapi.json").json() == document(APIS)
    routes = [route for api in APIS for route in api.routes if isinstance(route, HttpRoute)]
    served = {route.path.replace(":path", "") for route in routes}
    described: Any = document(APIS)["paths"]
    assert set(described) == served - {"/", "/captions", "/read", "/favicon.ico"}
    assert properties("/v1/audio/transcriptions") == set(SUPPORTED["transcribe"])
    assert properties("/v1/audio/translations") == set(SUPPORTED["translate"])
    assert properties("/v1/jobs") == {*SUPPORTED["transcribe"], WEBHOOK_URL}
    assert properties("/inference") == set(fields_of("whisper_cpp"))


def operations() -> list[Any]:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    schema = schemathesis.openapi.from_dict(document(APIS))
    return [result.ok() for result in schema.get_all_operations()]


@pytest.mark.long
def test_requests_made_from_it_find_no_fault(quiet_server: ServerThread) -> None:
    """No status, content type or document that it does not tell of, and no 5xx."""
    result = operations()
    from schemathesis.specs.openapi import checks as told

    checks = [told.status_code_conformance, told.content_type_conformance, told.response_schema_conformance]
    for operation in result:

        @FEW
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            answer = case.call(base_url=quiet_server.url, timeout=20)
            assert answer.status_code < 500, case.as_curl_command()
            case.validate_response(answer, checks=checks)

        ask()
    assert len(result) == sum(map(len, document(APIS)["paths"].values()))
    assert quiet_server.services.n_requests == 0


NAMES = sorted({*FIELDS, *TURN_PARAMS, *COMMON_PARAMS, *STREAM_PARAMS, *REFUSED, "numerals", "intent"})
HALF = "\ud800"
"""Of a character: JSON can spell it, and no answer can hold it."""
WORDS = ("true", "false", "1", "-1", "nan", "auto", "en", "linear16", "mulaw", "s16le", "16000")
TYPES = (
    *("finalize", "keepalive", "configure", "voices", "close", "Finalize", "KeepAlive", "CloseStream"),
    *("Configure", "ForceEndTurn"),
    *("session.update", "input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.clear"),
    *("conversation.item.retrieve", "conversation.item.delete"),
)
INNER = (
    *("type", "session", "audio", "input", "format", "rate", "transcription", "turn_detection", "languages"),
    *("thresholds", "eot_threshold", "eot_timeout_ms", "language_hints"),
    *("keyterms", "features", "event_id", "include", "silence_duration_ms", "voices"),
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([*WORDS, *TYPES, HALF])
    | st.text()
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INNER), inner, max_size=4),
    max_leaves=10,
)
OBJECTS = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES)}, optional={name: VALUES for name in INNER if name != "type"}
)
MESSAGES = st.one_of(OBJECTS.map(json.dumps), VALUES.map(json.dumps), st.text(), st.binary(max_size=2_000))
QUERIES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(WORDS) | st.text(max_size=20), max_size=3)
ENDS = {
    "/v1/live": '{"type": "close"}',
    "/v1/realtime": "",
    "/v1/listen": '{"type": "CloseStream"}',
    "/v2/listen": '{"type": "CloseStream"}',
}
USUAL = {
    "/v1/listen": {"encoding": "linear16"},
    "/v2/listen": {"encoding": "linear16", "model": "flux-general-en"},
}


@pytest.mark.parametrize("route", ENDS)
@MORE
@given(query=QUERIES, messages=st.lists(MESSAGES, max_size=5))
def test_no_message_and_no_address_is_a_fault_of_the_server(
    quiet_server: ServerThread, route: str, query: dict[str, str], messages: list[str | bytes]
) -> None:
    async def run() -> int | None:
        url = httpx.URL(f"ws://{quiet_server.address}{route}", params={**USUAL.get(route, {}), **query})
        async with connect(str(url)) as client:
            with suppress(ConnectionClosed):
                for message in messages:
                    await client.send(message)
                if not ENDS[route]:
                    return 1000  # realtime has no word for the end: the client goes
                await client.send(ENDS[route])
                while True:
                    await asyncio.wait_for(client.recv(), 20)
        return client.close_code

    def ended() -> int | None:
        try:
            return asyncio.run(run())
        except InvalidStatus as refused:
            return refused.response.status_code

    assert ended() in (1000, 1008, 1009, 400, 404)
    assert httpx.get(f"{quiet_server.url}/health").status_code == 200
