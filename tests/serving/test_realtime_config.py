"""What a session of the realtime API may hold: every field is read, those without effect too."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from sottovoce.serving.http.server import ServerThread
from tests.serving.servers import SlowModel, serving
from tests.serving.test_realtime import URL, Message, n_of, of, talk, update

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
