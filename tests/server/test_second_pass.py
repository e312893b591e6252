"""A second pass in every live protocol: partial results are as without it, and turns have its text."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from wyoming.event import Event

from sottovoce.api import Model
from sottovoce.offline.transcription import UtteranceTranscription
from sottovoce.runtime.update_interval import UpdateIntervalController
from sottovoce.types import Samples, Word
from tests.server.conversation import connected, received, say
from tests.server.servers import CLIPS, ServerThread, serving, wait_until
from tests.server.test_live import clip, events_of, talk
from tests.server.test_realtime import COMPLETED, appended, of, pcm24, until, update
from tests.server.test_wyoming import ANYWHERE, client_of, text_of, told
from tests.server.test_wyoming import say as command

READ = "?languages=en&finals=read"
SILENCE = bytes(2 * 32_000)
AUDIO = clip("en")[: 4 * 32_000] + SILENCE


@pytest.fixture(scope="module", autouse=True)
def time_to_spare() -> Iterator[None]:
    """Finals do not depend on how busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UpdateIntervalController, "note_work", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def reading(nano: Model) -> Iterator[ServerThread]:
    """A server whose second pass finds one word in every utterance."""

    def words(self: object, pcm: Samples, start_s: float, *_: object) -> tuple[Word, ...]:
        return (Word(" Read.", start_s, start_s + 0.5, 1.0, "en"),)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UtteranceTranscription, "words", words)
        with serving(nano, wyoming=ANYWHERE) as server:
            yield server


def spoken(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [message for message in events_of(messages) if message["type"] == kind]


def test_a_final_of_the_protocol_has_both_texts(reading: ServerThread) -> None:
    messages, _, _ = talk(reading, AUDIO, query=READ[1:])
    before, _, _ = talk(reading, AUDIO, query="languages=en")
    finals, committed = spoken(messages, "final"), spoken(before, "final")
    assert [final["text"] for final in finals] == ["Read."] * len(committed)
    assert all(final["read"] and final["revised"] for final in finals)
    assert [final["committed"] for final in finals] == [final["words"] for final in committed]
    assert [final["utterance"] for final in finals] == [final["utterance"] for final in committed]
    texts = [[part["text"] for part in spoken(each, "partial")] for each in (messages, before)]
    assert texts[0] == texts[1]


def test_a_machine_without_time_to_spare_keeps_the_committed_words(
    nano: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UtteranceTranscription, "words", raising)
    with serving(nano) as server:
        server.services.registry.schedulers[0].worker.interval_controller.has_spare_time = False
        messages, _, _ = talk(server, AUDIO, query=READ[1:])
    finals = spoken(messages, "final")
    assert finals
    assert not any(final["read"] or final["revised"] for final in finals)
    assert [final["committed"] for final in finals] == [final["words"] for final in finals]


def raising(self: object, *_: object) -> tuple[Word, ...]:
    raise ValueError("no text")


def endless(
    self: object, pcm: Samples, start_s: float, committed: object, stopped: threading.Event
) -> tuple[Word, ...]:
    assert stopped.wait(30)
    return ()


@pytest.mark.parametrize("words", [raising, endless])
@pytest.mark.parametrize("last", [[], [{"type": "finalize"}], [{"type": "configure", "languages": ["de"]}]])
def test_every_utterance_has_one_final_with_its_words_however_it_ends(
    nano: Model, monkeypatch: pytest.MonkeyPatch, words: Callable[..., object], last: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(UtteranceTranscription, "words", words)
    with serving(nano) as server:
        messages, code, _ = talk(server, AUDIO + AUDIO, *last, query=READ[1:])
    assert code == 1000
    finals, partials = spoken(messages, "final"), spoken(messages, "partial")
    assert [final["utterance"] for final in finals] == sorted({part["utterance"] for part in partials})
    assert [word["word"] for final in finals for word in final["words"]] == [
        word["word"] for part in partials for word in part["words"]
    ]
    assert not any(final["read"] for final in finals)


def test_a_client_that_leaves_stops_the_second_pass(nano: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[threading.Event] = []

    def words(self: object, *given: Any) -> tuple[Word, ...]:
        stops.append(given[-1])
        return endless(self, *given)

    monkeypatch.setattr(UtteranceTranscription, "words", words)
    with serving(nano) as server:
        with connected(server, f"/v1/live{READ}") as socket:
            say(socket, *[AUDIO[start : start + 6_400] for start in range(0, len(AUDIO), 6_400)])
            wait_until(lambda: bool(stops))
        assert all(stopped.wait(10) for stopped in stops)
        wait_until(lambda: server.services.n_sessions == 0)


def test_a_final_comes_though_no_audio_follows(reading: ServerThread) -> None:
    with connected(reading, f"/v1/live{READ}") as socket:
        say(socket, *[AUDIO[start : start + 6_400] for start in range(0, len(AUDIO), 6_400)])
        while (message := received(socket))["type"] != "final":
            pass
        assert message["text"] == "Read."


def test_a_turn_of_openai_is_completed_with_it(reading: ServerThread) -> None:
    session = update(
        transcription={"language": "en", "finals": "read"}, turn_detection={"type": "server_vad"}
    )
    audio = pcm24(CLIPS / "en.flac")[: 4 * 48_000] + bytes(2 * 48_000)
    with connected(reading, "/v1/realtime?intent=transcription") as socket:
        say(socket, session, *appended(audio))
        heard = until(socket, "conversation.item.done")
    (completed,) = of(heard, COMPLETED)
    deltas = of(heard, "conversation.item.input_audio_transcription.delta")
    assert set(completed["transcript"].split()) == {"Read."}
    assert deltas
    assert "Read" not in json.dumps(deltas)
    (done,) = of(heard, "conversation.item.done")
    assert done["item"]["content"][0]["transcript"] == completed["transcript"]


def test_final_results_of_deepgram_have_it(reading: ServerThread) -> None:
    query = "encoding=linear16&sample_rate=16000&language=en&finals=read&interim_results=true&punctuate=true"
    with connected(reading, f"/v1/listen?{query}") as socket:
        say(socket, *[AUDIO[start : start + 6_400] for start in range(0, len(AUDIO), 6_400)])
        say(socket, {"type": "CloseStream"})
        heard = until(socket, "Metadata")
    results = of(heard, "Results")
    finals = [result for result in results if result["is_final"]]
    texts = [result["channel"]["alternatives"][0]["transcript"] for result in finals]
    assert set(filter(None, texts)) == {"Read."}
    assert any(result["speech_final"] for result in finals)
    assert any(result["channel"]["alternatives"][0]["words"] for result in results if not result["is_final"])


def test_the_transcript_of_wyoming_is_it(reading: ServerThread) -> None:
    async def run() -> list[tuple[str, dict[str, Any]]]:
        async with client_of(reading) as client:
            await client.write_event(Event("transcribe", {"language": "en", "finals": "read"}))
            await command(client, AUDIO)
            return await told(client)

    heard = asyncio.run(run())
    plain = asyncio.run(text_of(reading, AUDIO, language="en"))
    assert set(heard[-1][1]["text"].split()) == {"Read."}
    assert [data for kind, data in heard if kind == "transcript-chunk"] == [
        data for kind, data in plain if kind == "transcript-chunk"
    ]
