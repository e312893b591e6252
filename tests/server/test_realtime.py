"""OpenAI's realtime client, unchanged; the answer to every message; sessions, secrets and speakers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.realtime import ConversationItemInputAudioTranscriptionSegment
from websockets.sync.client import ClientConnection

from sottovoce.audio.io import load_audio
from sottovoce.server.apis.openai_realtime import RealtimeSessionConfig, speaker_runs, updated_config
from sottovoce.server.auth import ClientSecrets
from sottovoce.server.errors import ApiError
from sottovoce.types import SAMPLE_RATE, Event, Samples, SpeechEnded, SpeechStarted, Word
from tests.server.conversation import (
    TALK,
    TWO_SENTENCES_S,
    Message,
    connected,
    received,
    refusal,
    say,
    talk_model,
)
from tests.server.servers import CLIPS, KEY, LOCKED, ServerThread, SlowModel, SlowSession, bearer, serving
from tests.server.test_live import encoded

URL = "/v1/realtime"
COMPLETED = "conversation.item.input_audio_transcription.completed"
DELTA = "conversation.item.input_audio_transcription.delta"


def pcm24(path: Path) -> bytes:
    samples = load_audio(path)
    at = np.arange(0, len(samples) - 1, 16_000 / 24_000)
    return (np.interp(at, np.arange(len(samples)), samples) * 32767).astype("<i2").tobytes()


def update(**events: Any) -> Message:
    return {"type": "session.update", "session": {"type": "transcription", "audio": {"input": events}}}


def append(audio: bytes) -> Message:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(audio).decode()}


def appended(audio: bytes, piece: int = 24_000) -> Iterator[Message]:
    return (append(audio[start : start + piece]) for start in range(0, len(audio), piece))


def seconds(n: float) -> Message:
    return append(bytes(2 * round(24_000 * n)))


BUFFER = "input_audio_buffer"
COMMIT: Message = {"type": f"{BUFFER}.commit", "event_id": "mine"}
CLEAR: Message = {"type": f"{BUFFER}.clear"}
BY_CLIENT = update(turn_detection=None)
BY_SERVER = update(turn_detection={"type": "server_vad"})


def of(messages: list[Message], kind: str) -> list[Message]:
    return [message for message in messages if message["type"] == kind]


def until(socket: ClientConnection, kind: str, n: int = 1) -> list[Message]:
    """Receive until `n` messages of a type have come."""
    events: list[Message] = []
    while len(of(events, kind)) < n:
        events.append(received(socket))
    return events


def talk(
    server: ServerThread, messages: list[Message | str], kind: str, n: int = 1, **options: Any
) -> list[Message]:
    """Send messages, and receive until `n` of a type have come."""
    with connected(server, f"{URL}?intent=transcription", **options) as socket:
        say(socket, *messages)
        return until(socket, kind, n)


def test_the_client_of_openai_follows_turns_that_the_server_finds(server: ServerThread) -> None:
    async def run() -> list[Any]:
        events: list[Any] = []
        async with (
            AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
            client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
        ):
            session: Any = update(
                format={"type": "audio/pcm", "rate": 24000},
                noise_reduction={"type": "near_field"},
                transcription={"model": "gpt-4o-transcribe", "languages": ["en", "de", "es", "fr"]},
                turn_detection={"type": "server_vad", "silence_duration_ms": 400},
            )["session"]
            session["include"] = ["item.input_audio_transcription.logprobs"]
            await connection.session.update(session=session)
            audio = pcm24(CLIPS / "mixed.flac")[: TWO_SENTENCES_S * 48_000] + bytes(48_000)
            for start in range(0, len(audio), 24_000):
                piece = base64.b64encode(audio[start : start + 24_000]).decode()
                await connection.input_audio_buffer.append(audio=piece)
            async for event in connection:
                events.append(event)
                if sum(each.type == "conversation.item.done" for each in events) == 2:
                    return events
        return events

    events = asyncio.run(asyncio.wait_for(run(), 120))
    assert events[0].type == "session.created"
    (session,) = [event.session for event in events if event.type == "session.updated"]
    output = session.audio.input
    reported = (output.format.type, output.transcription.model, output.noise_reduction)
    assert reported == ("audio/pcm", "nano", None)
    assert output.turn_detection.silence_duration_ms == 400
    done = [event for event in events if event.type == COMPLETED]
    assert [event.languages[0].code for event in done] == ["en", "de"]
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
        transcription = {"language": "en", "replacements": "garden => orchard"}
        session: Any = update(transcription=transcription, turn_detection=None)["session"]
        connection.session.update(session=session)
        for message in appended(pcm24(CLIPS / "en.flac")):
            connection.input_audio_buffer.append(audio=message["audio"])
        connection.input_audio_buffer.commit()
        kinds = []
        for event in connection:
            kinds.append(event.type)
            if event.type == COMPLETED:
                assert "orchard" in event.transcript
                assert event.usage.seconds == pytest.approx(length_s(CLIPS / "en.flac"), abs=0.002)
            if event.type == "conversation.item.done":
                break
    assert kinds.index(DELTA) < kinds.index("input_audio_buffer.committed")
    assert not [kind for kind in kinds if "speech" in kind]


def length_s(file: Path) -> float:
    return len(load_audio(file)) / SAMPLE_RATE


@pytest.mark.parametrize("name", ["audio/pcmu", "audio/pcma"])
def test_telephone_formats(server: ServerThread, name: str) -> None:
    samples = load_audio(CLIPS / "en.flac")[::2]
    audio = encoded((samples * 32767).astype("<i2"), "mulaw" if name == "audio/pcmu" else "alaw").tobytes()
    wanted = update(format={"type": name}, transcription={"language": "en"}, turn_detection=None)
    events = talk(server, [wanted, *appended(audio, 4_000), COMMIT], COMPLETED)
    assert "in the morning" in of(events, COMPLETED)[0]["transcript"].lower()


def test_an_error_leaves_the_session_open(server: ServerThread) -> None:
    """Of what the model lacks, too."""
    wrong = [update(transcription={"language": "pl"}), update(transcription={"model": "other"})]
    right = [BY_CLIENT, *appended(pcm24(CLIPS / "en.flac")), COMMIT]
    events = talk(server, [*wrong, *right], COMPLETED)
    reported = [(error["error"]["param"], error["error"]["message"]) for error in of(events, "error")]
    assert sorted(param or "" for param, _ in reported) == ["", "model"]
    assert any("this model knows" in message for _, message in reported)
    assert any("expected one of nano" in message for _, message in reported)
    assert of(events, COMPLETED)[0]["transcript"]


@pytest.mark.parametrize(("query", "status"), [("model=other", 404), ("call_id=rtc_1", 400)])
def test_an_address_that_asks_for_something_else_is_refused(
    server: ServerThread, query: str, status: int
) -> None:
    answer = refusal(server, f"{URL}?{query}")
    assert answer.status_code == status
    assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"


def test_a_turn_whose_text_cannot_be_found_fails_and_the_next_one_does_not() -> None:
    def fail() -> None:
        if model.n_calls == 1:
            raise RuntimeError("secret of the inside")

    model = SlowModel(fail)
    with serving(model) as server, connected(server, URL) as socket:
        say(socket, BY_CLIENT, seconds(1))
        events = until(socket, "conversation.item.done")  # the next audio is not of the turn that failed
        say(socket, seconds(2), COMMIT)
        events += until(socket, COMPLETED)
    kinds = [message["type"] for message in events]
    at = kinds.index(f"{BUFFER}.committed")
    assert kinds[at : at + 4] == [
        f"{BUFFER}.committed",
        "conversation.item.added",
        "conversation.item.input_audio_transcription.failed",
        "conversation.item.done",
    ]
    (failed,) = of(events, "conversation.item.input_audio_transcription.failed")
    assert "secret" not in json.dumps(events)
    assert failed["item_id"] != of(events, COMPLETED)[0]["item_id"]


def test_silence_for_too_long_is_a_turn_of_its_own(server: ServerThread) -> None:
    turns = {"type": "server_vad", "idle_timeout_ms": 2000}
    messages = [update(turn_detection=turns, transcription={"language": "en"}), *appended(bytes(48_000 * 3))]
    events = talk(server, messages, "conversation.item.done")
    (timeout,) = of(events, f"{BUFFER}.timeout_triggered")
    assert timeout["audio_end_ms"] - timeout["audio_start_ms"] >= 2000
    assert of(events, COMPLETED)[0]["transcript"] == ""


EMPTY = "input_audio_buffer_commit_empty"
THE_END = "that is all"


class TurnSession(SlowSession):
    """Hears speech in the first second, and its end when half a second more has come."""

    def push(self, pcm: Samples, **how: object) -> list[Event]:
        before, after = self._n_samples, self._n_samples + len(pcm)
        events: list[Event] = [SpeechStarted(0.0, 0.1)] if before == 0 < after else []
        if before < 16_000:
            events += super().push(pcm[: 16_000 - before])
        self._n_samples = after
        return [*events, SpeechEnded(1.0, 1.5)] if before < 24_000 <= after else events


NOTHING, CLEARED = f"error {EMPTY}", f"{BUFFER}.cleared"
STARTED, STOPPED = f"{BUFFER}.speech_started", f"{BUFFER}.speech_stopped"
SILENCE = (f"{BUFFER}.committed", "conversation.item.added", COMPLETED, "conversation.item.done")
"""The answers to a turn without words."""
WORD = tuple(f"{kind} word" if kind == COMPLETED else kind for kind in SILENCE)


def with_id(kind: object, **more: object) -> Message:
    return {"type": kind, "event_id": "mine", **more}


TABLE: dict[str, tuple[Message, tuple[Any, ...], tuple[str, ...]]] = {
    "commit of nothing": (BY_CLIENT, (COMMIT,), (NOTHING,)),
    "commit of nothing, with turns": (BY_SERVER, (COMMIT,), (NOTHING,)),
    "commit of too little": (BY_CLIENT, (seconds(0.09), COMMIT), (NOTHING,)),
    "commit of just enough": (BY_CLIENT, (seconds(0.1), COMMIT), SILENCE),
    "commit": (BY_CLIENT, (seconds(2), COMMIT), WORD),
    "too little stays": (BY_CLIENT, (seconds(0.05), COMMIT, seconds(1), COMMIT), (NOTHING, *WORD)),
    "commit twice": (BY_CLIENT, (seconds(1), COMMIT, COMMIT), (*WORD, NOTHING)),
    "commit after clear": (BY_CLIENT, (seconds(2), CLEAR, COMMIT), (CLEARED, NOTHING)),
    "commit after clear in speech": (BY_SERVER, (seconds(0.5), CLEAR, COMMIT), (STARTED, CLEARED, NOTHING)),
    "clear forgets": (BY_CLIENT, (seconds(2), CLEAR, seconds(3), COMMIT, COMMIT), (CLEARED, *WORD, NOTHING)),
    "clear of nothing": (BY_CLIENT, (CLEAR, CLEAR), (CLEARED,) * 2),
    "commit after the server's": (BY_SERVER, (seconds(1.5), COMMIT), (STARTED, STOPPED, *WORD, NOTHING)),
    "commit of the silence after the server's commit": (
        BY_SERVER,
        (seconds(1.5), seconds(2), COMMIT, COMMIT),
        (STARTED, STOPPED, *WORD, *SILENCE, NOTHING),
    ),
    "commit within speech": (BY_SERVER, (seconds(1), COMMIT, COMMIT), (STARTED, *WORD, NOTHING)),
    "update twice": (BY_CLIENT, (BY_CLIENT, BY_CLIENT), ("session.updated",) * 2),
    **{
        f"no message: {str(message)[:9]}": (BY_CLIENT, (message,), ("error invalid_message",))
        for message in ("hello", "[1]", "[" * 50_000, {"event_id": "mine"}, with_id(5))
    },
    **{
        f"impossible: {message['type']}": (BY_CLIENT, (message,), ("error invalid_value",))
        for message in (
            with_id("response.create"),
            with_id(f"{BUFFER}.append", audio="?"),
            with_id("session.update", session={"type": "realtime"}),
        )
    },
    **{
        f"{action} of no item: {item}": (
            BY_CLIENT,
            (with_id(f"conversation.item.{action}", item_id=item),),
            (f"error item_{action}_invalid_item_id",),
        )
        for action in ("retrieve", "delete")
        for item in ("item_of_nobody", None, ["x"])
    },
}
"""What a client says after its session is updated, and the answers in their order, without deltas.

An answer is a type, "error CODE", or "TYPE TEXT" of a transcript.
"""


@pytest.fixture(scope="module")
def turn_server() -> Iterator[ServerThread]:
    with serving(SlowModel(session=TurnSession)) as server:
        yield server


def shown(message: Message) -> str:
    if message["type"] == "error":
        return f"error {message['error']['code']}"
    return f"{message['type']} {message.get('transcript', '')}".strip()


@pytest.mark.parametrize(("turns", "said", "expected"), TABLE.values(), ids=TABLE)
def test_every_message_has_its_answer(
    turn_server: ServerThread, turns: Message, said: tuple[Any, ...], expected: tuple[str, ...]
) -> None:
    events: list[Message] = []
    with connected(turn_server, URL) as socket:

        def hear_until(mark: str) -> None:
            while not (events and mark in json.dumps(events[-1])):
                events.append(received(socket))

        say(socket, turns)
        hear_until("session.updated")  # what cannot be read is answered before what waits in the queue
        say(socket, *said, update(transcription={"prompt": THE_END}))
        hear_until(THE_END)
    answers = [shown(message) for message in events if not message["type"].endswith(".delta")]
    assert answers == ["session.created", "session.updated", *expected, "session.updated"]
    about = [message["error"]["event_id"] for message in of(events, "error")]
    assert about == ["mine" if isinstance(said[-1], dict) else None] * len(about)


def test_a_turn_is_as_long_as_all_its_audio(turn_server: ServerThread) -> None:
    messages = [BY_CLIENT, seconds(4), COMMIT, seconds(1), seconds(1), seconds(1), COMMIT]
    events = talk(turn_server, messages, COMPLETED, 2)
    assert [entry["usage"]["seconds"] for entry in of(events, COMPLETED)] == pytest.approx(
        [4.0, 3.0], abs=0.002
    )


def test_items_are_retrieved_and_deleted(turn_server: ServerThread) -> None:
    with connected(turn_server, URL) as socket:
        say(socket, BY_CLIENT, seconds(1), COMMIT)
        done = received(socket, "conversation.item.done")
        about = {"item_id": done["item"]["id"], "event_id": "mine"}
        retrieve, delete = (
            {"type": f"conversation.item.{entry}", **about} for entry in ("retrieve", "delete")
        )
        say(socket, retrieve, delete, delete, seconds(1), COMMIT)
        result = received(socket, "conversation.item.retrieved")
        assert result["item"] == done["item"]
        assert result["item"]["content"] == [{"type": "input_audio", "transcript": "word"}]
        gone = received(socket, "conversation.item.deleted")
        assert gone["item_id"] == done["item"]["id"]
        assert received(socket, "error")["error"]["code"] == "item_delete_invalid_item_id"
        committed = received(socket, f"{BUFFER}.committed")
        assert committed["previous_item_id"] is None, "the one before was deleted"


CANNOT_BE: list[tuple[Message, str, str]] = [
    ({"noise_reduction": "garbage"}, "noise_reduction", "object or null"),
    ({"noise_reduction": {"type": "zzz"}}, "noise_reduction.type", "near_field, far_field"),
    ({"noise_reduction": {"type": ["x"]}}, "noise_reduction.type", "near_field, far_field"),
    ({"noise_reduction": {"strength": "much"}}, "noise_reduction.strength", "number"),
    ({"turn_detection": {"create_response": "abc"}}, "turn_detection.create_response", "true or false"),
    (
        {"turn_detection": {"type": "semantic_vad", "interrupt_response": 1}},
        "turn_detection.interrupt_response",
        "true or false",
    ),
    *(
        ({"turn_detection": {"type": "semantic_vad", "eagerness": given}}, "turn_detection.eagerness", "low")
        for given in (0, ["low"], "very")
    ),
    ({"turn_detection": {"silence_duration_ms": "500"}}, "turn_detection.silence_duration_ms", "number"),
    ({"turn_detection": {"type": "server_vad", "threshold": 2}}, "turn_detection.threshold", "from 0 to 1"),
    ({"turn_detection": {"type": "never"}}, "turn_detection", "semantic_vad"),
    ({"format": {"type": ""}}, "format", "audio/pcm"),
    ({"format": {"type": "audio/opus"}}, "format", "audio/pcm"),
    ({"format": {"type": "audio/pcm", "rate": 16000}}, "format.rate", "24000"),
    ({"transcription": ""}, "transcription", "object or null"),
    ({"transcription": {"keywords": "a,b"}}, "transcription.keywords", "list"),
    ({"transcription": {"replacements": "/a/ => b"}}, "transcription.replacements", "regular expression"),
    ({"transcription": {"languages": "en"}}, "transcription.languages", "list"),
    ({"transcription": {"language": "klingon"}}, "transcription.language", "klingon"),
    ({"transcription": {"delay": "ever"}}, "transcription.delay", "minimal"),
    ({"transcription": {"language": "en", "languages": ["de"]}}, "transcription.language", "both"),
]
"""An `audio.input`, the field in it that is wrong, and what the error says of it."""


@pytest.mark.parametrize(
    ("session", "param", "reported"),
    [
        *(
            ({"audio": {"input": given}}, f"audio.input.{param}", reported)
            for given, param, reported in CANNOT_BE
        ),
        ({"audio": []}, "audio", "object or null"),
        ({"audio": {"input": 0}}, "audio.input", "object or null"),
        ({"include": "item.input_audio_transcription.logprobs"}, "include", "list"),
        ({"include": 0}, "include", "list"),
    ],
)
def test_fields_are_read_also_those_without_effect(session: Message, param: str, reported: str) -> None:
    with pytest.raises(ApiError) as wrong:
        updated_config(RealtimeSessionConfig(), {"type": "transcription", **session})
    assert (wrong.value.param, wrong.value.code) == (f"session.{param}", "invalid_value")
    assert reported in wrong.value.message


def test_fields_that_can_be_are_taken() -> None:
    turns = {"type": "server_vad", "create_response": None, "interrupt_response": False}
    far = {"type": "far_field", "strength": 0.5}
    for message in (update(noise_reduction=far, turn_detection=turns), update(noise_reduction=None)):
        assert updated_config(RealtimeSessionConfig(), message["session"]) == RealtimeSessionConfig()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"session": 0}, "session"),
        ({"session": update(format={"type": ""})["session"]}, "session.audio.input.format"),
        ({"expires_after": ""}, "expires_after"),
        ({"expires_after": {"seconds": "60"}}, "expires_after.seconds"),
    ],
)
def test_a_secret_is_asked_for_in_json(turn_server: ServerThread, body: Message, param: str) -> None:
    answer = httpx.post(f"{turn_server.url}{URL}/client_secrets", json=body, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", param)


def test_a_client_secret_opens_the_realtime_api_and_nothing_else() -> None:
    with serving(SlowModel(), access=LOCKED) as server:
        with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
            session: Any = update(transcription={"language": "de"}, turn_detection=None)["session"]
            created = client.realtime.client_secrets.create(
                expires_after={"anchor": "created_at", "seconds": 60}, session=session
            )
            assert created.session.type == "transcription"
            assert time.time() + 50 < created.expires_at < time.time() + 70
        with (
            OpenAI(base_url=f"{server.url}/v1", api_key=created.value, max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
        ways: tuple[dict[str, Any], ...] = (
            {"additional_headers": bearer(created.value)},
            {"subprotocols": ["realtime", f"openai-insecure-api-key.{created.value}"]},
        )
        for way in ways:
            events = talk(server, [], "session.created", **way)
            heard_input = events[0]["session"]["audio"]["input"]
            assert heard_input["transcription"]["language"] == "de"
            assert heard_input["turn_detection"] is None
        unknown = refusal(server, URL, subprotocols=["realtime", "openai-insecure-api-key.ek_x"])
        assert unknown.status_code == 401


def test_a_secret_is_known_to_whoever_has_the_key_and_to_nobody_else() -> None:
    config = replace(
        RealtimeSessionConfig(), languages=("en", "de"), keywords=("Grüße", "Zürich"), turns=None
    )
    secret, _ = ClientSecrets(b"k" * 32).make(config.document, 60.0)
    opened = ClientSecrets(b"k" * 32).first_valid(["sk-other", secret])
    assert opened is not None
    assert updated_config(RealtimeSessionConfig(), opened["session"]) == config
    assert ClientSecrets(b"l" * 32).first_valid([secret]) is None
    body, _, signature = secret.partition(".")
    longer = ClientSecrets(b"k" * 32).make(config.document, 6000.0)[0].partition(".")[0]
    wrong = (f"{longer}.{signature}", body, f"{body}.", f"{body}.ü", "ek_.", "ek_", secret[3:], secret + "x")
    for changed in wrong:
        assert ClientSecrets(b"k" * 32).first_valid([changed]) is None


def test_a_session_that_no_header_could_carry_gets_no_secret() -> None:
    words = tuple(hashlib.sha256(str(i).encode()).hexdigest() for i in range(200))
    with pytest.raises(ApiError, match="less text"):
        ClientSecrets().make(RealtimeSessionConfig(keywords=words).document, 60.0)


def test_a_secret_ends() -> None:
    secrets = ClientSecrets()
    secret, _ = secrets.make(RealtimeSessionConfig(language="de").document, 0.05)
    result = secrets.first_valid([secret])
    assert result is not None
    assert updated_config(RealtimeSessionConfig(), result["session"]).language == "de"
    time.sleep(0.1)
    assert secrets.first_valid([secret]) is None


DIARIZING = "gpt-4o-transcribe-diarize"


def heard(server: ServerThread, model: str, query: dict[str, str] | None = None) -> list[Any]:
    """Events up to the end of one turn, of all that is said in the talk."""
    events: list[Any] = []
    with (
        OpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
        client.realtime.connect(extra_query={"intent": "transcription", **(query or {})}) as connection,
    ):
        named = {"transcription": {"model": model}} if model else {}
        session: Any = update(turn_detection=None, **named)["session"]
        connection.session.update(session=session)
        for _ in range(14):
            connection.input_audio_buffer.append(audio=append(bytes(2 * 24_000))["audio"])
        connection.input_audio_buffer.commit()
        for event in connection:
            events.append(event)
            if event.type == COMPLETED:
                return events
    return events


@pytest.mark.parametrize(("model", "query"), [(DIARIZING, {}), ("", {"model": DIARIZING})])
def test_segments_of_speakers_come_before_the_whole(model: str, query: dict[str, str]) -> None:
    with serving(talk_model()) as server:
        events = heard(server, model, query)
    segments = [
        entry for entry in events if isinstance(entry, ConversationItemInputAudioTranscriptionSegment)
    ]
    assert [(entry.speaker, entry.text) for entry in segments] == [
        (speaker, text) for speaker, _, text in TALK
    ]
    assert events[-1 - len(segments) : -1] == segments
    assert {entry.item_id for entry in segments} == {events[-1].item_id}
    assert len({entry.id for entry in segments}) == len(TALK)
    assert events[-1].transcript == " ".join(entry.text for entry in segments)
    times = [at for entry in segments for at in (entry.start, entry.end)]
    assert times == sorted(times)


def test_other_models_tell_no_speakers() -> None:
    with serving(talk_model()) as server:
        events = heard(server, "gpt-4o-transcribe")
    assert not [entry for entry in events if entry.type.endswith(".segment")]


def test_speakers_are_asked_for_by_the_name_of_the_model() -> None:
    def named(config: RealtimeSessionConfig, name: str | None) -> RealtimeSessionConfig:
        return updated_config(config, update(transcription={"model": name})["session"])

    config = named(RealtimeSessionConfig(), DIARIZING)
    assert config.options.speakers == "auto"
    assert updated_config(config, {"type": "transcription"}).has_speakers
    assert named(config, "whisper-1").options.speakers == ""
    secrets = ClientSecrets()
    opened = secrets.first_valid([secrets.make(config.document, 60.0)[0]])
    assert opened is not None
    assert updated_config(RealtimeSessionConfig(), opened["session"]) == config


def test_a_session_sent_back_as_it_was_told_is_the_same() -> None:
    """Clients change a field of what they got; the model has its own name there."""
    config = RealtimeSessionConfig(model="base", has_speakers=True)
    reported = dict(config.document)
    assert updated_config(config, reported) == config
    reported["include"] = ["item.input_audio_transcription.logprobs"]
    assert updated_config(config, reported) == replace(config, logprobs=True)
    other = update(transcription={"model": "whisper-1"})["session"]
    assert not updated_config(config, other).has_speakers


def test_words_of_nobody_known_go_with_their_neighbours() -> None:
    words = [Word(f" {i}", i, i + 1.0, 1.0, speaker=name) for i, name in enumerate([None, "B", None, "A"])]
    assert [(name, len(kept)) for name, kept in speaker_runs(words)] == [("B", 3), ("A", 1)]
    assert [name for name, _ in speaker_runs(words[:1])] == ["A"]
    assert speaker_runs([]) == []


@pytest.mark.parametrize(
    ("eagerness", "chosen"), [("low", "low"), ("auto", "medium"), (None, "medium"), ("high", "high")]
)
def test_semantic_detection_has_the_eagerness_that_was_asked_for(eagerness: str | None, chosen: str) -> None:
    given = {"type": "semantic_vad"} | ({"eagerness": eagerness} if eagerness else {})
    config = updated_config(RealtimeSessionConfig(), update(turn_detection=given)["session"])
    assert config.options.stream.eagerness == chosen
    assert updated_config(config, BY_SERVER["session"]).options.stream.eagerness is None


def test_a_semantic_turn_ends_with_its_sentence(server: ServerThread) -> None:
    semantic = update(
        transcription={"language": "en"}, turn_detection={"type": "semantic_vad", "eagerness": "high"}
    )
    audio = pcm24(CLIPS / "en.flac") + bytes(2 * 24_000 * 4)
    events = talk(server, [semantic, *appended(audio)], COMPLETED)
    (session,) = [event["session"] for event in of(events, "session.updated")]
    assert session["audio"]["input"]["turn_detection"] == {"type": "semantic_vad", "eagerness": "high"}
    (stopped,), (done,) = of(events, "input_audio_buffer.speech_stopped"), of(events, COMPLETED)
    assert done["transcript"].endswith(".")
    assert stopped["audio_end_ms"] <= len(audio) / 48 - 3_000
