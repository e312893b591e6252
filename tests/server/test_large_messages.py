"""A message of many megabytes is decoded and resampled where nobody else waits, a slice at a time."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from contextlib import suppress

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from sottovoce.server.apis import openai_realtime
from sottovoce.server.live import SLICE_BYTES, slices_of
from sottovoce.server.pcm import PcmReader
from sottovoce.types import Samples
from tests.server.servers import SlowModel, serving

LARGE = bytes(4_000_000)
DOORS = {
    "/v1/live?sample_rate=48000": lambda data: [data, '{"type": "close"}'],
    "/v1/listen?encoding=linear16&sample_rate=48000": lambda data: [data, '{"type": "CloseStream"}'],
    "/v1/realtime?intent=transcription": lambda data: [append(data), append(b"\0\0")],
}


def append(data: bytes) -> str:
    return json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()})


@pytest.mark.parametrize("path", DOORS)
def test_a_large_message_is_read_off_the_loop_in_slices(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str]] = []
    read, audio_of = PcmReader.read, openai_realtime.decode_audio

    def noting(self: PcmReader, piece: bytes) -> Samples:
        seen.append((len(piece), threading.current_thread().name))
        return read(self, piece)

    def decoding(given: object) -> bytes:
        seen.append((0, threading.current_thread().name if len(str(given)) > SLICE_BYTES else "small"))
        return audio_of(given)

    monkeypatch.setattr(PcmReader, "read", noting)
    monkeypatch.setattr(openai_realtime, "decode_audio", decoding)

    async def run(address: str) -> None:
        async with connect(f"ws://{address}{path}") as client:
            for message in DOORS[path](LARGE):
                await client.send(message)
            with suppress(ConnectionClosed):
                for _ in range(100):  # a busy machine takes its time
                    if sum(size for size, _ in seen) >= len(LARGE):
                        break
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(client.recv(), 0.2)
            client.transport.abort()

    with serving(SlowModel()) as server:
        asyncio.run(run(server.address))
    large = [(size, name) for size, name in seen if size > 2]
    assert sum(size for size, _ in large) == len(LARGE)
    assert max(size for size, _ in large) <= SLICE_BYTES
    assert "sottovoce-server" not in {name for size, name in seen if size != 2}


def test_slices_sound_as_the_whole() -> None:
    data = np.random.default_rng(0).integers(-20_000, 20_000, 150_001).astype("<i2").tobytes() + b"\0"
    whole, sliced = PcmReader("s16le", 44_100), PcmReader("s16le", 44_100)
    expected = np.concatenate((whole.read(data), whole.flush()))
    found = np.concatenate([*map(sliced.read, slices_of(data)), sliced.flush()])
    assert len(list(slices_of(data))) == 5
    np.testing.assert_allclose(found, expected, atol=1e-6)
