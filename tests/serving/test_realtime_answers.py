"""Every message of a client of the realtime API has an answer: one table, and OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from websockets.asyncio.client import connect

from sottovoce.serving.http.server import ServerThread
from sottovoce.types import Event, Samples, SpeechEnded, SpeechStarted
from tests.serving.servers import SlowModel, SlowSession, serving
from tests.serving.test_realtime import COMPLETED, URL, Message, append, of, update

BUFFER = "input_audio_buffer"
EMPTY = "input_audio_buffer_commit_empty"
COMMIT: Message = {"type": f"{BUFFER}.commit", "event_id": "mine"}
THE_END = "that is all"
CLEAR: Message = {"type": f"{BUFFER}.clear"}
BY_CLIENT = update(turn_detection=None)
BY_SERVER = update(turn_detection={"type": "server_vad"})


class TurnModel(SlowModel):
    """Hears speech in the first second of every session, and its end when half a second more has come."""

    def session(self, languages: object = None, **options: object) -> SlowSession:
        return TurnSession(self)


class TurnSession(SlowSession):
    def push(self, pcm: Samples) -> list[Event]:
        before, after = self._n_samples, self._n_samples + len(pcm)
        events: list[Event] = [SpeechStarted(0.0, 0.1)] if before == 0 < after else []
        if before < 16_000:
            events += super().push(pcm[: 16_000 - before])
        self._n_samples = after
        return [*events, SpeechEnded(1.0, 1.5)] if before < 24_000 <= after else events


def seconds(n: float) -> Message:
    return append(bytes(2 * round(24_000 * n)))


@dataclass(frozen=True)
class Exchange:
    """What a client says after its session is updated, and the answers in their order, without deltas.

    An answer is a type, "error CODE", or "TYPE TEXT" of a transcript.
    """

    name: str
    turns: Message
    said: tuple[Any, ...]
    answers: tuple[str, ...]


TURN_STARTED = (f"{BUFFER}.speech_started", f"{BUFFER}.speech_stopped")


def turn(text: str) -> tuple[str, ...]:
    return (
        f"{BUFFER}.committed",
        "conversation.item.added",
        f"{COMPLETED} {text}".strip(),
        "conversation.item.done",
    )


TABLE = [
    Exchange("commit of nothing", BY_CLIENT, (COMMIT,), (f"error {EMPTY}",)),
    Exchange("commit of nothing, with turns", BY_SERVER, (COMMIT,), (f"error {EMPTY}",)),
    Exchange("commit of too little", BY_CLIENT, (seconds(0.09), COMMIT), (f"error {EMPTY}",)),
    Exchange("commit of just enough", BY_CLIENT, (seconds(0.1), COMMIT), turn("")),
    Exchange("commit", BY_CLIENT, (seconds(2), COMMIT), turn("word")),
    Exchange(
        "too little stays in the buffer",
        BY_CLIENT,
        (seconds(0.05), COMMIT, seconds(1), COMMIT),
        (f"error {EMPTY}", *turn("word")),
    ),
    Exchange("commit twice", BY_CLIENT, (seconds(1), COMMIT, COMMIT), (*turn("word"), f"error {EMPTY}")),
    Exchange(
        "commit after clear", BY_CLIENT, (seconds(2), CLEAR, COMMIT), (f"{BUFFER}.cleared", f"error {EMPTY}")
    ),
    Exchange(
        "commit after clear, with turns",
        BY_SERVER,
        (seconds(0.5), CLEAR, COMMIT),
        (f"{BUFFER}.speech_started", f"{BUFFER}.cleared", f"error {EMPTY}"),
    ),
    Exchange("clear of nothing", BY_CLIENT, (CLEAR, CLEAR), (f"{BUFFER}.cleared",) * 2),
    Exchange(
        "commit right after the server's",
        BY_SERVER,
        (seconds(1.5), COMMIT),
        (*TURN_STARTED, *turn("word"), f"error {EMPTY}"),
    ),
    Exchange(
        "commit of the silence after the server's commit",
        BY_SERVER,
        (seconds(1.5), seconds(2), COMMIT, COMMIT),
        (*TURN_STARTED, *turn("word"), *turn(""), f"error {EMPTY}"),
    ),
    Exchange(
        "commit within speech, with turns",
        BY_SERVER,
        (seconds(1), COMMIT, COMMIT),
        (f"{BUFFER}.speech_started", *turn("word"), f"error {EMPTY}"),
    ),
    Exchange("update twice", BY_CLIENT, (BY_CLIENT, BY_CLIENT), ("session.updated",) * 2),
    *(
        Exchange(f"no message: {text[:3]}", BY_CLIENT, (text,), ("error invalid_message",))
        for text in ("hello", "[1]", "[" * 50_000)
    ),
    Exchange("no type", BY_CLIENT, ({"event_id": "mine"},), ("error invalid_message",)),
    Exchange(
        "a type that is no text", BY_CLIENT, ({"type": 5, "event_id": "mine"},), ("error invalid_message",)
    ),
    Exchange(
        "another type",
        BY_CLIENT,
        ({"type": "response.create", "event_id": "mine"},),
        ("error invalid_value",),
    ),
    Exchange(
        "audio that is none",
        BY_CLIENT,
        ({"type": f"{BUFFER}.append", "audio": "?", "event_id": "mine"},),
        ("error invalid_value",),
    ),
    Exchange(
        "a session that cannot be",
        BY_CLIENT,
        ({"type": "session.update", "session": {"type": "realtime"}, "event_id": "mine"},),
        ("error invalid_value",),
    ),
    *(
        Exchange(
            f"{action} of no item",
            BY_CLIENT,
            ({"type": f"conversation.item.{action}", "item_id": given, "event_id": "mine"},),
            (f"error item_{action}_invalid_item_id",),
        )
        for action in ("retrieve", "delete")
        for given in ("item_of_nobody", None, ["x"])
    ),
]


@pytest.fixture(scope="module")
def quick() -> Iterator[ServerThread]:
    with serving(TurnModel()) as server:
        yield server


def shown(message: Message) -> str:
    if message["type"] == "error":
        return f"error {message['error']['code']}"
    return f"{message['type']} {message.get('transcript', '')}".strip()


async def exchanged(server: ServerThread, *said: Message | str) -> list[Message]:
    """All that the server answers up to the answer of a last `session.update`."""
    heard: list[Message] = []
    async with connect(f"ws://{server.address}{URL}") as socket:

        async def hear_until(mark: str) -> None:
            while not (heard and mark in json.dumps(heard[-1])):
                heard.append(json.loads(await asyncio.wait_for(socket.recv(), 20)))

        first, *rest = said
        await socket.send(json.dumps(first))
        await hear_until("session.updated")  # what cannot be read is answered before what waits in the queue
        for message in (*rest, update(transcription={"prompt": THE_END})):
            await socket.send(message if isinstance(message, str) else json.dumps(message))
        await hear_until(THE_END)
    return heard


@pytest.mark.parametrize("exchange", TABLE, ids=lambda exchange: exchange.name)
def test_every_message_has_its_answer(quick: ServerThread, exchange: Exchange) -> None:
    heard = asyncio.run(exchanged(quick, exchange.turns, *exchange.said))
    answers = [shown(message) for message in heard if not message["type"].endswith(".delta")]
    assert answers == ["session.created", "session.updated", *exchange.answers, "session.updated"]
    about = [message["error"]["event_id"] for message in of(heard, "error")]
    assert about == ["mine" if isinstance(exchange.said[-1], dict) else None] * len(about)


def test_items_are_retrieved_and_deleted(quick: ServerThread) -> None:
    async def run() -> list[Message]:
        heard: list[Message] = []
        async with connect(f"ws://{quick.address}{URL}") as socket:

            async def say(*messages: Message, until: str) -> Message:
                for message in messages:
                    await socket.send(json.dumps(message))
                while not heard or heard[-1]["type"] != until:
                    heard.append(json.loads(await asyncio.wait_for(socket.recv(), 20)))
                return heard[-1]

            done = await say(BY_CLIENT, seconds(1), COMMIT, until="conversation.item.done")
            about = {"item_id": done["item"]["id"], "event_id": "mine"}
            found = await say(
                {"type": "conversation.item.retrieve", **about}, until="conversation.item.retrieved"
            )
            assert found["item"] == done["item"]
            assert found["item"]["content"] == [{"type": "input_audio", "transcript": "word"}]
            gone = await say({"type": "conversation.item.delete", **about}, until="conversation.item.deleted")
            assert gone["item_id"] == done["item"]["id"]
            fault = await say({"type": "conversation.item.delete", **about}, until="error")
            assert fault["error"]["code"] == "item_delete_invalid_item_id"
            return [await say(seconds(1), COMMIT, until=f"{BUFFER}.committed")]

    (committed,) = asyncio.run(run())
    assert committed["previous_item_id"] is None, "the one before was deleted"
