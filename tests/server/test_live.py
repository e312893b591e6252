"""The live socket: events of the library, how late they are, and clients that harm themselves alone."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.formats.document import event_document
from sottovoce.server.scheduler import InputQueue
from sottovoce.server.settings import ServerLimits, Work
from sottovoce.types import Samples
from tests.server.conversation import (
    TWO_SENTENCES_S,
    Message,
    connected,
    exchanged,
    received,
    refusal,
    rest,
    say,
)
from tests.server.servers import CLIPS, SECOND, Gate, ServerThread, SlowModel, serving, wait_until

CLOSE: Message = {"type": "close"}


def pcm(samples: Samples) -> bytes:
    return (samples * 32768).clip(-32768, 32767).astype("<i2").tobytes()


def clip(name: str) -> bytes:
    return pcm(load_audio(CLIPS / f"{name}.flac"))


def talk(
    server: ServerThread, audio: bytes, *words: Message | str | bytes, query: str = "", piece: int = 6_400
) -> tuple[list[Message], int | None, str | None]:
    """Send audio in pieces, more messages, and the end; returns what is heard, and how the socket closes."""
    pieces = [audio[start : start + piece] for start in range(0, len(audio), piece)]
    events, client = exchanged(server, f"/v1/live?{query}", *pieces, *words, CLOSE)
    return events, client.close_code, client.close_reason


def events_of(messages: list[Message]) -> list[Message]:
    return [message for message in messages if "seq" in message]


def bare(message: Message) -> Message:
    """A message as the library has it, without probabilities, which are equal but for rounding."""
    kept = {name: value for name, value in message.items() if name not in ("seq", "utterance")}
    words = [{**word, "probability": None} for word in message.get("words", [])]
    return {**kept, "words": words} if words else kept


def probabilities(messages: list[Message]) -> list[float]:
    return [word["probability"] for message in messages for word in message.get("words", [])]


def check_events(
    messages: list[Message], model: Model, audio: bytes, *languages: str, **options: Any
) -> None:
    """Hold messages against the events of the library."""
    session = model.session(languages, **options)
    samples = np.frombuffer(audio, "<i2").astype(np.float32) / 32768
    expected = [event_document(event) for event in [*session.push(samples), *session.close()]]
    reported, result = json.loads(json.dumps(expected)), events_of(messages)
    assert [bare(event) for event in result] == [bare(event) for event in reported]
    assert probabilities(result) == pytest.approx(probabilities(reported), abs=1e-3)


@pytest.mark.parametrize("piece", [6_400, pytest.param(999, marks=pytest.mark.long)])
def test_events_are_those_of_the_library_however_the_audio_is_cut(nano: Model, piece: int) -> None:
    """They are numbered, and share the utterance of their final."""
    audio = clip("mixed")[: TWO_SENTENCES_S * 32_000]
    with serving(
        nano, work=Work(forecast=False, longest_interval_s=0.25)
    ) as server:  # also on a busy machine
        messages, code, _ = talk(server, audio, query="languages=en,de,es,fr&captions=revisable", piece=piece)
    check_events(messages, nano, audio, "en", "de", "es", "fr", captions="revisable")
    assert code == 1000
    assert messages[0]["type"] == "ready"
    assert messages[0]["languages"] == ["en", "de", "es", "fr"]
    assert messages[-1]["type"] == "closed"
    assert messages[-1]["received"] == pytest.approx(len(audio) / 32_000, abs=0.001)
    events = events_of(messages)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    finals = [event for event in events if event["type"] == "final"]
    assert [final["language"] for final in finals] == ["en", "de"]
    assert [final["utterance"] for final in finals] == sorted({final["utterance"] for final in finals})
    for final in finals:
        parts = [e for e in events if e["type"] == "partial" and e["utterance"] == final["utterance"]]
        assert "".join(part["text"] for part in parts).strip() == final["text"]
    assert all(event["utterance"] is None for event in events if event["type"] == "language")


def test_an_eagerness_tells_where_a_turn_ends(server: ServerThread) -> None:
    messages, _, _ = talk(server, clip("en") + bytes(4 * 32_000), query="languages=en&eagerness=high")
    *_, final, ended, turn = events_of(messages)
    assert [event["type"] for event in (final, ended, turn)] == ["final", "speech_ended", "turn_ended"]
    assert 0.5 < turn["probability"] <= 1.0
    assert turn["utterance"] == ended["utterance"] == final["utterance"]


def test_finalize_says_what_was_heard_and_time_goes_on(server: ServerThread) -> None:
    audio = clip("en")
    half = len(audio) // 4 * 2
    messages, code, _ = talk(server, audio[:half], {"type": "finalize"}, audio[half:], query="languages=en")
    at = next(i for i, message in enumerate(messages) if message["type"] == "finalized")
    first = [m for m in messages[:at] if m["type"] == "final"]
    second = [m for m in messages[at:] if m["type"] == "final"]
    assert code == 1000
    assert len(first) == 1
    assert all(final["start"] >= half / 32_000 for final in second)
    assert messages[at]["received"] == pytest.approx(half / 32_000, abs=0.001)
    assert [e["seq"] for e in events_of(messages)] == list(range(1, len(events_of(messages)) + 1))


def test_configure_changes_the_languages_under_way(server: ServerThread) -> None:
    german: Message = {"type": "configure", "languages": ["de"]}
    messages, _, _ = talk(server, clip("en"), german, clip("de"), query="languages=en")
    at = next(i for i, message in enumerate(messages) if message["type"] == "configured")
    assert {m["language"] for m in messages[:at] if m["type"] == "final"} == {"en"}
    assert {m["language"] for m in messages[at:] if m["type"] == "final"} == {"de"}


@pytest.mark.parametrize(("encoding", "rate"), [("s16le", 48_000), ("f32le", 16_000), ("mulaw", 8_000)])
def test_other_encodings_and_rates_give_words_too(server: ServerThread, encoding: str, rate: int) -> None:
    av = pytest.importorskip("av")
    samples = load_audio(CLIPS / "en.flac")
    resampler = av.AudioResampler({"s16le": "s16", "f32le": "flt"}.get(encoding, "s16"), "mono", rate)
    frame = av.AudioFrame.from_ndarray(samples[None], "flt", "mono")
    frame.sample_rate = 16_000
    parts = [part.to_ndarray()[0] for piece in (frame, None) for part in resampler.resample(piece)]
    audio = np.concatenate(parts)
    if encoding.endswith("law"):
        audio = encoded(audio, encoding)
    query = f"languages=en&encoding={encoding}&sample_rate={rate}"
    messages, code, _ = talk(server, audio.tobytes(), query=query, piece=1_001)
    text = " ".join(message["text"] for message in messages if message["type"] == "final")
    assert code == 1000
    assert "garden" in text.lower()


def encoded(audio: Any, law: str) -> Any:
    from sottovoce.server.live import g711_table

    table = g711_table(law)
    order = np.argsort(table)
    places = np.searchsorted(table[order], audio.astype(np.float32) / 32768).clip(0, 255)
    return order[places].astype(np.uint8)


@pytest.mark.parametrize(
    ("query", "param", "reported"),
    [
        ("languages=klingon", "languages", "klingon"),
        ("languages=pl", "languages", "this model knows: en, de, es, fr, zh"),
        ("switching=often", "switching", "off, restart"),
        ("encoding=mp3", "encoding", "s16le"),
        ("sample_rate=12", "sample_rate", "8000 to 96000"),
        ("sample_rate=high", "sample_rate", "whole number"),
        ("vad=maybe", "vad", "true or false"),
        ("eagerness=extreme", "eagerness", "low, medium, high"),
        ("model=other", "model", "expected one of nano"),
    ],
)
def test_a_wrong_address_is_refused_with_the_reason(
    server: ServerThread, query: str, param: str, reported: str
) -> None:
    answer = refusal(server, f"/v1/live?{query}")
    plain = httpx.get(f"{server.url}/v1/live?{query}")
    assert plain.status_code == answer.status_code in (400, 404)
    error = json.loads(answer.body)["error"]
    assert plain.json()["error"] == error, "which is how a page learns of it"
    assert error["param"] == param
    assert reported in error["message"]


def test_wrong_messages_leave_the_session_open(server: ServerThread) -> None:
    wrong = [
        *("", "hello", "[]", "null", '{"type": 1}', '{"type": "flush"}', "[" * 100_000),
        '{"type": "configure", "languages": 5}',
        '{"type": "configure", "sample_rate": 8000}',
        '{"type": "configure", "languages": ["pl"]}',
    ]
    messages, code, _ = talk(server, b"", *wrong, clip("en"), query="languages=en")
    kinds = [message["type"] for message in messages]
    assert code == 1000
    assert kinds.count("error") == len(wrong)
    assert "final" in kinds


def test_samples_that_are_no_numbers_end_the_session(server: ServerThread) -> None:
    messages, code, _ = talk(server, np.array([np.nan], "<f4").tobytes(), query="encoding=f32le")
    assert code == 1008
    assert messages[-1]["error"]["code"] == "invalid_audio"


def test_the_model_runs_in_its_own_thread_and_every_second_is_said_once() -> None:
    model = SlowModel()
    with serving(model) as server:
        messages, _, _ = talk(server, SECOND * 7, piece=5_000)
    words = [word for m in messages if m["type"] == "partial" for word in m["words"]]
    assert [word["start"] for word in words] == list(range(7))
    assert model.threads == {"sottovoce-model-0"}


def test_a_sender_who_is_too_fast_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []
    put_audio = InputQueue.put_audio

    async def watched(self: InputQueue, samples: Samples) -> None:
        most.append(self.n_samples)
        await put_audio(self, samples)

    monkeypatch.setattr(InputQueue, "put_audio", watched)
    with serving(SlowModel(lambda: time.sleep(0.05)), limits=ServerLimits(pending_s=3.0)) as server:
        messages, code, _ = talk(server, SECOND * 60, piece=len(SECOND))
    assert code == 1000
    assert messages[-1]["received"] == 60.0
    assert max(most) <= 3 * 16_000


TOO_MANY = (429, "rate_limit_exceeded", True)


def answers(server: ServerThread) -> list[tuple[int, str, bool]]:
    """Ask for another session, by a socket and as a page asks why: status, code, whether a time is named."""
    answer, plain = refusal(server, "/v1/live"), httpx.get(f"{server.url}/v1/live")
    return [
        (status, json.loads(body)["error"]["code"], int(headers["retry-after"]) >= 1)
        for status, headers, body in (
            (answer.status_code, answer.headers, answer.body),
            (plain.status_code, plain.headers, plain.content),
        )
    ]


def test_more_sessions_than_the_limit_are_asked_to_come_again() -> None:
    with serving(SlowModel(), limits=ServerLimits(sessions=1)) as server:
        with connected(server) as first:
            received(first)
            assert answers(server) == [TOO_MANY] * 2
        wait_until(lambda: server.services.n_sessions == 0)
        assert talk(server, SECOND)[1] == 1000


def test_no_session_is_taken_while_live_audio_waits_too_long(gate: Gate) -> None:
    with (
        serving(
            SlowModel(gate), limits=ServerLimits(wait_s=0.2), work=Work(engines=1, forecast=False)
        ) as server,
        connected(server) as first,
        connected(server) as other,
    ):
        say(first, SECOND)
        wait_until(lambda: gate.n_waiting == 1)
        say(other, SECOND)
        worker = server.services.registry.schedulers[0].worker
        wait_until(lambda: worker.live_wait_s > 0.2)
        assert answers(server) == [TOO_MANY] * 2
        gate.open()


def test_silence_of_the_client_ends_its_session_and_keepalive_does_not() -> None:
    with serving(SlowModel(), limits=ServerLimits(idle_s=0.6)) as server:
        with connected(server) as client:
            messages = rest(client)
        assert (client.close_code, messages[-1]["error"]["code"]) == (1008, "idle_timeout")
        with connected(server) as client:
            for _ in range(5):
                time.sleep(0.3)
                say(client, {"type": "keepalive"})
            say(client, CLOSE)
            rest(client)
        assert client.close_code == 1000


def test_a_session_has_a_longest_duration() -> None:
    with serving(SlowModel(), limits=ServerLimits(session_s=5.0)) as server:
        messages, code, _ = talk(server, SECOND * 9)
    assert (code, messages[-1]["error"]["code"]) == (1008, "session_too_long")


def test_a_message_that_is_too_large_closes_with_1009() -> None:
    with serving(SlowModel(), limits=ServerLimits(message_kb=16)) as server:
        assert talk(server, SECOND, piece=len(SECOND))[1] == 1009
        assert talk(server, SECOND, piece=4_000)[1] == 1000


def test_a_client_that_vanishes_leaves_nothing_behind() -> None:
    with serving(SlowModel(lambda: time.sleep(0.02))) as server:

        async def vanish() -> None:
            client = await connect(f"ws://{server.address}/v1/live")
            await client.send(SECOND * 5)
            client.transport.abort()

        for _ in range(5):
            asyncio.run(vanish())
        wait_until(lambda: server.services.n_sessions == 0)
        assert talk(server, SECOND * 3)[1] == 1000


def socket_of_few_bytes(address: str) -> socket.socket:
    """A connection of which the system holds little that is not read."""
    created = socket.socket()
    created.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    host, port = address.split(":")
    created.connect((host, int(port)))
    created.setblocking(False)
    return created


def test_a_reader_who_does_not_read_is_dropped() -> None:
    model = SlowModel(word=" " + "word" * 10_000)
    with serving(model, limits=ServerLimits(send_s=0.5, session_s=1e9)) as server:

        async def stall() -> bool:
            narrow = socket_of_few_bytes(server.address)
            address = f"ws://{server.address}/v1/live?languages=en"
            async with connect(address, sock=narrow, max_queue=1, ping_interval=None) as client:
                await client.recv()  # that it is ready
                client.transport.pause_reading()
                with suppress(ConnectionClosed):
                    for _ in range(600):
                        await asyncio.sleep(0.02)  # audio that comes faster is worked off in one piece
                        if server.services.n_sessions == 0:
                            break
                        with suppress(asyncio.TimeoutError):
                            await asyncio.wait_for(client.send(SECOND), 0.1)
                is_dropped = server.services.n_sessions == 0
                client.transport.abort()
            return is_dropped

        assert asyncio.run(stall())
        assert talk(server, SECOND)[1] == 1000


def test_a_fault_in_one_session_harms_no_other_and_tells_nothing_of_the_inside() -> None:
    def fail() -> None:
        if model.n_calls == 2:
            raise RuntimeError("secret of the inside")

    model = SlowModel(fail)
    with serving(model) as server:
        messages, code, reason = talk(server, SECOND * 9, piece=64_000)
        assert code == 1011
        assert "secret" not in json.dumps(messages) + str(reason)
        assert talk(server, SECOND)[1] == 1000


def test_a_server_that_goes_down_lets_sessions_say_the_rest_and_closes_with_1012() -> None:
    with serving(SlowModel(lambda: time.sleep(0.05))) as server, connected(server) as client:
        received(client)
        say(client, SECOND * 6)
        time.sleep(0.1)
        server.server.should_exit = True
        messages = rest(client)
    assert client.close_code == 1012
    assert [m["text"] for m in messages if m["type"] == "final"] == [" ".join(["word"] * 6)]
    assert messages[-1] == {"type": "closed", "received": 6.0}


def gauge(server: ServerThread) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("sottovoce_behind_s ")).split()[1])


def test_a_session_that_waits_is_told_so_and_told_when_it_does_no_longer(gate: Gate) -> None:
    with serving(SlowModel(gate)) as server:
        with connected(server) as socket:
            say(socket, 3 * SECOND)
            status = received(socket, "status")
            assert (status["received"], status["behind_s"]) == (3.0, 3.0)
            assert gauge(server) == 3.0
            assert httpx.get(f"{server.url}/health").json()["behind_s"] == 3.0
            say(socket, SECOND)
            assert received(socket, "status")["behind_s"] == 4.0
            gate.open()
            assert received(socket, "status")["behind_s"] == 0.0
            assert gauge(server) == 0.0
        assert gauge(server) == 0.0


def test_without_audio_nothing_is_told(fake_server: ServerThread) -> None:
    with connected(fake_server) as socket:
        received(socket, "ready")
        with pytest.raises(TimeoutError):
            socket.recv(timeout=2.5)


def test_the_client_of_openai_takes_what_it_does_not_know(gate: Gate) -> None:
    async def run(server: ServerThread) -> list[Any]:
        events: list[Any] = []
        async with (
            AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
            client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
        ):
            audio = base64.b64encode(bytes(4 * 48_000)).decode()
            await connection.input_audio_buffer.append(audio=audio)
            async for event in connection:
                events.append(event)
                if str(event.type) == "sottovoce.status":
                    gate.open()
                if event.type.endswith(".delta"):
                    return events
        return events

    with serving(SlowModel(gate)) as server:
        events = asyncio.run(asyncio.wait_for(run(server), 60))
    late = next(event for event in events if event.type == "sottovoce.status")
    assert late.behind_s == pytest.approx(4.0, abs=0.01)  # the resampler holds the rest
    assert events[-1].behind_s < 4.0


def test_results_of_deepgrams_api_tell_it_in_their_metadata(fake_server: ServerThread) -> None:
    with connected(fake_server, "/v1/listen?encoding=linear16&interim_results=true") as socket:
        say(socket, 3 * SECOND)
        assert 0.0 <= received(socket, "Results")["metadata"]["behind_s"] <= 3.0
