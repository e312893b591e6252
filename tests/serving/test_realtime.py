"""OpenAI's realtime client, unchanged: turns that the server finds, and turns that the client ends."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sottovoce.audio.io import load_audio
from sottovoce.serving.access.gate import ClientSecrets
from sottovoce.serving.apis.openai_realtime import RealtimeSessionConfig, updated
from sottovoce.serving.http.server import ServerThread
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.settings import Access
from sottovoce.types import SAMPLE_RATE
from tests.serving.servers import CLIPS, SlowModel, serving

Message = dict[str, Any]
URL = "/v1/realtime"
COMPLETED = "conversation.item.input_audio_transcription.completed"
DELTA = "conversation.item.input_audio_transcription.delta"


def pcm24(path: Path) -> bytes:
    samples = load_audio(path)
    at = np.arange(0, len(samples) - 1, 16_000 / 24_000)
    return (np.interp(at, np.arange(len(samples)), samples) * 32767).astype("<i2").tobytes()


def update(**heard: Any) -> Message:
    return {"type": "session.update", "session": {"type": "transcription", "audio": {"input": heard}}}


def append(audio: bytes) -> Message:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(audio).decode()}


def appended(audio: bytes, piece: int = 24_000) -> Iterator[Message]:
    return (append(audio[start : start + piece]) for start in range(0, len(audio), piece))


def talk(
    server: ServerThread,
    messages: list[Any],
    enough: Callable[[list[Message]], bool],
    query: str = "",
    **more: Any,
) -> tuple[list[Message], int | None]:
    async def run() -> tuple[list[Message], int | None]:
        heard: list[Message] = []
        async with connect(
            f"ws://{server.address}{URL}?intent=transcription{query}", max_size=None, **more
        ) as socket:

            async def speak() -> None:
                for message in messages:
                    await socket.send(message if isinstance(message, str | bytes) else json.dumps(message))

            speaking = asyncio.create_task(speak())
            try:
                while not enough(heard):
                    heard.append(json.loads(await asyncio.wait_for(socket.recv(), 60)))
            except ConnectionClosed:
                pass
            await asyncio.gather(speaking, return_exceptions=True)
            return heard, socket.close_code

    return asyncio.run(run())


def of(messages: list[Message], kind: str) -> list[Message]:
    return [message for message in messages if message["type"] == kind]


def n_of(kind: str, n: int = 1) -> Callable[[list[Message]], bool]:
    return lambda heard: len(of(heard, kind)) >= n


def test_the_client_of_openai_follows_turns_that_the_server_finds(server: ServerThread) -> None:
    async def run() -> list[Any]:
        events: list[Any] = []
        async with (
            AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
            client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
        ):
            await connection.session.update(
                session={
                    "type": "transcription",
                    "audio": {
                        "input": {
                            "format": {"type": "audio/pcm", "rate": 24000},
                            "noise_reduction": {"type": "near_field"},
                            "transcription": {
                                "model": "gpt-4o-transcribe",
                                "languages": ["en", "de", "es", "fr"],
                            },
                            "turn_detection": {"type": "server_vad", "silence_duration_ms": 400},
                        }
                    },
                    "include": ["item.input_audio_transcription.logprobs"],
                }
            )
            audio = pcm24(CLIPS / "mixed.flac") + bytes(48_000)
            for start in range(0, len(audio), 24_000):
                piece = base64.b64encode(audio[start : start + 24_000]).decode()
                await connection.input_audio_buffer.append(audio=piece)
            async for event in connection:
                events.append(event)
                if sum(each.type == "conversation.item.done" for each in events) == 4:
                    return events
        return events

    events = asyncio.run(asyncio.wait_for(run(), 120))
    assert events[0].type == "session.created"
    (session,) = [event.session for event in events if event.type == "session.updated"]
    heard = session.audio.input
    assert (heard.format.type, heard.transcription.model, heard.noise_reduction) == (
        "audio/pcm",
        "nano",
        None,
    )
    assert heard.turn_detection.silence_duration_ms == 400
    done = [event for event in events if event.type == COMPLETED]
    assert [event.languages[0].code for event in done] == ["en", "de", "es", "fr"]
    for event in done:
        deltas = [each for each in events if each.type == DELTA and each.item_id == event.item_id]
        assert "".join(each.delta for each in deltas) == event.transcript != ""
        assert [p.token for each in deltas for p in each.logprobs] == [p.token for p in event.logprobs]
        assert event.usage.type == "duration"
        kinds = [e.type for e in events if getattr(e, "item_id", None) == event.item_id and e.type != DELTA]
        assert kinds == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            COMPLETED,
        ]
    items = [event for event in events if event.type == "conversation.item.done"]
    assert [event.item.content[0].transcript for event in items] == [event.transcript for event in done]
    chain = [event.previous_item_id for event in events if event.type == "input_audio_buffer.committed"]
    assert chain == [None, *[event.item_id for event in done][:-1]]
    assert len({event.event_id for event in events}) == len(events)


def test_the_synchronous_client_ends_turns_itself_and_deltas_come_before(server: ServerThread) -> None:
    with (
        OpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
        client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
    ):
        connection.session.update(
            session={
                "type": "transcription",
                "audio": {"input": {"transcription": {"language": "en"}, "turn_detection": None}},
            }
        )
        for message in appended(pcm24(CLIPS / "en.flac")):
            connection.input_audio_buffer.append(audio=message["audio"])
        connection.input_audio_buffer.commit()
        kinds = []
        for event in connection:
            kinds.append(event.type)
            if event.type == COMPLETED:
                assert "garden" in event.transcript
                assert event.usage.seconds == pytest.approx(length_s(CLIPS / "en.flac"), abs=0.002)
            if event.type == "conversation.item.done":
                break
    assert kinds.index(DELTA) < kinds.index("input_audio_buffer.committed")
    assert not [kind for kind in kinds if "speech" in kind]


def length_s(file: Path) -> float:
    return len(load_audio(file)) / SAMPLE_RATE


def test_a_turn_is_as_long_as_all_its_audio() -> None:
    second = bytes(2 * 24_000)
    commit = {"type": "input_audio_buffer.commit"}
    with serving(SlowModel()) as server:
        messages = [
            update(turn_detection=None),
            append(second * 4),
            commit,
            *[append(second) for _ in range(3)],
            commit,
        ]
        heard, _ = talk(server, messages, n_of(COMPLETED, 2))
    assert [one["usage"]["seconds"] for one in of(heard, COMPLETED)] == pytest.approx([4.0, 3.0], abs=0.002)


@pytest.mark.parametrize("name", ["audio/pcmu", "audio/pcma"])
def test_telephone_formats(server: ServerThread, name: str) -> None:
    from tests.serving.test_live import encoded

    samples = load_audio(CLIPS / "en.flac")[::2]
    audio = encoded((samples * 32767).astype("<i2"), "mulaw" if name == "audio/pcmu" else "alaw").tobytes()
    messages = [
        update(format={"type": name}, transcription={"language": "en"}, turn_detection=None),
        *appended(audio, 4_000),
        {"type": "input_audio_buffer.commit"},
    ]
    heard, _ = talk(server, messages, n_of(COMPLETED))
    assert "in the morning" in of(heard, COMPLETED)[0]["transcript"].lower()


def test_clear_forgets_the_turn_and_commit_of_nothing_is_an_error() -> None:
    commit = {"type": "input_audio_buffer.commit", "event_id": "mine"}
    second = bytes(2 * 24_000)
    with serving(SlowModel()) as server:
        messages = [
            update(turn_detection=None),
            append(second * 2),
            {"type": "input_audio_buffer.clear"},
            append(second * 3),
            commit,
            commit,
        ]
        heard, _ = talk(server, messages, n_of("error"))
    assert len(of(heard, "input_audio_buffer.cleared")) == 1
    (done,) = of(heard, COMPLETED)
    assert done["transcript"].split() == ["word"] * 3
    (error,) = of(heard, "error")
    assert (error["error"]["code"], error["error"]["event_id"]) == ("input_audio_buffer_commit_empty", "mine")


def test_an_error_leaves_the_session_open(server: ServerThread) -> None:
    """Of what the model lacks, too; `test_realtime_answers` has the errors of messages."""
    wrong = [update(transcription={"language": "pl"}), update(transcription={"model": "other"})]
    right = [update(turn_detection=None), *appended(pcm24(CLIPS / "en.flac"))]
    heard, _ = talk(server, [*wrong, *right, {"type": "input_audio_buffer.commit"}], n_of(COMPLETED))
    told = [(error["error"]["param"], error["error"]["message"]) for error in of(heard, "error")]
    assert sorted(param or "" for param, _ in told) == ["", "model"]
    assert any("this model knows" in message for _, message in told)
    assert any("expected one of nano" in message for _, message in told)
    assert of(heard, COMPLETED)[0]["transcript"]


@pytest.mark.parametrize(("query", "status"), [("&model=other", 404), ("&call_id=rtc_1", 400)])
def test_an_address_that_asks_for_something_else_is_refused(
    server: ServerThread, query: str, status: int
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        talk(server, [], n_of("never"), query)
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["error"]["type"] == "invalid_request_error"


def test_a_turn_whose_text_cannot_be_found_fails_and_the_next_one_does_not() -> None:
    def fail() -> None:
        if model.n_calls == 1:
            raise RuntimeError("secret of the inside")

    model = SlowModel(fail)
    second = bytes(2 * 24_000)
    with serving(model) as server:
        messages = [
            update(turn_detection=None),
            append(second),
            append(second * 2),
            {"type": "input_audio_buffer.commit"},
        ]

        async def run() -> list[Message]:
            heard: list[Message] = []
            async with connect(f"ws://{server.address}{URL}?intent=transcription") as socket:
                for message in messages:
                    await socket.send(json.dumps(message))
                    await asyncio.sleep(0.2)
                while not n_of(COMPLETED)(heard):
                    heard.append(json.loads(await asyncio.wait_for(socket.recv(), 20)))
            return heard

        heard = asyncio.run(run())
    kinds = [message["type"] for message in heard]
    at = kinds.index("input_audio_buffer.committed")
    assert kinds[at : at + 4] == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.input_audio_transcription.failed",
        "conversation.item.done",
    ]
    (failed,) = of(heard, "conversation.item.input_audio_transcription.failed")
    assert "secret" not in json.dumps(heard)
    assert failed["item_id"] != of(heard, COMPLETED)[0]["item_id"]


def test_silence_for_too_long_is_a_turn_of_its_own(server: ServerThread) -> None:
    turns = {"type": "server_vad", "idle_timeout_ms": 2000}
    messages = [update(turn_detection=turns, transcription={"language": "en"}), *appended(bytes(48_000 * 3))]
    heard, _ = talk(server, messages, n_of("conversation.item.done"))
    (timeout,) = of(heard, "input_audio_buffer.timeout_triggered")
    assert timeout["audio_end_ms"] - timeout["audio_start_ms"] >= 2000
    assert of(heard, COMPLETED)[0]["transcript"] == ""


def test_a_client_secret_opens_the_realtime_api_and_nothing_else() -> None:
    access = Access(api_keys=("the-key-of-the-server",))
    with serving(SlowModel(), access=access) as server:
        with OpenAI(base_url=f"{server.url}/v1", api_key="the-key-of-the-server", max_retries=0) as client:
            made = client.realtime.client_secrets.create(
                expires_after={"anchor": "created_at", "seconds": 60},
                session={
                    "type": "transcription",
                    "audio": {"input": {"transcription": {"language": "de"}, "turn_detection": None}},
                },
            )
            assert made.session.type == "transcription"
            assert time.time() + 50 < made.expires_at < time.time() + 70
        with (
            OpenAI(base_url=f"{server.url}/v1", api_key=made.value, max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
        for way in (
            {"additional_headers": {"authorization": f"Bearer {made.value}"}},
            {"subprotocols": ["realtime", f"openai-insecure-api-key.{made.value}"]},
        ):
            heard, _ = talk(server, [], n_of("session.created"), **way)
            heard_input = heard[0]["session"]["audio"]["input"]
            assert heard_input["transcription"]["language"] == "de"
            assert heard_input["turn_detection"] is None
        with pytest.raises(InvalidStatus) as refused:
            talk(server, [], n_of("never"), subprotocols=["realtime", "openai-insecure-api-key.ek_x"])
        assert refused.value.response.status_code == 401


def test_a_secret_is_known_to_whoever_has_the_key_and_to_nobody_else() -> None:
    config = replace(
        RealtimeSessionConfig(), languages=("en", "de"), keywords=("Grüße", "Zürich"), turns=None
    )
    secret, _ = ClientSecrets(b"k" * 32).make(config.document, 60.0)
    opened = ClientSecrets(b"k" * 32).session_of(["sk-other", secret])
    assert opened is not None
    assert updated(RealtimeSessionConfig(), opened) == config
    assert ClientSecrets(b"l" * 32).session_of([secret]) is None
    body, _, signature = secret.partition(".")
    longer = ClientSecrets(b"k" * 32).make(config.document, 6000.0)[0].partition(".")[0]
    for changed in (
        f"{longer}.{signature}",
        body,
        f"{body}.",
        f"{body}.ü",
        "ek_.",
        "ek_",
        secret[3:],
        secret + "x",
    ):
        assert ClientSecrets(b"k" * 32).session_of([changed]) is None


def test_a_session_that_no_header_could_carry_gets_no_secret() -> None:
    words = tuple(hashlib.sha256(str(i).encode()).hexdigest() for i in range(200))
    with pytest.raises(ApiError, match="less text"):
        ClientSecrets().make(RealtimeSessionConfig(keywords=words).document, 60.0)


def test_a_secret_ends() -> None:
    secrets = ClientSecrets()
    secret, _ = secrets.make(RealtimeSessionConfig(language="de").document, 0.05)
    found = secrets.session_of([secret])
    assert found is not None
    assert updated(RealtimeSessionConfig(), found).language == "de"
    time.sleep(0.1)
    assert secrets.session_of([secret]) is None


INPUT = "session.audio.input"
CANNOT_BE: list[tuple[Message, str, str]] = [
    ({"noise_reduction": "garbage"}, f"{INPUT}.noise_reduction", "object or null"),
    ({"noise_reduction": {"type": "zzz"}}, f"{INPUT}.noise_reduction.type", "near_field, far_field"),
    ({"noise_reduction": {"type": ["x"]}}, f"{INPUT}.noise_reduction.type", "near_field, far_field"),
    ({"noise_reduction": {"strength": "much"}}, f"{INPUT}.noise_reduction.strength", "number"),
    (
        {"turn_detection": {"type": "server_vad", "create_response": "abc"}},
        f"{INPUT}.turn_detection.create_response",
        "true or false",
    ),
    (
        {"turn_detection": {"type": "semantic_vad", "interrupt_response": 1}},
        f"{INPUT}.turn_detection.interrupt_response",
        "true or false",
    ),
    (
        {"turn_detection": {"type": "semantic_vad", "eagerness": 0}},
        f"{INPUT}.turn_detection.eagerness",
        "low",
    ),
    (
        {"turn_detection": {"type": "semantic_vad", "eagerness": ["low"]}},
        f"{INPUT}.turn_detection.eagerness",
        "low",
    ),
    (
        {"turn_detection": {"type": "server_vad", "silence_duration_ms": "500"}},
        f"{INPUT}.turn_detection.silence_duration_ms",
        "number",
    ),
    ({"format": {"type": ""}}, f"{INPUT}.format", "audio/pcm"),
    ({"transcription": ""}, f"{INPUT}.transcription", "object or null"),
    ({"transcription": {"keywords": "a,b"}}, f"{INPUT}.transcription.keywords", "list"),
    ({"transcription": {"languages": "en"}}, f"{INPUT}.transcription.languages", "list"),
    ({"transcription": {"language": "klingon"}}, f"{INPUT}.transcription.language", "klingon"),
    ({"transcription": {"delay": "ever"}}, f"{INPUT}.transcription.delay", "minimal"),
    (
        {"transcription": {"language": "en", "languages": ["de"]}},
        f"{INPUT}.transcription.language",
        "both",
    ),
    ({"format": {"type": "audio/opus"}}, f"{INPUT}.format", "audio/pcm"),
    ({"format": {"type": "audio/pcm", "rate": 16000}}, f"{INPUT}.format.rate", "24000"),
    ({"turn_detection": {"type": "never"}}, f"{INPUT}.turn_detection", "semantic_vad"),
    (
        {"turn_detection": {"type": "server_vad", "threshold": 2}},
        f"{INPUT}.turn_detection.threshold",
        "from 0 to 1",
    ),
    (
        {"turn_detection": {"type": "semantic_vad", "eagerness": "very"}},
        f"{INPUT}.turn_detection.eagerness",
        "low",
    ),
]
"""What `audio.input` says, the field that is wrong, and what is told of it."""


@pytest.fixture(scope="module")
def quick() -> Iterator[ServerThread]:
    with serving(SlowModel()) as server:
        yield server


@pytest.mark.parametrize(("given", "param", "told"), CANNOT_BE)
def test_fields_without_effect_are_read_too(
    quick: ServerThread, given: Message, param: str, told: str
) -> None:
    heard, _ = talk(quick, [update(**given)], lambda heard: len(heard) > 1)
    assert [message["type"] for message in heard] == ["session.created", "error"]
    error = heard[1]["error"]
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert told in error["message"]
    session = {"type": "transcription", "audio": {"input": given}}
    answer = httpx.post(f"{quick.url}{URL}/client_secrets", json={"session": session}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"audio": []}, "session.audio"),
        ({"audio": {"input": 0}}, "session.audio.input"),
        ({"include": "item.input_audio_transcription.logprobs"}, "session.include"),
        ({"include": 0}, "session.include"),
    ],
)
def test_places_that_hold_no_object_are_no_session(quick: ServerThread, session: Message, param: str) -> None:
    message = {"type": "session.update", "session": {"type": "transcription", **session}}
    heard, _ = talk(quick, [message], lambda heard: len(heard) > 1)
    assert heard[1].get("error", {}).get("param") == param


@pytest.mark.parametrize(
    "body", [{"session": 0}, {"expires_after": ""}, {"expires_after": {"seconds": "60"}}]
)
def test_a_secret_is_asked_for_in_json(quick: ServerThread, body: Message) -> None:
    answer = httpx.post(f"{quick.url}{URL}/client_secrets", json=body, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_value"


def test_what_can_be_is_taken(quick: ServerThread) -> None:
    turns = {"type": "server_vad", "create_response": None, "interrupt_response": False}
    far = {"type": "far_field", "strength": 0.5}
    heard, _ = talk(
        quick,
        [update(noise_reduction=far, turn_detection=turns), update(noise_reduction=None)],
        n_of("session.updated", 2),
    )
    assert not of(heard, "error")
