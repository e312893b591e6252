"""The messages of each live protocol for whose answer a client waits, also where there is nothing to say."""

from __future__ import annotations

import json

import pytest

from tests.server.conversation import Message, connected, received, say
from tests.server.servers import SECOND, ServerThread, SlowModel, serving
from tests.server.test_wyoming import ANYWHERE, connection_to

LISTEN = "/v1/listen?encoding=linear16"
TURNS = "/v2/listen?model=flux-general-en&encoding=linear16"
REALTIME = "/v1/realtime?intent=transcription"
SESSION = {"type": "transcription"}
ANSWERS: list[tuple[str, Message | bytes, str]] = [
    ("/v1/live", {"type": "finalize"}, "finalized"),
    ("/v1/live", {"type": "configure"}, "configured"),
    ("/v1/live", {"type": "configure", "languages": 5}, "error"),
    ("/v1/live", {"type": "voices"}, "error"),
    ("/v1/live", {"type": "other"}, "error"),
    ("/v1/live", {"type": "close"}, "closed"),
    (LISTEN, {"type": "Finalize"}, "Results"),
    (LISTEN, {"type": "Configure", "keyterms": ["word"]}, "ConfigureSuccess"),
    (LISTEN, {"type": "Configure", "keyterms": 5}, "ConfigureFailure"),
    (LISTEN, {"type": "other"}, "Error"),
    (LISTEN, {"type": "CloseStream"}, "Metadata"),
    (LISTEN, b"", "Metadata"),
    (TURNS, {"type": "ForceEndTurn"}, "TurnInfo"),
    (TURNS, {"type": "Configure", "keyterms": ["word"]}, "ConfigureSuccess"),
    (TURNS, {"type": "Configure", "keyterms": 5}, "ConfigureFailure"),
    (TURNS, {"type": "other"}, "Error"),
    (REALTIME, {"type": "session.update", "session": SESSION}, "session.updated"),
    (REALTIME, {"type": "session.update", "session": 5}, "error"),
    (REALTIME, {"type": "input_audio_buffer.commit"}, "error"),
    (REALTIME, {"type": "input_audio_buffer.clear"}, "input_audio_buffer.cleared"),
    (REALTIME, {"type": "conversation.item.retrieve", "item_id": "other"}, "error"),
    (REALTIME, {"type": "conversation.item.delete", "item_id": "other"}, "error"),
    (REALTIME, {"type": "other"}, "error"),
    ("/v1/captions", {"type": "other"}, "error"),
]
"""By address and message: the type of the answer. Keepalives, audio and captions have none; the `CloseStream`
of turns and the `close` of captions end the socket."""


@pytest.mark.parametrize(("path", "message", "kind"), ANSWERS)
def test_a_message_has_its_answer(
    fake_server: ServerThread, path: str, message: Message | bytes, kind: str
) -> None:
    with connected(fake_server, path) as socket:
        say(socket, message)
        assert received(socket, kind)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"type": "describe"}, "info"),
        ({"type": "ping"}, "pong"),
        ({"type": "audio-stop"}, "transcript"),
        ({"type": "synthesize", "data": {"text": "word"}}, "error"),
        ({"type": "audio-chunk"}, "error"),
        ({"type": "audio-start"}, "error"),
    ],
)
def test_an_event_of_wyoming_has_its_answer(message: Message, kind: str) -> None:
    chunk = {"type": "audio-chunk", "data": {"rate": 16_000, "width": 2, "channels": 1}}
    with serving(SlowModel(), wyoming=ANYWHERE) as server:
        for before in (b"", json.dumps({**chunk, "payload_length": len(SECOND)}).encode() + b"\n" + SECOND):
            if before and message["type"].startswith("audio-"):
                continue
            with connection_to(server) as connection:
                connection.sendall(before + json.dumps(message).encode() + b"\n")
                lines = connection.makefile("rb")
                while (frame := json.loads(lines.readline()))["type"] != kind:
                    lines.read(frame.get("data_length", 0))
