"""Attacks on a server, each for so long, from an address of its own; `attacks` runs them.

    python -m benchmarks server attackers NAME HOST:PORT SECONDS

Prints what became of it as JSON: answers and close codes, with how often they came.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import TypeAlias

import av
import httpx
import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from benchmarks.harness.report import benchmark_parser
from benchmarks.server.live_clients import GONE, speech, wave_file

FROM = ("127.0.0.2", 0)
"""The attackers' own address, so that they and those who are measured share no places of one."""
N_AT_ONCE = 8
SILENCE_S = 600.0
MESSAGE_BYTES = 15_000_000
N_CONNECTIONS = 400
TRANSCRIPTIONS = "/v1/audio/transcriptions"
Outcomes: TypeAlias = "Counter[str]"
Attack: TypeAlias = Callable[[str, Outcomes], Awaitable[None]]


@cache
def silence() -> bytes:
    """Ten minutes of silence in Opus: some kilobytes a minute."""
    created = io.BytesIO()
    with av.open(created, "w", format="ogg") as container:
        stream = container.add_stream("libopus", rate=48_000, layout="mono")
        stream.bit_rate = 6_000
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 48_000), np.int16), "s16", "mono")
        frame.sample_rate = 48_000
        for second in range(round(SILENCE_S)):
            frame.pts = second * 48_000
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return created.getvalue()


@cache
def reference() -> bytes:
    """Half a minute of speech as a wave file."""
    return wave_file((speech("en.flac") * 30)[: 2 * 16_000 * 29])


async def post(address: str, data: bytes, fields: Mapping[str, object], wait_s: float = 120.0) -> str:
    """Send a recording; returns the status, or that its client has left."""
    transport = httpx.AsyncHTTPTransport(local_address=FROM[0])
    try:
        async with httpx.AsyncClient(transport=transport, timeout=wait_s) as client:
            url = f"http://{address}{TRANSCRIPTIONS}"
            answer = await client.post(url, files={"file": ("a.ogg", data)}, data=dict(fields))
    except httpx.TimeoutException:
        return "left"
    return str(answer.status_code)


async def bombs(address: str, outcomes: Outcomes) -> None:
    """(1) Long silence in little Opus, many at a time, half of whose clients leave."""

    async def one(number: int) -> None:
        outcomes[await post(address, silence(), {}, 1.0 if number % 2 else 60.0)] += 1

    await asyncio.gather(*(one(number) for number in range(N_AT_ONCE)))


async def keywords(address: str, outcomes: Outcomes) -> None:
    """(2) Phrases: 300 of a kilobyte, and as many as are taken."""
    recording = wave_file(speech("en.flac")[:32_000])
    many = {"keywords[]": [f"{i} " + "word " * 200 for i in range(300)]}
    most = {"keywords[]": [f"phrase {i} of many" for i in range(700)]}
    for fields in (many, most):
        sent = (post(address, recording, fields) for _ in range(N_AT_ONCE))
        outcomes.update(await asyncio.gather(*sent))


async def large_messages(address: str, outcomes: Outcomes) -> None:
    """(3) Messages of 15 MB, of samples and of base64 in JSON."""
    audio = bytes(MESSAGE_BYTES)
    encoded = base64.b64encode(audio[: MESSAGE_BYTES * 3 // 4]).decode()
    append = json.dumps({"type": "input_audio_buffer.append", "audio": encoded})
    for path, message in (
        ("/v1/live?sample_rate=48000", audio),
        ("/v1/realtime?intent=transcription", append),
    ):
        async with connect(f"ws://{address}{path}", local_addr=FROM) as socket:
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await socket.send(message)
                    await socket.send(message)
            socket.transport.abort()
        outcomes["sent"] += 1


async def half_requests(address: str, outcomes: Outcomes) -> None:
    """(4) Connections that begin a request and leave it at that."""
    host, port = address.split(":")
    head = f"POST {TRANSCRIPTIONS} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 99\r\n".encode()
    held = []
    try:
        for number in range(N_CONNECTIONS):
            try:
                reader, writer = await asyncio.open_connection(host, int(port), local_addr=FROM)
                writer.write((b"GET / HT", head, head + b"\r\n", b"")[number % 4])
                held.append((reader, writer))
            except OSError:
                outcomes["refused"] += 1
        await asyncio.sleep(60)
    finally:
        for reader, writer in held:
            outcomes["closed" if reader.at_eof() or reader.exception() else "open"] += 1
            writer.transport.abort()


async def references(address: str, outcomes: Outcomes) -> None:
    """(5) Four known speakers of half a minute each, many at a time."""
    known = "data:audio/wav;base64," + base64.b64encode(reference()).decode()
    fields = {
        "response_format": "diarized_json",
        "known_speaker_names[]": ["a", "b", "c", "d"],
        "known_speaker_references[]": [known] * 4,
    }
    sent = (post(address, b"no recording", fields) for _ in range(N_AT_ONCE))
    outcomes.update(await asyncio.gather(*sent))


async def openings(address: str, outcomes: Outcomes) -> None:
    """(6) Sessions that open and go, beside a recording."""
    recording = asyncio.create_task(post(address, silence(), {}, 5.0))
    for _ in range(50):
        try:
            async with connect(f"ws://{address}/v1/live", local_addr=FROM) as socket:
                outcomes[json.loads(await socket.recv())["type"]] += 1
        except InvalidStatus as refused:
            outcomes[str(refused.response.status_code)] += 1
        except GONE:
            continue
    await recording


async def crowd(address: str, outcomes: Outcomes) -> None:
    """(7) Many sessions at once, which all speak, beside a recording that wants its share."""
    audio = speech("mixed.flac")
    recording = asyncio.create_task(post(address, reference(), {}))

    async def one() -> None:
        with suppress(*GONE):
            try:
                socket = await connect(f"ws://{address}/v1/live", local_addr=FROM)
            except InvalidStatus:
                outcomes["refused"] += 1
                return
            async with socket:
                outcomes["taken"] += 1
                for start in range(0, len(audio), 3_200):
                    await socket.send(audio[start : start + 3_200])
                    await asyncio.sleep(0.1)

    began = time.monotonic()
    await asyncio.gather(*(one() for _ in range(12)))
    outcomes[f"recording {await recording} within {time.monotonic() - began:.0f} s"] += 1


async def flood(address: str, outcomes: Outcomes) -> None:
    """(10) A client that sends as fast as it can, and asks whether anybody is there."""
    async with connect(f"ws://{address}/v1/live", local_addr=FROM, ping_timeout=None) as socket:

        async def send() -> None:
            while True:
                await socket.send(bytes(320_000))

        sending = asyncio.create_task(send())
        began = time.monotonic()
        waiter = await socket.ping()
        with suppress(TimeoutError):
            await asyncio.wait_for(waiter, 60)
            outcomes[f"pong within {time.monotonic() - began:.0f} s"] += 1
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        socket.transport.abort()


async def strangers(address: str, outcomes: Outcomes) -> None:
    """(11) Pages elsewhere, by names that they point here, and bytes that are no text."""
    transport = httpx.AsyncHTTPTransport(local_address=FROM[0])
    async with httpx.AsyncClient(transport=transport, timeout=20) as client:
        for headers in ({"host": "evil.test"}, {"origin": "https://evil.test"}):
            answer = await client.get(f"http://{address}/v1/models", headers=headers)
            outcomes[str(answer.status_code)] += 1
    with suppress(InvalidStatus):
        async with connect(f"ws://{address}/v1/live", local_addr=FROM) as socket:
            await socket.send([b"\xff\xfe"], text=True)
            await asyncio.wait_for(socket.wait_closed(), 20)
            outcomes[str(socket.close_code)] += 1


async def framed(address: str, head: str, data: bytes, outcomes: Outcomes, n_clients: int) -> None:
    """Send the same bytes from several clients at once, and note the ends of their connections."""

    async def one() -> None:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=FROM)
        try:
            writer.write(head.encode() + data)
            await writer.drain()
            answer = await asyncio.wait_for(reader.read(), 10)
            outcomes[answer.split(b"\r\n")[0].decode("latin-1") or "closed"] += 1
        except GONE as error:
            outcomes[type(error).__name__] += 1
        finally:
            writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(n_clients)))


async def tiny_chunks(address: str, outcomes: Outcomes) -> None:
    """(12) A body in chunks of one byte: 5 MB from each of eight clients."""
    for path in ("/v1/listen", "/nowhere"):
        head = f"POST {path} HTTP/1.1\r\nhost: {address}\r\ntransfer-encoding: chunked\r\n\r\n"
        await framed(address, head, b"1\r\nx\r\n" * (5_000_000 // 6), outcomes, N_AT_ONCE)


def handshake(address: str, path: str) -> str:
    lines = (f"GET {path} HTTP/1.1", f"host: {address}", "connection: Upgrade", "upgrade: websocket")
    key = ("sec-websocket-version: 13", "sec-websocket-key: c290dG92b2NlIHNvdHRvdg==")
    return "\r\n".join((*lines, *key, "", ""))


def frames_of(frame: bytes, path: str = "/v1/live", first: bytes = b"") -> Attack:
    """Make an attack of four sockets that send the same frame again and again, 5 MB each."""

    async def flood_frames(address: str, outcomes: Outcomes) -> None:
        data = first + frame * (5_000_000 // len(frame))
        await framed(address, handshake(address, path), data, outcomes, 4)

    return flood_frames


async def unread_captions(address: str, outcomes: Outcomes) -> None:
    """(17) Shared captions of 12 MB, and 60 readers that do not read them."""
    host, port = address.split(":")
    words = [{"word": " word" * 100, "start": 0, "end": 1} for _ in range(10)]
    async with connect(f"ws://{address}/v1/captions", local_addr=FROM) as speaker:
        token = json.loads(await speaker.recv())["token"]
        for start in range(0, 2_000, 100):
            spoken = [{"id": start + i, "start": 0, "end": 1, "words": words} for i in range(100)]
            await speaker.send(json.dumps({"type": "captions", "utterances": spoken}))
        offer = f"sec-websocket-protocol: sottovoce, sottovoce-captions.{token}\r\n\r\n"
        held = []
        for _ in range(60):
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=FROM, limit=1_024)
            writer.write((handshake(address, "/v1/captions/read").removesuffix("\r\n") + offer).encode())
            held.append((reader, writer))
        await asyncio.sleep(15)
        for reader, writer in held:
            outcomes["dropped" if reader.at_eof() or reader.exception() else "held"] += 1
            writer.transport.abort()


EMPTY = bytes([0x80, 0, 0, 0, 0])
"""Length and mask of a frame without payload."""


ATTACKS: Mapping[str, Attack] = {
    "silence in Opus": bombs,
    "phrases": keywords,
    "large messages": large_messages,
    "half requests": half_requests,
    "known speakers": references,
    "openings": openings,
    "a crowd": crowd,
    "a flood": flood,
    "strangers": strangers,
    "tiny chunks": tiny_chunks,
    "tiny frames": frames_of(b"\x82\x81\x00\x00\x00\x00x"),
    "empty continuations": frames_of(b"\x00" + EMPTY, first=b"\x02" + EMPTY),
    "no link": frames_of(b"\x00" + EMPTY, "/v1/captions/read", b"\x02" + EMPTY),
    "pings": frames_of(b"\x89" + EMPTY),
    "pongs": frames_of(b"\x8a" + EMPTY),
    "unread captions": unread_captions,
}


async def attack(name: str, address: str, seconds: float) -> Outcomes:
    """Attack again and again, for so long; an attack that fails begins anew."""
    outcomes: Outcomes = Counter()
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + ends_s - time.monotonic()):
                await ATTACKS[name](address, outcomes)
        except GONE as error:
            is_over = isinstance(error, TimeoutError)
            outcomes["cut short" if is_over else type(error).__name__] += 1
            await asyncio.sleep(0.1)
    return outcomes


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("name", choices=tuple(ATTACKS))
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    if ATTACKS[given.name] in (bombs, openings):
        silence()  # before the clock runs
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asyncio.run(attack(given.name, given.address, given.seconds))))
