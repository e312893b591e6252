"""Channels that are transcribed separately in one session: of `/v1/live`, and Deepgram's `multichannel`."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.types import Final, Samples
from tests.audio.media import wav_bytes
from tests.server.conversation import connected, received, refusal, rest, say
from tests.server.servers import CLIPS, ServerThread
from tests.server.test_listen import heard_by_client

QUERY = "languages=en,de&sources=Ada,Ben"


@pytest.fixture(scope="module")
def channels() -> Samples:
    english, german = load_audio(CLIPS / "en.flac"), load_audio(CLIPS / "de.flac")
    n_samples = max(len(english), len(german)) + 16_000
    return np.stack([np.pad(each, (0, n_samples - len(each))) for each in (english, german)])


@pytest.fixture(scope="module")
def alternating(channels: Samples) -> bytes:
    data: bytes = (channels.T * 32767).astype("<i2").tobytes()
    return data


def test_sources_of_the_live_protocol(
    server: ServerThread, nano: Model, channels: Samples, alternating: bytes
) -> None:
    with connected(server, f"/v1/live?{QUERY}&translate_to=en") as socket:
        assert received(socket)["sources"] == ["Ada", "Ben"]
        for at in range(0, len(alternating), 15_002):  # pieces end within a frame
            say(socket, alternating[at : at + 15_002])
        say(socket, {"type": "finalize"}, {"type": "close"})
        messages = rest(socket)
    finals = [message for message in messages if message["type"] == "final"]
    whole = {m["utterance"]: m["source"] for m in messages if m["type"] == "translation" and m["final"]}
    assert whole == {final["utterance"]: final["source"] for final in finals}
    for place, name in enumerate(["Ada", "Ben"]):
        with nano.session(["en", "de"]) as session:
            events = [*session.push(channels[place]), *session.close()]
        expected = [event.text for event in events if isinstance(event, Final)]
        assert [final["text"] for final in finals if final["source"] == name] == expected != []
    assert all(word["speaker"] == final["source"] for final in finals for word in final["words"])
    assert [message["seq"] for message in messages if "seq" in message] == sorted(
        message["seq"] for message in messages if "seq" in message
    )


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_deepgrams_client_reads_each_channel(server: ServerThread, alternating: bytes) -> None:
    options: dict[str, Any] = {"multichannel": True, "channels": 2, "language_hint": ["en", "de"]}
    messages = heard_by_client(server, alternating, punctuate=True, vad_events=True, **options)
    results = [message for message in messages if message.type == "Results" and message.is_final]
    texts = {
        place: " ".join(
            r.channel.alternatives[0].transcript for r in results if r.channel_index == [place, 2]
        )
        for place in (0, 1)
    }
    assert "garden" in texts[0]
    assert "Wir haben heute viel Zeit." in texts[1]
    assert {tuple(m.channel) for m in messages if m.type == "SpeechStarted"} == {(0, 2), (1, 2)}
    (metadata,) = (message for message in messages if message.type == "Metadata")
    assert metadata.channels == 2


@pytest.mark.parametrize("query", ["", "&encoding=linear16&sample_rate=16000&channels=2"])
def test_deepgram_reads_each_channel_of_a_recording(
    server: ServerThread, channels: Samples, alternating: bytes, query: str
) -> None:
    content = alternating if query else wav_bytes(channels)
    where = f"{server.url}/v1/listen?multichannel=true&utterances=true&punctuate=true&language_hint=en{query}"
    answer = httpx.post(f"{where}&language_hint=de", content=content, timeout=60).json()
    english, german = (each["alternatives"][0]["transcript"] for each in answer["results"]["channels"])
    assert "garden" in english
    assert "Zeit" in german
    assert answer["metadata"]["channels"] == 2
    assert {each["channel"] for each in answer["results"]["utterances"]} == {0, 1}
    starts = [each["start"] for each in answer["results"]["utterances"]]
    assert starts == sorted(starts)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/live?sources=A,A", "sources"),
        ("/v1/live?sources=A,B&speakers=auto", "speakers"),
        ("/v1/listen?multichannel=true", "multichannel"),
        ("/v1/listen?multichannel=true&encoding=linear16&channels=2&diarize=true", "multichannel"),
        ("/v1/listen?encoding=linear16&channels=2", "multichannel"),
        ("/v2/listen?multichannel=true&encoding=linear16", "multichannel"),
        ("/v1/live?sources=" + ",".join(f"s{n}" for n in range(200)), "sessions"),
    ],
)
def test_what_cannot_be_is_refused(server: ServerThread, path: str, message: str) -> None:
    answer = refusal(server, path)
    assert answer.status_code in (400, 429, 503)
    assert message in answer.body.decode()
