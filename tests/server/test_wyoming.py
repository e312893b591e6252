"""Wyoming, as Home Assistant speaks it: the package's own client, and connections that break its rules."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import struct
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.errors import OptionError
from sottovoce.server.live import PcmReader
from sottovoce.server.settings import Listening, ServerLimits, wyoming_address
from sottovoce.types import Event, Samples, SpeechEnded, SpeechStarted
from tests.server.servers import SECOND, ServerThread, SlowModel, SlowSession, serving, wait_until
from tests.server.test_live import clip

pytest.importorskip("wyoming", reason="wyoming is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of audioop, which Python 3.13 has no more
    from wyoming.asr import Transcribe
    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.client import AsyncTcpClient
    from wyoming.info import Describe, Info
    from wyoming.ping import Ping

ANYWHERE = Listening("127.0.0.1", 0)


class PausingSession(SlowSession):
    """Hears somebody speak for the first two seconds, and then nobody."""

    def push(self, pcm: Samples, **how: object) -> list[Event]:
        before = self._n_samples
        events = super().push(pcm) if before < 32_000 else []
        self._n_samples = before + len(pcm)
        started = [SpeechStarted(0.0, 0.1)] if before == 0 else []
        ended = [SpeechEnded(2.0, 2.7)] if before < 40_000 <= self._n_samples else []
        return [*started, *events, *ended]


@pytest.fixture(scope="module")
def four() -> Iterator[ServerThread]:
    """A server of four sessions."""
    with serving(SlowModel(), wyoming=ANYWHERE, limits=ServerLimits(sessions=4)) as server:
        yield server


@pytest.fixture
def one() -> Iterator[ServerThread]:
    """A server of one session, and of four connections."""
    with serving(SlowModel(), wyoming=ANYWHERE, limits=ServerLimits(sessions=1)) as server:
        yield server


def port_of(server: ServerThread) -> int:
    assert server.server.wyoming_socket is not None
    port = server.server.wyoming_socket.getsockname()[1]
    assert port
    return port


def client_of(server: ServerThread) -> Any:
    return AsyncTcpClient("127.0.0.1", port_of(server), read_timeout=60.0)


def connection_to(server: ServerThread, address: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(server)), timeout=20, source_address=(address, 0))


async def say(client: Any, audio: bytes, *, rate: int = 16_000, channels: int = 1, step: int = 4_096) -> None:
    """A whole command, as fast as can be, without reading anything."""
    await client.write_event(AudioStart(rate, 2, channels).event())
    for start in range(0, len(audio), step):
        await client.write_event(AudioChunk(rate, 2, channels, audio[start : start + step]).event())
    await client.write_event(AudioStop().event())


async def begin(client: Any) -> None:
    """The first second of a command."""
    await client.write_event(AudioStart(16_000, 2, 1).event())
    await client.write_event(AudioChunk(16_000, 2, 1, SECOND).event())


async def told(client: Any) -> list[tuple[str, dict[str, Any]]]:
    events: list[tuple[str, dict[str, Any]]] = []
    while not events or events[-1][0] not in ("transcript", "error"):
        event = await client.read_event()
        assert event is not None, events
        events.append((event.type, event.data))
    return events


async def text_of(server: ServerThread, audio: bytes, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    async with client_of(server) as client:
        await client.write_event(Transcribe(**options).event())
        await say(client, audio)
        return await told(client)


def test_their_client_hears_a_recording_that_it_reads_after_the_end(nano: Model) -> None:
    with serving(nano, wyoming=ANYWHERE) as server:
        events = asyncio.run(text_of(server, clip("en"), language="en-US"))
    kinds = [kind for kind, _ in events]
    assert kinds[0] == "transcript-start"
    assert set(kinds[1:-1]) == {"transcript-chunk"}
    text = events[-1][1]["text"]
    assert "garden" in text
    assert "".join(data["text"] for kind, data in events if kind == "transcript-chunk").strip() == text
    assert events[-1][1]["language"] == "en"


def test_it_says_what_it_is(four: ServerThread) -> None:
    async def run() -> tuple[Any, Any]:
        async with client_of(four) as client:
            await client.write_event(Describe().event())
            described = await client.read_event()
            await client.write_event(Ping("still there?").event())
            return Info.from_event(described), await client.read_event()

    result, pong = asyncio.run(run())
    (program,) = result.asr
    assert not program.requires_external_vad
    assert program.supports_transcript_streaming
    assert [model.name for model in program.models] == ["nano"]
    assert program.models[0].languages == ["en", "de"]
    assert (pong.type, pong.data["text"]) == ("pong", "still there?")


def test_several_commands_in_one_connection(four: ServerThread) -> None:
    async def run() -> list[str]:
        async with client_of(four) as client:
            texts = []
            for n in (1, 3):
                await say(client, SECOND * n)
                texts.append((await told(client))[-1][1]["text"])
                assert (await client.read_event()).type == "transcript-stop"
            return texts

    assert asyncio.run(run()) == ["word", "word word word"]


def test_a_command_ends_with_a_pause_where_it_is_spoken_live() -> None:
    """Nobody says audio-stop then: `requires_external_vad` is false."""

    async def run(server: ServerThread) -> str:
        async with client_of(server) as client:
            await client.write_event(AudioStart(16_000, 2, 1).event())
            for _ in range(3):
                await client.write_event(AudioChunk(16_000, 2, 1, SECOND).event())
                await asyncio.sleep(0.6)
            events = await asyncio.wait_for(told(client), 30)
            await client.write_event(AudioChunk(16_000, 2, 1, SECOND).event())
            await client.write_event(AudioStop().event())
            return str(events[-1][1]["text"])

    with serving(SlowModel(session=PausingSession), wyoming=ANYWHERE) as server:
        assert asyncio.run(run(server)) == "word word"


def test_a_recording_is_heard_beyond_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    # However slowly a busy machine takes the audio, it is none that comes as it is spoken.
    monkeypatch.setattr("sottovoce.server.apis.wyoming.AHEAD_S", -60.0)

    class TwiceSession(SlowSession):
        def push(self, pcm: Samples, **how: object) -> list[Event]:
            return [SpeechStarted(0.0, 0.1), *super().push(pcm), SpeechEnded(1.0, 1.7)]

    with serving(SlowModel(session=TwiceSession), wyoming=ANYWHERE) as server:
        events = asyncio.run(text_of(server, SECOND * 20))
    assert events[-1][1]["text"].split() == ["word"] * 20


def test_two_channels_at_another_rate(four: ServerThread) -> None:
    async def run() -> str:
        async with client_of(four) as client:
            await say(client, bytes(48_000 * 4 * 2), rate=48_000, channels=2, step=10_000)
            return str((await told(client))[-1][1]["text"])

    assert asyncio.run(run()) == "word word"


@pytest.mark.parametrize("step", [7, 10_000])
def test_channels_of_opposite_phase_do_not_cancel(step: int) -> None:
    left = (8_000 * np.sin(np.arange(2_000) / 10)).astype("<i2")
    data = np.stack([left, -left], axis=1).tobytes()
    reader = PcmReader("s16le", 16_000, 2)
    pieces = [reader.read(data[start : start + step]) for start in range(0, len(data), step)]
    mixed = np.concatenate([*pieces, reader.flush()])
    np.testing.assert_array_equal(mixed, left / np.float32(32768))


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"no json\n", "JSON"),
        (b"[]\n", "JSON"),
        (b'{"type": 5}\n', "type"),
        (b'{"type": "audio-chunk", "payload_length": 99999999999}\n', "payload_length"),
        (b'{"type": "audio-chunk", "payload_length": -1}\n', "payload_length"),
        (b'{"type": "describe", "data_length": 9999999}\n', "data_length"),
        (b'{"type": "describe", "data": 7}\n', "data"),
        (b"a" * 200_000, "line"),
        (b'{"type": "audio-start", "data": {"rate": 16000, "width": 4, "channels": 1}}\n', "width"),
        (b'{"type": "audio-start", "data": {"rate": 1, "width": 2, "channels": 1}}\n', "sample_rate"),
        (
            b'{"type": "audio-start", "data": {"rate": 16000, "width": 2, "channels": 1}}\n'
            b'{"type": "audio-chunk", "data": {"rate": 44100, "width": 2, "channels": 2}}\n',
            "rate: expected 16000 as before, got '44100'",
        ),
        (b'{"type": "transcribe", "data": {"language": "klingon"}}\n', "klingon"),
        (b'{"type": "transcribe", "data": {"vad_sensitivity": "very"}}\n', "vad_sensitivity"),
    ],
)
def test_what_is_no_event_is_told_and_ends_the_connection(
    four: ServerThread, sent: bytes, expected: str
) -> None:
    with connection_to(four) as connection:
        connection.sendall(sent)
        answer = b""
        with suppress(ConnectionResetError):  # of what was sent and nobody read
            while piece := connection.recv(65_536):
                answer += piece
    header, _, rest = answer.partition(b"\n")
    assert json.loads(header)["type"] == "error"
    error, _ = json.JSONDecoder().raw_decode(rest.decode())  # a transcript may follow
    assert expected in error["text"]


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (b'{"type": "transcribe", "data": {"language": "zz"}}\n', "invalid_value"),
        (b"nonsense\n", "invalid_message"),
        (b"", "idle_timeout"),
    ],
)
def test_the_text_before_an_error_follows_it(last: bytes, code: str) -> None:
    async def run() -> tuple[str, str]:
        async with client_of(server) as client:
            await begin(client)
            client._writer.write(last)
            error = (await told(client))[-1][1]
            return error["code"], (await told(client))[-1][1]["text"]

    with serving(SlowModel(), wyoming=ANYWHERE, limits=ServerLimits(idle_s=1.0)) as server:
        assert asyncio.run(run()) == (code, "word")


def test_chunks_need_no_start_and_one_that_comes_after_them_begins_anew(four: ServerThread) -> None:
    async def run() -> list[str]:
        async with client_of(four) as client:
            for seconds in (1, 2):
                await client.write_event(AudioChunk(48_000, 2, 2, bytes(seconds * 4 * 48_000)).event())
            await client.write_event(AudioStop().event())
            texts = [(await told(client))[-1][1]["text"]]
            assert (await client.read_event()).type == "transcript-stop"
            await client.write_event(AudioChunk(16_000, 2, 1, SECOND).event())
            await say(client, SECOND)
            return [*texts, (await told(client))[-1][1]["text"]]

    assert asyncio.run(run()) == ["word word word", "word"]


def test_too_many_are_refused_and_places_come_free(four: ServerThread) -> None:
    async def run() -> list[str]:
        clients = [client_of(four) for _ in range(5)]
        for client in clients:
            await client.connect()
            await begin(client)
        await asyncio.sleep(0.3)
        kinds = []
        for client in clients:
            await client.write_event(AudioStop().event())
            kinds.append((await told(client))[-1][0])
            await client.disconnect()
        return kinds

    assert sorted(asyncio.run(run())) == ["error"] + ["transcript"] * 4
    wait_until(lambda: four.services.n_sessions == 0)


def test_clients_that_vanish_or_stay_silent_leave_nothing() -> None:
    with serving(SlowModel(), wyoming=ANYWHERE, limits=ServerLimits(idle_s=0.5)) as server:
        for beginning in (b"", b'{"type": "audio-st', b'{"type": "audio-start", "data_length": 40}\n{'):
            connection = connection_to(server)
            connection.sendall(beginning)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        with connection_to(server) as silent:
            assert b"expected a message within" in silent.recv(65_536)
        asyncio.run(text_of(server, SECOND))
        wait_until(lambda: server.services.n_sessions == 0)


@contextmanager
def silent(server: ServerThread, *addresses: str) -> Iterator[list[socket.socket]]:
    """Connections from addresses that say nothing."""
    with ExitStack() as stack:
        yield [stack.enter_context(connection_to(server, address)) for address in addresses]


HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"


def dropped(connections: list[socket.socket], n: int) -> list[bool]:
    """Which connections the server ends, once it has ended `n` of them."""
    wait_until(lambda: len(select.select(connections, [], [], 0.0)[0]) >= n)
    ended = select.select(connections, [], [], 0.1)[0]
    assert all(b"expected a command before others" in connection.recv(65_536) for connection in ended)
    return [connection in ended for connection in connections]


def test_connections_that_say_nothing_shut_nobody_out(one: ServerThread) -> None:
    with silent(one, *[HERE] * 12) as idle:
        events = asyncio.run(asyncio.wait_for(text_of(one, SECOND), 10))
        gone = dropped(idle, 9)
    assert events[-1][1]["text"] == "word"
    assert gone == [True] * 9 + [False] * 3, "the one that was silent for longest goes first"


def test_who_says_something_now_and_then_is_not_silent_for_longest(one: ServerThread) -> None:
    def ping(connection: socket.socket) -> None:
        connection.sendall(b'{"type": "ping"}\n')
        assert b"pong" in connection.recv(65_536)

    with silent(one, *[HERE] * 4) as first:
        for connection in first:  # each is known to the server when it has answered
            ping(connection)
        ping(first[0])
        with silent(one, *[HERE] * 3) as more:
            assert dropped([*first, *more], 3) == [False] + [True] * 3 + [False] * 3


def test_the_address_with_most_silent_connections_makes_room(one: ServerThread) -> None:
    with silent(one, ELSEWHERE, *[HERE] * 6) as idle:
        gone = dropped(idle, 3)
    assert gone == [False, True, True, True, False, False, False]


def test_a_command_under_way_makes_no_room(one: ServerThread) -> None:
    async def run() -> str:
        async with client_of(one) as client:
            await begin(client)
            assert (await client.read_event()).type == "transcript-start"
            with silent(one, *[HERE] * 10):
                pass
            await client.write_event(AudioStop().event())
            return str((await told(client))[-1][1]["text"])

    assert asyncio.run(run()) == "word"


def test_the_first_event_comes_soon_after_the_connection() -> None:
    async def run() -> None:
        async with client_of(server) as client:
            await client.write_event(Describe().event())
            assert (await client.read_event()).type == "info"
            await asyncio.sleep(0.5)
            await client.write_event(Ping("later").event())
            assert (await client.read_event()).type == "pong"

    with serving(SlowModel(), wyoming=ANYWHERE, limits=ServerLimits(head_s=0.3)) as server:
        with connection_to(server) as connection:
            connection.sendall(b'{"type": "describe"')
            assert b"expected a message within 0.3 s" in connection.recv(65_536)
        asyncio.run(run())


def test_a_server_that_goes_says_what_it_heard() -> None:
    async def run() -> list[tuple[str, dict[str, Any]]]:
        async with client_of(server) as client:
            await begin(client)
            assert (await client.read_event()).type == "transcript-start"
            server.server.should_exit = True
            return await told(client)

    with serving(SlowModel(), wyoming=ANYWHERE) as server:
        began = time.monotonic()
        assert asyncio.run(run())[-1][1]["text"] == "word"
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "text", ["127.0.0.1:10300", "tcp://a", "tcp://a:99999", "unix:///tmp/a", "tcp://a:1/b"]
)
def test_an_address_that_is_none_is_one_line(text: str) -> None:
    with pytest.raises(OptionError, match="tcp://HOST:PORT"):
        wyoming_address(text)


def test_addresses_are_read() -> None:
    assert wyoming_address("tcp://[::1]:10300") == Listening("::1", 10300)
    assert not wyoming_address("tcp://0.0.0.0:10300").is_loopback
