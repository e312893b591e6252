"""Translation beside a live session: what was said in order, in another language, and nobody waits for it."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection

from sottovoce.api import Model
from sottovoce.server.apis import sottovoce_live
from sottovoce.server.settings import TranslationSettings
from sottovoce.translation.chat import ChatServer, Glossary
from sottovoce.translation.live_translator import LiveTranslation, LiveTranslator
from sottovoce.translation.whisper_translate import N_NEW_WORDS, WhisperTranslator
from tests.server.conversation import refusal
from tests.server.servers import ServerThread, SlowModel, serving
from tests.server.test_live import SECOND, Message, clip, saying, talk
from tests.translation.server import Answer, StandIn, stand_in, upper


@pytest.fixture
def translated() -> Iterator[tuple[ServerThread, StandIn]]:
    """A server with another one that translates: into capitals."""
    with stand_in(upper) as chat, serving(SlowModel(), translation=by(chat)) as server:
        yield server, chat


def by(chat: StandIn) -> TranslationSettings:
    return TranslationSettings(ChatServer(chat.url, "some"), Glossary((("word", "Wort"),)))


def translations(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message["type"] == "translation"]


def errors(messages: list[Message]) -> list[dict[str, Any]]:
    return [message["error"] for message in messages if message["type"] == "error"]


def test_every_utterance_is_translated_before_the_end(translated: tuple[ServerThread, StandIn]) -> None:
    server, chat = translated

    async def speak(socket: ClientConnection) -> None:
        for _ in range(2):
            await socket.send(4 * SECOND)
            await socket.send('{"type": "finalize"}')
        await socket.send('{"type": "close"}')

    messages, code, _ = talk(server, speak, "translate_to=German")
    assert code == 1000
    assert messages[-1]["type"] == "closed"
    finals = [message for message in messages if message["type"] == "final"]
    whole = [message for message in translations(messages) if message["final"]]
    assert [one["text"] for one in whole] == ["WORD WORD WORD WORD"] * 2
    assert [one["utterance"] for one in whole] == [final["utterance"] for final in finals]
    assert [(one["start"], one["end"]) for one in whole] == [(0.0, 4.0), (4.0, 8.0)]
    assert {one["language"] for one in whole} == {"de"}
    assert "word = Wort" in chat.asked[0]["messages"][0]["content"]


def test_what_two_readings_agree_on_is_shown_before_the_utterance_ends(
    translated: tuple[ServerThread, StandIn],
) -> None:
    messages, _, _ = talk(translated[0], patient(12), "translate_to=de")
    shown = [one["text"] for one in translations(messages) if not one["final"]]
    (whole,) = [one["text"] for one in translations(messages) if one["final"]]
    assert shown
    assert whole.startswith(" ".join(shown))


def patient(n_seconds: int) -> Any:
    async def speak(socket: ClientConnection) -> None:
        for _ in range(n_seconds):
            await socket.send(SECOND)
            await asyncio.sleep(0.05)
        await socket.send('{"type": "close"}')

    return speak


def test_a_server_that_fails_takes_no_words_away_and_is_not_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(document: dict[str, Any]) -> Answer:
        return 400, json.dumps({"error": {"message": f"no: {document['messages'][-1]['content']}"}})

    with stand_in(fail) as chat, serving(SlowModel(), translation=by(chat)) as server:
        messages, code, _ = talk(server, saying(4 * SECOND), "translate_to=de")
    assert code == 1000
    assert [message["text"] for message in messages if message["type"] == "final"] == ["word word word word"]
    assert not translations(messages)
    assert {error["code"] for error in errors(messages)} == {"translation_failed"}
    assert all("127.0.0.1" not in error["message"] for error in errors(messages))
    (record,) = {record.getMessage(): record for record in caplog.records if "transl" in record.msg}.values()
    assert vars(record)["server"] == f"{chat.url}/chat/completions"
    assert "word" not in str(vars(record))


def test_words_do_not_wait_for_a_slow_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sottovoce_live, "FINISH_TIMEOUT_S", 0.2)
    release = threading.Event()

    def wait(document: dict[str, Any]) -> Answer:
        release.wait(30)
        return upper(document)

    with stand_in(wait) as chat, serving(SlowModel(), translation=by(chat)) as server:
        try:
            messages, code, _ = talk(server, saying(9 * SECOND, piece=32_000), "translate_to=de")
        finally:
            release.set()
    kinds = [message["type"] for message in messages]
    assert code == 1000
    said = "".join(message["text"] for message in messages if message["type"] == "partial")
    assert said == 9 * " word"
    assert kinds[-2:] == ["error", "closed"]
    assert not translations(messages)


def reason(server: ServerThread, query: str) -> str:
    answer = refusal(server, f"/v1/live?{query}")
    assert answer.status_code == 400
    return str(json.loads(answer.body)["error"]["message"])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("translate_to=fr", "translate_to: expected one of en, got 'fr'"),
        ("translate_to=klingon", "klingon"),
        ("translate_to=en&task=translate", "translate_to: expected the task transcribe, got translate"),
    ],
)
def test_what_nobody_here_translates_is_refused(query: str, said: str) -> None:
    with serving(SlowModel()) as server:
        assert said in reason(server, query)


def test_a_client_chooses_no_server_that_translates() -> None:
    with serving(SlowModel()) as server:
        messages, code, _ = talk(server, saying(SECOND), "translation_url=http://127.0.0.1:1/v1")
    assert (messages[0]["ignored"], code) == (["translation_url"], 1000)
    assert not translations(messages)


def test_an_english_only_model_translates_nothing() -> None:
    model = SlowModel()
    model.languages = ("en",)  # type: ignore[assignment]
    with serving(model) as server:
        assert "expected English, by a model of several languages" in reason(server, "translate_to=en")


def test_the_language_stands_for_the_whole_session(translated: tuple[ServerThread, StandIn]) -> None:
    change = {"type": "configure", "translate_to": "fr"}
    messages, code, _ = talk(translated[0], saying(4 * SECOND, change), "translate_to=de")
    assert code == 1000
    assert "translate_to: expected in the address of the socket" in errors(messages)[0]["message"]
    assert [one["language"] for one in translations(messages) if one["final"]] == ["de"]


def test_models_say_what_they_are_translated_into(translated: tuple[ServerThread, StandIn]) -> None:
    def told(server: ServerThread) -> list[str]:
        with urllib.request.urlopen(f"http://{server.address}/v1/models/nano") as answer:
            found: list[str] = json.load(answer)["translates_to"]
            return found

    assert {"en", "de", "zh"} <= set(told(translated[0]))
    with serving(SlowModel()) as server:
        assert told(server) == ["en"]


def test_whisper_s_own_english_is_that_of_the_library(server: ServerThread, nano: Model) -> None:
    audio = clip("de")
    messages, _, _ = talk(server, saying(audio, piece=16_000), "languages=de&translate_to=en")
    found = [one["text"] for one in translations(messages) if one["final"]]
    own, session = WhisperTranslator(nano), nano.session(["de"])
    live = LiveTranslator(own, N_NEW_WORDS)
    samples = np.frombuffer(audio, "<i2").astype(np.float32) / 32768
    told: list[LiveTranslation] = []
    own.push(samples)
    for event in [*session.push(samples), *session.close()]:
        told += live.take(event)
    assert found == [one.text for one in told if one.is_final]
    assert any(found)
