"""Clients that send a recording faster than the model works: they get all text, and their pings an answer."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from contextlib import suppress

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

pytest.importorskip("wyoming", reason="wyoming is not installed")
from wyoming.ping import Ping

from sottovoce.server.settings import ServerLimits
from tests.server.conversation import Message, connected, rest, say
from tests.server.servers import SECOND, Gate, SlowModel, serving
from tests.server.test_wyoming import ANYWHERE, client_of, told
from tests.server.test_wyoming import say as say_command

SECONDS = 60
PONG_S = 0.5
"""After everything was read, which a busy machine may take longer for."""
LIMITS = ServerLimits(pending_s=2.0)
COMMIT: list[Message] = [
    {
        "type": "session.update",
        "session": {"type": "transcription", "audio": {"input": {"turn_detection": None}}},
    },
    *(
        {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(48_000)).decode()}
        for _ in range(SECONDS)
    ),
    {"type": "input_audio_buffer.commit"},
]
PCM = [SECOND] * SECONDS


@pytest.mark.parametrize(
    ("path", "messages", "end"),
    [
        ("/v1/live", PCM, "closed"),
        ("/v1/listen?encoding=linear16", [*PCM, {"type": "CloseStream"}], "Metadata"),
        (
            "/v2/listen?model=flux-general-en&encoding=linear16&sample_rate=16000",
            [*PCM, {"type": "CloseStream"}],
            "",
        ),
        ("/v1/realtime?intent=transcription", COMMIT, "conversation.item.done"),
    ],
)
def test_a_ping_is_answered_while_audio_waits_and_all_text_comes(
    gate: Gate, path: str, messages: list[Message | bytes], end: str
) -> None:
    async def run(address: str) -> tuple[list[float], list[Message]]:
        pongs_s: list[float] = []
        events: list[Message] = []
        async with connect(f"ws://{address}{path}") as socket:
            for message in messages:
                await socket.send(message if isinstance(message, bytes) else json.dumps(message))
            for _ in range(3):
                pongs_s.append(await asyncio.wait_for(await socket.ping(), 20))
            assert not gate.is_open
            gate.open()
            if end == "closed":
                await socket.send('{"type": "close"}')
            with suppress(ConnectionClosed):
                while not events or events[-1]["type"] != end:
                    events.append(json.loads(await asyncio.wait_for(socket.recv(), 30)))
        return pongs_s, events

    with serving(SlowModel(gate), limits=LIMITS) as server:
        pongs_s, events = asyncio.run(run(server.address))
    assert min(pongs_s) < PONG_S
    texts = [text_of(message) for message in events]
    assert " ".join(text for text in texts if text).split() == ["word"] * SECONDS


def text_of(message: Message) -> str:
    """The text of a message that is the last one about it."""
    match message:
        case {"type": "final", "text": text} | {"event": "EndOfTurn", "transcript": text}:
            return str(text)
        case {"type": "Results", "is_final": True, "channel": {"alternatives": [{"transcript": text}]}}:
            return str(text)
        case {"type": "conversation.item.input_audio_transcription.completed", "transcript": text}:
            return str(text)
    return ""


def test_wyoming_answers_a_ping_while_audio_waits(gate: Gate) -> None:
    async def run() -> tuple[list[float], str]:
        async with client_of(server) as client:
            await say_command(client, SECOND * SECONDS)
            pongs_s = []
            for _ in range(3):
                began_s = time.monotonic()
                await client.write_event(Ping("still there?").event())
                assert (await client.read_event()).type == "pong"
                pongs_s.append(time.monotonic() - began_s)
            gate.open()
            return pongs_s, str((await told(client))[-1][1]["text"])

    with serving(SlowModel(gate), limits=LIMITS, wyoming=ANYWHERE) as server:
        pongs_s, text = asyncio.run(run())
    assert min(pongs_s) < PONG_S
    assert text.split() == ["word"] * SECONDS


@pytest.mark.parametrize(("n_seconds", "update_s"), [(20, 0.1), (1, 1.2)])
def test_a_client_that_waits_for_its_text_is_not_silent(n_seconds: int, update_s: float) -> None:
    limits = ServerLimits(pending_s=1.0, idle_s=0.5)
    with (
        serving(SlowModel(lambda: time.sleep(update_s)), limits=limits) as server,
        connected(server) as client,
    ):
        say(client, *[SECOND] * n_seconds)
        time.sleep(1.2)
        say(client, {"type": "close"})
        events = rest(client)
    assert events[-1] == {"type": "closed", "received": n_seconds}
