"""Captions that are shared: who publishes, who reads, and what stays of it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sottovoce.server.apis import captions as shared_captions
from sottovoce.server.apis import captions as sockets
from sottovoce.server.apis.captions import read_publication
from sottovoce.server.settings import Access, ServerLimits
from tests.server.servers import ServerThread, SlowModel, serving, wait_until

N_READERS = 10
WITHIN_S = 0.3


@pytest.fixture(scope="module")
def fake_server() -> Iterator[ServerThread]:
    with serving(SlowModel()) as server:
        yield server


def utterance(number: int, *words: str, **more: object) -> dict[str, Any]:
    spoken = [
        {"word": f" {word}", "start": i, "end": i + 1, "language": "en", "speaker": "A"}
        for i, word in enumerate(words)
    ]
    return {"id": number, "start": 0, "end": len(words), "language": "en", "words": spoken, **more}


def captions(**parts: object) -> str:
    return json.dumps({"type": "captions", **parts})


def reading(address: str, token: str) -> connect:
    offers: Any = ["sottovoce", f"sottovoce-captions.{token}"]
    return connect(f"ws://{address}/v1/captions/read", subprotocols=offers)


def resuming(address: str, secret: str) -> connect:
    offers: Any = ["sottovoce", f"sottovoce-resume.{secret}"]
    return connect(f"ws://{address}/v1/captions", subprotocols=offers)


async def received(client: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await asyncio.wait_for(client.recv(), 20))
    return found


def texts(message: dict[str, Any]) -> list[str]:
    found = message.get("utterances", [])
    return ["".join(word["word"] for word in one["words"]).strip() for one in found]


async def refused(coming: connect) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as found:
        await coming
    answer = found.value.response
    return answer.status_code, json.loads(answer.body)["error"]["code"]


async def closed(client: ClientConnection) -> tuple[int, list[dict[str, Any]]]:
    messages = []
    with suppress(ConnectionClosed):
        while True:
            messages.append(await received(client))
    return client.close_code or 0, messages


def test_a_reader_who_comes_late_gets_all_and_then_what_changes(fake_server: ServerThread) -> None:
    async def run() -> None:
        async with connect(f"ws://{fake_server.address}/v1/captions") as speaker:
            ready = await received(speaker)
            await speaker.send(captions(utterances=[utterance(0, "one"), utterance(1, "two", "three")]))
            await speaker.send(captions(now=utterance(2, "four"), names={"A": "Anna"}))
            async with reading(fake_server.address, ready["token"]) as reader:
                assert await received(speaker) == {"type": "readers", "readers": 1}
                first = await received(reader)
                assert texts(first) == ["one", "two three"]
                assert first["names"] == {"A": "Anna"}
                assert first["now"]["words"][0]["word"] == " four"
                await speaker.send(captions(utterances=[utterance(2, "four", "five")], now=None))
                second = await received(reader)
                assert (texts(second), second["now"]) == (["four five"], None)
                assert "names" not in second
                await speaker.send(captions(utterances=[utterance(0, "corrected")]))
                assert texts(await received(reader)) == ["corrected"]
                await speaker.send(captions(clear=True, utterances=[utterance(0, "anew")]))
                cleared = await received(reader)
                assert (cleared["clear"], texts(cleared)) == (True, ["anew"])
                await speaker.send('{"type": "close"}')
                assert await closed(reader) == (1000, [{"type": "ended"}])
                assert (await closed(speaker))[0] == 1000

    asyncio.run(run())


def test_ten_readers_see_the_same_text_within_a_third_of_a_second(fake_server: ServerThread) -> None:
    async def run() -> float:
        async with connect(f"ws://{fake_server.address}/v1/captions") as speaker:
            token = (await received(speaker))["token"]
            readers = [await reading(fake_server.address, token) for _ in range(N_READERS)]
            for reader in readers:
                await received(reader)
            delays = []
            for number in range(40):
                said = f"word{number}"
                sent_s = time.monotonic()
                await speaker.send(captions(utterances=[utterance(number, said)]))
                found = await asyncio.gather(*(received(reader) for reader in readers))
                delays.append(time.monotonic() - sent_s)
                assert [texts(one) for one in found] == [[said]] * N_READERS
            await asyncio.gather(*(reader.close() for reader in readers))
            return max(delays)

    worst_s = asyncio.run(run())
    print(f"{N_READERS} readers: {1000 * worst_s:.0f} ms")
    assert worst_s < WITHIN_S


def test_a_reader_needs_the_link_and_no_key_and_who_publishes_a_key() -> None:
    async def run(address: str) -> None:
        key: Any = ["sottovoce", "sottovoce-key.open-sesame"]
        assert await refused(connect(f"ws://{address}/v1/captions")) == (401, "invalid_api_key")
        async with connect(f"ws://{address}/v1/captions", subprotocols=key) as speaker:
            ready = await received(speaker)
            token = ready["token"]
            assert len(token) >= 22, "128 bits"
            assert token != ready["resume"]
            async with reading(address, token) as reader:
                assert (await received(reader))["type"] == "captions"
            for wrong in (token[:-1] + ("A" if token[-1] != "A" else "B"), ready["resume"], "x"):
                assert await refused(reading(address, wrong)) == (404, "no_such_captions")
                why = httpx.get(f"http://{address}/v1/captions/read", headers={"x-captions-token": wrong})
                assert (why.status_code, why.json()["error"]["code"]) == (404, "no_such_captions")
            for path, header in (("", {"x-captions-resume": "x"}), ("/read", {"x-captions-token": token})):
                header["authorization"] = "Bearer open-sesame"
                why = httpx.get(f"http://{address}/v1/captions{path}", headers=header)
                assert why.status_code == (426 if path else 404)

    with serving(SlowModel(), access=Access(api_keys=("open-sesame",))) as server:
        asyncio.run(run(server.address))


def test_readers_only_read_and_have_a_number() -> None:
    async def run(server: ServerThread) -> None:
        async with connect(f"ws://{server.address}/v1/captions") as speaker:
            token = (await received(speaker))["token"]
            async with reading(server.address, token) as talkative:
                await talkative.send(captions(utterances=[utterance(0, "mine")]))
                code, told = await closed(talkative)
                assert (code, told[-1]["error"]["code"]) == (1008, "invalid_message")
            await asyncio.to_thread(wait_until, lambda: server.state.captions.n_readers == 0)
            async with (
                reading(server.address, token) as one,
                reading(server.address, token) as two,
            ):
                assert texts(await received(one)) == texts(await received(two)) == []
                assert await refused(reading(server.address, token)) == (429, "rate_limit_exceeded")
            another = connect(f"ws://{server.address}/v1/captions")
            assert await refused(another) == (429, "rate_limit_exceeded")

    with serving(SlowModel(), limits=ServerLimits(readers=2, sessions=1)) as server:
        asyncio.run(run(server))


def test_who_was_cut_off_goes_on_and_readers_notice_nothing(fake_server: ServerThread) -> None:
    async def run() -> None:
        base = f"ws://{fake_server.address}/v1/captions"
        speaker = await connect(base)
        ready = await received(speaker)
        async with reading(fake_server.address, ready["token"]) as reader:
            await received(reader)
            speaker.transport.abort()
            async with resuming(fake_server.address, ready["resume"]) as again:
                assert (await received(again))["token"] == ready["token"]
                await again.send(captions(utterances=[utterance(0, "on")]))
                assert texts(await received(reader)) == ["on"]
                await again.send('{"type": "close"}')
                assert (await closed(reader))[0] == 1000

    asyncio.run(run())


def test_what_is_published_again_as_it_was_goes_to_nobody_twice() -> None:
    shared = shared_captions.SharedCaptions()

    def take(**parts: object) -> None:
        shared.apply(read_publication(captions(**parts))[1])

    all_of_it = {
        "utterances": [utterance(0, "one"), utterance(1, "two")],
        "now": None,
        "names": {"A": "Anna"},
    }
    take(**all_of_it)
    seen = shared.revision
    take(**all_of_it)
    assert shared.page(seen) is None
    take(**{**all_of_it, "utterances": [utterance(0, "one"), utterance(1, "corrected")]})
    page = shared.page(seen)
    assert page is not None
    message = json.loads(page.text)
    assert texts(message) == ["corrected"]
    assert set(message) == {"type", "revision", "utterances"}


def test_who_comes_again_takes_the_place_of_a_socket_that_is_not_known_to_be_dead(
    fake_server: ServerThread,
) -> None:
    async def run() -> None:
        base = f"ws://{fake_server.address}/v1/captions"
        async with connect(base) as older:
            ready = await received(older)
            async with (
                reading(fake_server.address, ready["token"]) as reader,
                resuming(fake_server.address, ready["resume"]) as newer,
            ):
                await received(reader)
                code, told = await closed(older)
                assert (code, told[-1]["error"]["code"]) == (1008, "another_publisher")
                await newer.send(captions(utterances=[utterance(0, "on")]))
                assert texts(await received(reader)) == ["on"]
                await newer.send('{"type": "close"}')
                assert (await closed(reader))[0] == 1000

    asyncio.run(run())


@pytest.mark.parametrize("is_said", [True, False])
def test_nothing_is_kept_of_captions_that_are_over(monkeypatch: pytest.MonkeyPatch, is_said: bool) -> None:
    monkeypatch.setattr(sockets, "RESUME_WITHIN_S", 0.2)

    async def run(server: ServerThread) -> None:
        base = f"ws://{server.address}/v1/captions"
        speaker = await connect(base)
        ready = await received(speaker)
        await speaker.send(captions(utterances=[utterance(0, "secret")]))
        if is_said:
            await speaker.send('{"type": "close"}')
        else:
            speaker.transport.abort()
        await asyncio.to_thread(wait_until, lambda: server.state.captions.n_shared == 0)
        for coming in (reading(server.address, ready["token"]), resuming(server.address, ready["resume"])):
            assert await refused(coming) == (404, "no_such_captions")

    with serving(SlowModel()) as server:
        asyncio.run(run(server))


@pytest.mark.parametrize(
    "message",
    [
        "x",
        "[]",
        '{"type": "speak"}',
        b"\x00\x01",
        captions(more=1),
        captions(utterances={}),
        captions(utterances=[utterance(-1)]),
        captions(utterances=[utterance(0, start="soon")]),
        captions(utterances=[utterance(0, translation="x")]),
        captions(utterances=[utterance(0, language="x" * 100)]),
        captions(
            utterances=[
                {"id": 0, "start": 0, "end": 1, "words": [{"word": "x" * 9000, "start": 0, "end": 1}]}
            ]
        ),
        captions(now=[1]),
        captions(names={"A": 3}),
    ],
)
def test_what_is_no_caption_is_refused_in_one_line(fake_server: ServerThread, message: str | bytes) -> None:
    async def run() -> None:
        async with connect(f"ws://{fake_server.address}/v1/captions") as speaker:
            await received(speaker)
            await speaker.send(message)
            code, told = await closed(speaker)
            assert code == 1008
            assert "expected" in told[-1]["error"]["message"]
            assert "\n" not in told[-1]["error"]["message"]

    asyncio.run(run())


def test_captions_of_a_session_have_a_length(
    fake_server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_captions, "MAX_CAPTIONS_CHARACTERS", 2_000)

    async def run() -> None:
        async with connect(f"ws://{fake_server.address}/v1/captions") as speaker:
            await received(speaker)
            for _ in range(20):  # the same one, corrected, does not count twice
                await speaker.send(captions(utterances=[utterance(0, "one", "two")]))
            await speaker.send(captions(utterances=[utterance(n, "one", "two") for n in range(20)]))
            assert (await closed(speaker))[1][-1]["error"]["code"] == "captions_too_long"

    asyncio.run(run())


def test_who_reads_slowly_is_sent_the_newest_once(fake_server: ServerThread) -> None:
    async def run() -> None:
        async with connect(f"ws://{fake_server.address}/v1/captions") as speaker:
            token = (await received(speaker))["token"]
            shared = fake_server.state.captions.find(token)
            seen = shared.revision
            for number in range(50):
                await speaker.send(captions(now=utterance(7, f"word{number}")))
            await asyncio.to_thread(wait_until, lambda: shared.revision == seen + 50)
            page = shared.page(seen)
            assert page is not None
            message = json.loads(page.text)
            assert message["now"]["words"][0]["word"] == " word49"
            assert set(message) == {"type", "revision", "now"}

    asyncio.run(run())


def test_a_server_that_ends_says_so_to_readers() -> None:
    async def run(server: ServerThread) -> list[int]:
        base = f"ws://{server.address}/v1/captions"
        async with (
            connect(base) as speaker,
            reading(server.address, (await received(speaker))["token"]) as reader,
        ):
            await received(reader)
            server.server.should_exit = True
            return [(await closed(speaker))[0], (await closed(reader))[0]]

    with serving(SlowModel()) as server:
        codes = asyncio.run(run(server))
    assert codes[0] == 1012
    assert codes[1] in (1000, 1012)


def test_logs_hold_neither_captions_nor_their_links(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def run(server: ServerThread) -> list[str]:
        base = f"ws://{server.address}/v1/captions"
        async with connect(base) as speaker:
            ready = await received(speaker)
            await speaker.send(captions(utterances=[utterance(0, "quarterly")], names={"A": "Kowalczyk"}))
            async with reading(server.address, ready["token"]) as reader:
                await received(reader)
        async with resuming(server.address, ready["resume"]) as again:
            await received(again)
            await again.send('{"type": "close"}')
            await closed(again)
        return [ready["token"], ready["resume"]]

    with serving(SlowModel()) as server:
        links = asyncio.run(run(server))
    ours = [record for record in caplog.records if record.name.startswith(("sottovoce", "uvicorn"))]
    written = json.dumps([{**vars(record), "said": record.getMessage()} for record in ours], default=str)
    assert len(ours) >= 3
    assert [secret for secret in (*links, "quarterly", "Kowalczyk") if secret in written] == []
