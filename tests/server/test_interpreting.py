"""Translation beside a live session: what was said in order, in another language, and nobody waits for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.server.apis import sottovoce_live
from sottovoce.server.settings import TranslationSettings
from sottovoce.translation.chat import ChatServer, Glossary
from sottovoce.translation.live_translator import LiveTranslation, LiveTranslator
from sottovoce.translation.whisper_translate import N_NEW_WORDS, WhisperTranslator
from tests.server.conversation import Message, connected, refusal, rest, say
from tests.server.servers import SECOND, Gate, ServerThread, SlowModel, serving
from tests.server.test_live import clip, talk
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

    finalize: Message = {"type": "finalize"}
    messages, code, _ = talk(
        server, 4 * SECOND, finalize, 4 * SECOND, finalize, query="translate_to=German", piece=4 * len(SECOND)
    )
    assert code == 1000
    assert messages[-1]["type"] == "closed"
    finals = [message for message in messages if message["type"] == "final"]
    whole = [message for message in translations(messages) if message["final"]]
    assert [item["text"] for item in whole] == ["WORD WORD WORD WORD"] * 2
    assert [item["utterance"] for item in whole] == [final["utterance"] for final in finals]
    assert [(item["start"], item["end"]) for item in whole] == [(0.0, 4.0), (4.0, 8.0)]
    assert {item["language"] for item in whole} == {"de"}
    assert "word = Wort" in chat.asked[0]["messages"][0]["content"]


def test_what_two_readings_agree_on_is_shown_before_the_utterance_ends(
    translated: tuple[ServerThread, StandIn],
) -> None:
    with connected(translated[0], "/v1/live?translate_to=de") as socket:
        for _ in range(12):
            say(socket, SECOND)
            time.sleep(0.05)
        say(socket, {"type": "close"})
        messages = rest(socket)
    shown = [item["text"] for item in translations(messages) if not item["final"]]
    (whole,) = [item["text"] for item in translations(messages) if item["final"]]
    assert shown
    assert whole.startswith(" ".join(shown))


def test_a_server_that_fails_takes_no_words_away_and_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    def fail(document: dict[str, Any]) -> Answer:
        return 400, json.dumps({"error": {"message": f"no: {document['messages'][-1]['content']}"}})

    with stand_in(fail) as chat, serving(SlowModel(), translation=by(chat)) as server:
        messages, code, _ = talk(server, 4 * SECOND, query="translate_to=de")
    assert code == 1000
    assert [message["text"] for message in messages if message["type"] == "final"] == ["word word word word"]
    assert not translations(messages)
    assert {error["code"] for error in errors(messages)} == {"translation_failed"}
    assert all("127.0.0.1" not in error["message"] for error in errors(messages))
    (record,) = {record.getMessage(): record for record in caplog.records if "transl" in record.msg}.values()
    assert vars(record)["server"] == f"{chat.url}/chat/completions"
    assert "word" not in str(vars(record))


def test_words_do_not_wait_for_a_slow_server(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    monkeypatch.setattr(sottovoce_live, "FINISH_TIMEOUT_S", 0.2)

    def wait(document: dict[str, Any]) -> Answer:
        gate()
        return upper(document)

    with stand_in(wait) as chat, serving(SlowModel(), translation=by(chat)) as server:
        messages, code, _ = talk(server, 9 * SECOND, query="translate_to=de", piece=32_000)
        gate.open()
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
def test_what_nobody_here_translates_is_refused(fake_server: ServerThread, query: str, said: str) -> None:
    assert said in reason(fake_server, query)


def test_a_client_chooses_no_server_that_translates(fake_server: ServerThread) -> None:
    messages, code, _ = talk(fake_server, SECOND, query="translation_url=http://127.0.0.1:1/v1")
    assert (messages[0]["ignored"], code) == (["translation_url"], 1000)
    assert not translations(messages)


def test_an_english_only_model_translates_nothing() -> None:
    model = SlowModel()
    model.languages = ("en",)
    with serving(model) as server:
        assert "expected English, by a model of several languages" in reason(server, "translate_to=en")


def test_the_language_stands_for_the_whole_session(translated: tuple[ServerThread, StandIn]) -> None:
    change: Message = {"type": "configure", "translate_to": "fr"}
    messages, code, _ = talk(translated[0], 4 * SECOND, change, query="translate_to=de")
    assert code == 1000
    assert "translate_to: expected in the address of the socket" in errors(messages)[0]["message"]
    assert [item["language"] for item in translations(messages) if item["final"]] == ["de"]


def test_models_say_what_they_are_translated_into(
    translated: tuple[ServerThread, StandIn], fake_server: ServerThread
) -> None:
    by_chat, by_whisper = (
        httpx.get(f"{server.url}/v1/models/nano").json()["translates_to"]
        for server in (translated[0], fake_server)
    )
    assert {"en", "de", "zh"} <= set(by_chat)
    assert by_whisper == ["en"]


def test_whisper_s_own_english_is_that_of_the_library(server: ServerThread, nano: Model) -> None:
    audio = clip("de")
    messages, _, _ = talk(server, audio, query="languages=de&translate_to=en", piece=16_000)
    result = [item["text"] for item in translations(messages) if item["final"]]
    owned, session = WhisperTranslator(nano), nano.session(["de"])
    live = LiveTranslator(owned, N_NEW_WORDS)
    samples = np.frombuffer(audio, "<i2").astype(np.float32) / 32768
    reported: list[LiveTranslation] = []
    session.on_window(owned.add)
    for event in [*session.push(samples), *session.close()]:
        reported += live.take(event)
    assert result == [item.text for item in reported if item.is_final]
    assert any(result)
