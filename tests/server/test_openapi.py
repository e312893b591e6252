"""The OpenAPI document and the pages say what the code reads: requests made from them find no fault."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sottovoce.audio.io import load_audio
from sottovoce.server.api import HttpRoute, document
from sottovoce.server.apis.deepgram import COMMON_PARAMS, RECORDING_PARAMS, REFUSED, STREAM_PARAMS
from sottovoce.server.apis.flux import TURN_PARAMS
from sottovoce.server.apis.jobs import WEBHOOK_URL
from sottovoce.server.apis.openai_files import SUPPORTED
from sottovoce.server.apis.sottovoce_live import FIELDS
from sottovoce.server.app import APIS
from sottovoce.server.fields import WITHOUT_EFFECT, fields_of
from tests.conftest import N_EXAMPLES
from tests.fresh_process import run_code
from tests.server.servers import CLIPS, ServerThread
from tests.server.test_command import options_of

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


ROOT = Path(__file__).parents[2]
SERVING = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "guides" / "server.md").read_text(encoding="utf-8")
PAGES = SERVING + GUIDE + (ROOT / "README.md").read_text(encoding="utf-8")
CLIENTS = re.findall(r"^```py\n(.*?)^```$", PROTOCOL + SERVING + GUIDE, re.MULTILINE | re.DOTALL)
BEFORE = {
    "speech.raw": "",
    "verify_signature": """
import base64, hashlib, hmac, time
from openai import OpenAI
body, now = "{}", str(int(time.time()))
mac = hmac.digest(b"0123456789abcdef", f"m.{now}.{body}".encode(), "sha256")
headers = {"webhook-id": "m", "webhook-timestamp": now}
headers["webhook-signature"] = "v1," + base64.b64encode(mac).decode()
""",
    "audio.transcriptions": "",
    "AsyncOpenAI": """
import base64
import numpy as np
from sottovoce.audio.io import load_audio
half = np.repeat(load_audio("talk.flac"), 3)[::2]  # 16 to 24 kHz
base64_of_24_khz_pcm = base64.b64encode((np.append(half, np.zeros(48000)) * 32767).astype("<i2")).decode()
""",
    "DeepgramClient": "pcm = open('speech.raw', 'rb').read()",
}
"""A word of each block of a client, and the code that defines the names that it expects."""
CURL = sorted(set(re.findall(r"^curl .*$", PAGES, re.MULTILINE)))


@pytest.mark.quick(2)
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
@pytest.mark.parametrize("line", CURL)
def test_requests_of_curl_are_answered(server: ServerThread, line: str, tmp_path: Path) -> None:
    word = {"word": " one", "start": 0.0, "end": 1.0}
    transcript = tmp_path / "talk.json"
    transcript.write_text(json.dumps({"segments": [{"start": 0, "end": 1, "text": " one", "words": [word]}]}))
    words = line.partition("  #")[0].replace("http://127.0.0.1:8000", server.url)
    words = re.sub(r"talk\.mp3|film\.mkv|examples/speech/en\.flac", str(CLIPS / "en.flac"), words)
    words = words.replace("talk.json", str(transcript)).replace(" -o film.srt", "")
    done = subprocess.run([*shlex.split(words), "-sS", "--fail-with-body"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert "error" not in done.stdout


@pytest.mark.parametrize("block", CLIENTS, ids=lambda block: block.split("\n")[0])
def test_examples_of_clients_run(server: ServerThread, block: str, tmp_path: Path) -> None:
    (before,) = (code for word, code in BEFORE.items() if word in block)
    shutil.copy(CLIPS / "en.flac", tmp_path / "talk.flac")
    samples = load_audio(CLIPS / "en.flac")
    (tmp_path / "speech.raw").write_bytes((samples * 32767).astype("<i2").tobytes())
    code = block.replace("127.0.0.1:8000", server.address).replace(
        "whsec_…", "whsec_MDEyMzQ1Njc4OWFiY2RlZg=="
    )
    if "\nasync with" in code:
        code = "import asyncio\nasync def main():\n" + textwrap.indent(code, "    ") + "asyncio.run(main())"
    result = run_code(f"{before}\n{code}", tmp_path, tmp_path / "printed")
    printed = (tmp_path / "printed").read_text()
    assert result == 0, printed
    assert "error" not in printed.lower()
    assert printed or "print(" not in block


def test_the_file_of_options_is_understood(tmp_path: Path) -> None:
    result = re.search(r"```toml\n([^[].*?)```", SERVING, re.DOTALL)
    assert result
    file = tmp_path / "serve.toml"
    file.write_text(result[1], encoding="utf-8")
    given = options_of(["--config", str(file)])
    assert (given["port"], given["max_sessions"], given["unload_after"]) == (8080, 4, 1800.0)
    assert given["also_model"] == ("gpt-4o-transcribe=large-v3-turbo",)


def test_every_field_of_the_other_apis_is_told() -> None:
    for name in {*COMMON_PARAMS, *STREAM_PARAMS, *RECORDING_PARAMS, *TURN_PARAMS} | set(
        fields_of("whisper_cpp")
    ) - {*WITHOUT_EFFECT, "file"}:
        assert f"`{name}`" in SERVING, name


def test_every_field_of_the_socket_and_parameter_of_the_api_is_told() -> None:
    assert set(re.findall(r"^\| `([\w\[\]]+)` \|", PROTOCOL, re.MULTILINE)) >= set(FIELDS)
    for name in SUPPORTED["transcribe"]:
        assert f"`{name}`" in SERVING
