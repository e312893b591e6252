"""Parameters that are not known, or do no harm where they are not done, are taken and named by every API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from websockets.typing import Subprotocol

from sottovoce.server.api import HttpRoute
from sottovoce.server.apis.openai_files import transcription_request
from sottovoce.server.app import APIS
from sottovoce.server.errors import ApiError
from sottovoce.server.fields import Fields
from tests.server.conversation import connected, exchanged, received, refusal, say
from tests.server.servers import SECOND, TRANSCRIPTIONS, ServerThread, post, wav
from tests.server.test_listen import CLOSE, PLAIN

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
"""Deepgram's client asks websockets for what is old there."""
HEADER = "x-ignored-parameters"
SUBTITLES = ("/asr", "/detect-language")
TURNS = "/v2/listen?model=flux-general-en&encoding=linear16"
HARMLESS = {
    **dict.fromkeys(("filler_words", "profanity_filter", "dictation", "measurements"), "true"),
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
REFUSED = {"redact": "pci", "callback": "https://example.org"}
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


def noted(
    server: ServerThread, path: str, *said: str | bytes | dict[str, Any]
) -> tuple[str | None, list[dict[str, Any]]]:
    """The note of a handshake, and all that a socket says to some messages, to its end."""
    events, socket = exchanged(server, path, *said)
    assert socket.response is not None
    return socket.response.headers.get(HEADER), events


@pytest.mark.parametrize(
    ("path", "status"),
    [(TRANSCRIPTIONS, 200), ("/v1/audio/translations", 200), ("/inference", 200), ("/v1/jobs", 202)],
)
def test_forms(quiet_server: ServerThread, path: str, status: int) -> None:
    unknown = {"langage": "de", "stream_options[include_usage]": "true", "made up, é\n": "1", "": "1"}
    known = {"language": "en", "response_format": "json", "temperature": "0"}
    answer = post(quiet_server, path, **known, **unknown)
    assert answer.status_code == status, answer.text
    reported = ["langage", "stream_options", "made?up???%0A", "?"]
    extra = ["language"] if path == "/v1/audio/translations" else []
    assert sorted(answer.headers[HEADER].split(", ")) == sorted([*reported, *extra])
    assert HEADER not in post(quiet_server, path, response_format="json").headers


ROUTES = [
    (route.method, route.path.replace(":path", "").replace("{name}", "nano").replace("{id}", "job_1"))
    for each in APIS
    for route in each.routes
    if isinstance(route, HttpRoute) and route.operation is not None
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_parameter_of_the_query_that_a_route_does_not_know_is_named(
    quiet_server: ServerThread, method: str, path: str
) -> None:
    is_form = path in (
        TRANSCRIPTIONS,
        "/v1/audio/translations",
        "/inference",
        "/load",
        "/v1/jobs",
        *SUBTITLES,
    )
    sent: dict[str, Any] = {"content": wav(16_000)} if path == "/v1/listen" else {}
    if is_form and method == "POST":
        sent = {"files": {"file": wav(16_000)}}
    answer = httpx.request(method, f"{quiet_server.url}{path}?made_up=1", timeout=60, **sent)
    if path == "/load":  # refused, as there is one model alone
        assert answer.status_code == 403
    else:
        assert answer.headers[HEADER] == "made_up", answer.text


@pytest.mark.parametrize("path", ["/v1/captions", "/v1/captions/read"])
def test_sockets_of_captions(quiet_server: ServerThread, path: str) -> None:
    with connected(quiet_server, "/v1/captions?made_up=1") as publisher:
        token = received(publisher)["token"]
        offers = [Subprotocol("sottovoce"), Subprotocol(f"sottovoce-captions.{token}")]
        more = {"subprotocols": offers} if path.endswith("read") else {}
        with connected(quiet_server, f"{path}?made_up=1", **more) as socket:
            assert socket.response is not None
            assert socket.response.headers[HEADER] == "made_up"


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, "/inference"])
def test_a_field_of_a_form_may_be_in_the_query_and_counts_less(quiet_server: ServerThread, path: str) -> None:
    answer = post(quiet_server, f"{path}?response_format=text&temperature=0&temperature=1", temperature="0")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers[HEADER] == "temperature"
    assert post(quiet_server, f"{path}?language=klingon").status_code == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"{TRANSCRIPTIONS}?language=en&language=de"),
        ("POST", "/v1/convert?format=srt&format=vtt"),
        ("GET", "/v1/jobs?limit=1&limit=2"),
        ("POST", "/v1/listen?model=nano&model=other"),
        ("GET", "/v1/live?languages=en&languages=de"),
    ],
)
def test_a_parameter_that_is_repeated_is_refused(quiet_server: ServerThread, method: str, path: str) -> None:
    sent = {"files": {"file": wav(16_000)}} if path.startswith(TRANSCRIPTIONS) else {}
    answer = httpx.request(method, quiet_server.url + path, **sent)
    assert answer.status_code == 400
    assert "expected one value, got '2'" in answer.text or "expected one value, got 2" in answer.text


def test_a_stream(quiet_server: ServerThread) -> None:
    answer = post(quiet_server, stream="true", top_k="7")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers[HEADER] == "top_k"


def test_a_strategy_of_other_servers(quiet_server: ServerThread) -> None:
    strategy = {"chunking_strategy[type]": "server_vad", "chunking_strategy[volume]": "7"}
    answer = post(quiet_server, **strategy)
    assert (answer.status_code, answer.headers[HEADER]) == (200, "chunking_strategy.volume")


def test_a_note_has_an_end(quiet_server: ServerThread) -> None:
    answer = post(quiet_server, **{f"{i}-{'a' * 500}": "1" for i in range(900)})
    assert answer.status_code == 200
    assert len(answer.headers[HEADER]) < 3000
    assert answer.headers[HEADER].endswith(", ...")


def test_lists_and_secrets(quiet_server: ServerThread) -> None:
    assert httpx.get(f"{quiet_server.url}/v1/jobs?limit=1&before=job_1").headers[HEADER] == "before"
    request = {"session": SESSION, "expires_after": {"seconds": 60, "grace": 1}, "name": "x"}
    answer = httpx.post(f"{quiet_server.url}/v1/realtime/client_secrets", json=request)
    assert answer.status_code == 200
    assert sorted(answer.headers[HEADER].split(", ")) == sorted([*OF_SESSION, "expires_after.grace", "name"])


def test_a_realtime_session(quiet_server: ServerThread) -> None:
    with connected(quiet_server, "/v1/realtime?model=gpt-realtime&made_up=1") as socket:
        say(socket, {"type": "session.update", "session": SESSION})
        created, updated = received(socket), received(socket)
        assert socket.response is not None
        assert socket.response.headers[HEADER] == "made_up"
    assert (created["type"], updated["type"]) == ("session.created", "session.updated")
    assert "ignored_parameters" not in created
    assert updated["ignored_parameters"] == OF_SESSION


def test_the_servers_own_protocol(quiet_server: ServerThread) -> None:
    said = (
        {"type": "configure", "volume": 11, "terms": "a"},
        {"type": "finalize", "now": True},
        {"type": "close"},
    )
    reported, events = noted(quiet_server, "/v1/live?language=en", *said)
    assert reported == "language"
    notes = {message["type"]: message.get("ignored") for message in events if message["type"] != "status"}
    assert notes == {"ready": ["language"], "configured": ["volume"], "finalized": ["now"], "closed": None}


def test_deepgram_takes_what_does_no_harm(quiet_server: ServerThread) -> None:
    query = "&".join(f"{name}={value}" for name, value in HARMLESS.items())
    warnings = [
        {"parameter": name, "type": "unsupported_parameter", "message": f"{name}: without effect here"}
        for name in HARMLESS
    ]
    reported, events = noted(quiet_server, f"/v1/listen?{PLAIN}&{query}", SECOND, CLOSE)
    assert (reported, events[-1]["type"], events[-1]["warnings"]) == (
        ", ".join(HARMLESS),
        "Metadata",
        warnings,
    )
    answer = httpx.post(f"{quiet_server.url}/v1/listen?{query}", content=wav(16_000), timeout=60)
    assert answer.status_code == 200, answer.text
    assert (answer.headers[HEADER], answer.json()["metadata"]["warnings"]) == (reported, warnings)
    reported, events = noted(quiet_server, f"{TURNS}&{query}", CLOSE)
    assert (reported, events[0]["type"], events[1]["type"]) == (", ".join(HARMLESS), "Connected", "Warning")
    assert events[1]["code"] == "UNSUPPORTED_PARAMETER"
    assert all(name in events[1]["description"] for name in HARMLESS)
    assert [message["sequence_id"] for message in events] == list(range(len(events)))


def test_what_is_off_needs_no_note(quiet_server: ServerThread) -> None:
    query = "&".join(f"{name}=false" for name in (*HARMLESS, *REFUSED))
    reported, events = noted(quiet_server, f"/v1/listen?{PLAIN}&{query}", CLOSE)
    assert (reported, "warnings" in events[-1]) == (None, False)


@pytest.mark.parametrize("name", REFUSED)
def test_deepgram_refuses_what_would_mislead(quiet_server: ServerThread, name: str) -> None:
    for path in (f"/v1/listen?{PLAIN}", TURNS):
        assert refusal(quiet_server, f"{path}&{name}={REFUSED[name]}").status_code == 400
    answer = httpx.post(f"{quiet_server.url}/v1/listen?{name}={REFUSED[name]}", content=wav(16_000))
    assert (answer.status_code, name in answer.json()["err_msg"]) == (400, True)


def test_a_diarizer_tells_speakers_apart(quiet_server: ServerThread) -> None:
    from sottovoce.server.apis.deepgram import recording_params, stream_params

    registry = quiet_server.services.registry
    for read in (stream_params, recording_params):
        assert read([("diarize_model", "latest")], registry).has_speakers
        assert not read([("diarize_model", "false")], registry).has_speakers
        assert read([("diarize", "true")], registry).ignored == ()


def test_hotwords_are_phrases_and_the_filter_finds_speech_first() -> None:
    plain = transcription_request(Fields([]))
    result = transcription_request(
        Fields([("hotwords", "Kowalczyk, Nowak,"), ("keywords[]", "Anna"), ("vad_filter", "true")])
    )
    assert result.phrases == ("Anna", "Kowalczyk", "Nowak")
    assert (plain.options.mode, result.options.mode) == ("seek", "vad")
    assert result.ignored == ()
    off = transcription_request(Fields([("vad_filter", "false")]))
    assert off.options.mode == "seek"


def test_hotwords_have_an_end() -> None:
    with pytest.raises(ApiError, match="hotwords: expected at most"):
        transcription_request(Fields([("hotwords", "word," * 10_000)]))


def test_a_seed_is_that_of_the_draws(client: OpenAI, english: Path) -> None:
    assert transcription_request(Fields([("seed", "7")])).options.decoding.seed == 7
    request = {"model": "nano", "file": english, "language": "en", "temperature": 1.0}
    said = [client.audio.transcriptions.create(**request, extra_body={"seed": 7}).text for _ in range(2)]
    assert said[0] == said[1]
    with pytest.raises(ApiError, match="seed: expected a whole number"):
        transcription_request(Fields([("seed", "1.5")]))
