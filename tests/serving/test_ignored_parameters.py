"""Parameters that are not known, or do no harm where they are not done, are taken and named by every API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sottovoce.serving.http.server import ServerThread
from sottovoce.serving.settings import JobSettings
from tests.serving.servers import serving
from tests.serving.test_listen import PLAIN, SECOND, deepgram
from tests.serving.test_openapi import SilentModel
from tests.serving.test_uploads import wav

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
"""Deepgram's client asks websockets for what is old there."""
HEADER = "x-ignored-parameters"
HARMLESS = {
    **dict.fromkeys(("filler_words", "profanity_filter", "numerals", "dictation", "measurements"), "true"),
    **dict.fromkeys(("detect_entities", "sentiment", "topics", "intents", "numbers", "made_up"), "true"),
    "summarize": "v2",
    "search": "word",
    "custom_topic": "trade",
    "custom_topic_mode": "strict",
    "custom_intent": "buy",
    "custom_intent_mode": "extended",
    "diarize_model": "latest",
    "tier": "enhanced",
}
"""Parameters of Deepgram's, and others, that only add to the answer or style the text."""
REFUSED = {"redact": "pci", "replace": "a:b", "callback": "https://example.org", "multichannel": "true"}
"""Those without which the text, or where it goes, would be another one than was asked for."""
SESSION = {
    "type": "transcription",
    "instructions": "Be kind.",
    "audio": {
        "output": {"voice": "alloy"},
        "input": {
            "transcription": {"volume": 1},
            "noise_reduction": {"level": 1},
            "turn_detection": {"type": "server_vad", "eagerness": "low"},
        },
    },
}
OF_SESSION = [
    "session.instructions",
    "session.audio.output",
    "session.audio.input.transcription.volume",
    "session.audio.input.noise_reduction.level",
    "session.audio.input.turn_detection.eagerness",
]
"""The fields of `SESSION` that are not known there."""


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with serving(SilentModel(), jobs=JobSettings(str(tmp_path_factory.mktemp("jobs")))) as server:
        yield server


def posted(server: ServerThread, path: str, fields: dict[str, str]) -> httpx.Response:
    files = {"file": ("a.wav", wav(16_000), "audio/wav")}
    return httpx.post(server.url + path, files=files, data=fields, timeout=60)


async def opened(server: ServerThread, path: str, *said: str | bytes) -> tuple[str | None, list[Any]]:
    """The note of a handshake, and all that a socket says to some messages, to its end."""
    heard: list[Any] = []
    async with connect(f"ws://{server.address}{path}") as socket:
        assert socket.response is not None
        for message in said:
            await socket.send(message)
        with suppress(ConnectionClosed, TimeoutError):
            while True:
                heard.append(json.loads(await asyncio.wait_for(socket.recv(), 2)))
        return socket.response.headers.get(HEADER), heard


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/audio/transcriptions", 200),
        ("/v1/audio/translations", 200),
        ("/inference", 200),
        ("/v1/jobs", 202),
    ],
)
def test_forms(quick: ServerThread, path: str, status: int) -> None:
    unknown = {"langage": "de", "stream_options[include_usage]": "true", "made up, é\n": "1", "": "1"}
    answer = posted(quick, path, {"language": "en", "response_format": "json", **unknown, "temperature": "0"})
    assert answer.status_code == status, answer.text
    told = ["langage", "stream_options", "made?up???%0A", "?"]
    extra = ["language"] if path == "/v1/audio/translations" else []
    assert sorted(answer.headers[HEADER].split(", ")) == sorted([*told, *extra])
    assert HEADER not in posted(quick, path, {"response_format": "json"}).headers


def test_a_strategy_of_other_servers(quick: ServerThread) -> None:
    strategy = {"chunking_strategy[type]": "server_vad", "chunking_strategy[volume]": "7"}
    answer = posted(quick, "/v1/audio/transcriptions", strategy)
    assert (answer.status_code, answer.headers[HEADER]) == (200, "chunking_strategy.volume")


def test_a_note_has_an_end(quick: ServerThread) -> None:
    answer = posted(quick, "/v1/audio/transcriptions", {f"{i}-{'a' * 500}": "1" for i in range(900)})
    assert answer.status_code == 200
    assert len(answer.headers[HEADER]) < 3000
    assert answer.headers[HEADER].endswith(", ...")


def test_lists_and_secrets(quick: ServerThread) -> None:
    assert httpx.get(f"{quick.url}/v1/jobs?limit=1&before=job_1").headers[HEADER] == "before"
    asked = {"session": SESSION, "expires_after": {"seconds": 60, "grace": 1}, "name": "x"}
    answer = httpx.post(f"{quick.url}/v1/realtime/client_secrets", json=asked)
    assert answer.status_code == 200
    assert sorted(answer.headers[HEADER].split(", ")) == sorted([*OF_SESSION, "expires_after.grace", "name"])


def test_a_realtime_session(quick: ServerThread) -> None:
    update = json.dumps({"type": "session.update", "session": SESSION})
    told, heard = asyncio.run(opened(quick, "/v1/realtime?model=gpt-realtime&made_up=1", update))
    assert told == "made_up"
    assert [message["type"] for message in heard] == ["session.created", "session.updated"]
    assert "ignored_parameters" not in heard[0]
    assert heard[1]["ignored_parameters"] == OF_SESSION


def test_the_servers_own_protocol(quick: ServerThread) -> None:
    said = (
        '{"type": "configure", "volume": 11, "terms": "a"}',
        '{"type": "finalize", "now": true}',
        '{"type": "close"}',
    )
    told, heard = asyncio.run(opened(quick, "/v1/live?language=en", *said))
    assert told == "language"
    notes = {message["type"]: message.get("ignored") for message in heard if message["type"] != "status"}
    assert notes == {"ready": ["language"], "configured": ["volume"], "finalized": ["now"], "closed": None}


@pytest.mark.parametrize("name", HARMLESS)
def test_deepgram_takes_what_does_no_harm(quick: ServerThread, name: str) -> None:
    query = f"{PLAIN}&{name}={HARMLESS[name]}"
    told, heard = asyncio.run(opened(quick, f"/v1/listen?{query}", SECOND, '{"type": "CloseStream"}'))
    warning = {"parameter": name, "type": "unsupported_parameter", "message": f"{name}: without effect here"}
    assert (told, heard[-1]["type"], heard[-1]["warnings"]) == (name, "Metadata", [warning])
    answer = httpx.post(f"{quick.url}/v1/listen?{name}={HARMLESS[name]}", content=wav(16_000), timeout=60)
    assert answer.status_code == 200, answer.text
    assert (answer.headers[HEADER], answer.json()["metadata"]["warnings"]) == (name, [warning])
    turns = "/v2/listen?model=flux-general-en&encoding=linear16"
    told, heard = asyncio.run(opened(quick, f"{turns}&{name}={HARMLESS[name]}", '{"type": "CloseStream"}'))
    assert (told, heard[0]["type"], heard[1]["type"]) == (name, "Connected", "Warning")
    assert (heard[1]["code"], name in heard[1]["description"]) == ("UNSUPPORTED_PARAMETER", True)
    assert [message["sequence_id"] for message in heard] == list(range(len(heard)))


@pytest.mark.parametrize("name", [*HARMLESS, *REFUSED])
def test_what_is_off_needs_no_note(quick: ServerThread, name: str) -> None:
    told, heard = asyncio.run(opened(quick, f"/v1/listen?{PLAIN}&{name}=false", '{"type": "CloseStream"}'))
    assert (told, "warnings" in heard[-1]) == (None, False)


@pytest.mark.parametrize("name", REFUSED)
def test_deepgram_refuses_what_would_mislead(quick: ServerThread, name: str) -> None:
    for path in (f"/v1/listen?{PLAIN}", "/v2/listen?model=flux-general-en&encoding=linear16"):
        with pytest.raises(InvalidStatus) as refused:
            asyncio.run(opened(quick, f"{path}&{name}={REFUSED[name]}"))
        assert refused.value.response.status_code == 400
    answer = httpx.post(f"{quick.url}/v1/listen?{name}={REFUSED[name]}", content=wav(16_000))
    assert (answer.status_code, name in answer.json()["err_msg"]) == (400, True)


def test_a_diarizer_tells_speakers_apart(quick: ServerThread) -> None:
    from sottovoce.serving.apis.deepgram import recording_params, stream_params

    registry = quick.services.registry
    for read in (stream_params, recording_params):
        assert read([("diarize_model", "latest")], registry).has_speakers
        assert not read([("diarize_model", "false")], registry).has_speakers
        assert read([("diarize", "true")], registry).ignored == ()


def test_deepgrams_client_is_served_with_all_of_them(quick: ServerThread) -> None:
    options: dict[str, Any] = {
        "filler_words": True,
        "numerals": True,
        "profanity_filter": True,
        "dictation": True,
    }
    with deepgram(quick) as client:
        found = client.listen.v1.media.transcribe_file(
            request=wav(16_000), model="nova-3", smart_format=True, sentiment=True, **options
        )
        warned = {warning["parameter"] for warning in found.metadata.warnings}
        assert warned == {*options, "sentiment"}
        live = {"numerals": "true", "profanity_filter": "true", "dictation": "true"}
        with client.listen.v1.connect(
            model="nova-3", encoding="linear16", sample_rate=16_000, **live
        ) as socket:
            socket.send_media(SECOND)
            socket.send_close_stream()
            last = list(socket)[-1]
        assert (last.type, {warning["parameter"] for warning in last.warnings}) == ("Metadata", set(live))
