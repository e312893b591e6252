"""A CTC network behind the APIs: the clients of OpenAI, Deepgram and Wyoming, and the socket of the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from sottovoce.api import load_model
from sottovoce.network_model import CtcModel
from sottovoce.server.settings import Listening
from sottovoce.types import Partial
from tests.server.conversation import exchanged
from tests.server.servers import CLIPS, ServerThread, serving
from tests.server.test_listen import heard_by_client, pcm_of

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
"""Deepgram's client asks websockets for what is old there."""


@pytest.fixture(scope="module")
def model() -> CtcModel:
    network = load_model("ctc:nano")
    assert isinstance(network, CtcModel)
    return network


@pytest.fixture(scope="module")
def server(model: CtcModel) -> Iterator[ServerThread]:
    with serving(model, wyoming=Listening("127.0.0.1", 0)) as running:
        yield running


def test_openai_client_gets_the_text_of_the_library_and_keywords_are_hotwords(
    model: CtcModel, server: ServerThread
) -> None:
    recording = CLIPS / "en.flac"
    expected = model.transcribe(recording).collect()
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        request = {"model": "nano", "file": recording, "response_format": "verbose_json"}
        answer = client.audio.transcriptions.create(**request, timestamp_granularities=["word"])  # type: ignore[call-overload]
        assert answer.text == expected.text
        assert [word.word for word in answer.words] == [word.word.strip() for word in expected.words]
        keyword = expected.words[0].word.strip()[:2] + "zz"
        boosted = client.audio.transcriptions.create(**request, extra_body={"hotwords": keyword})  # type: ignore[call-overload]
        assert boosted.text == model.transcribe(recording, fusion=model.fusion(hotwords=[keyword])).text
        with pytest.raises(BadRequestError, match="prompt: expected a Whisper model"):
            client.audio.transcriptions.create(**request, prompt="names")  # type: ignore[call-overload]


def test_live_words_are_those_of_a_session(model: CtcModel, server: ServerThread) -> None:
    audio = pcm_of(CLIPS / "en.flac")
    with model.session() as session:
        events = session.push(np.frombuffer(audio, "<i2")) + session.close()
    expected = [word.word for event in events if isinstance(event, Partial) for word in event.words]
    messages, _ = exchanged(server, "/v1/live", audio, json.dumps({"type": "close"}))
    said = [word["word"] for message in messages if message["type"] == "partial" for word in message["words"]]
    assert said == expected
    results = [message for message in heard_by_client(server, audio) if message.type == "Results"]
    texts = [result.channel.alternatives[0].transcript for result in results if result.is_final]
    assert " ".join(texts).lower().split() == "".join(expected).lower().split()


def test_wyoming_client_gets_the_text_of_the_library(model: CtcModel, server: ServerThread) -> None:
    pytest.importorskip("wyoming", reason="wyoming is not installed")
    from tests.server.test_wyoming import text_of

    audio = pcm_of(CLIPS / "en.flac")
    answers = asyncio.run(text_of(server, audio, language="en"))
    samples = np.frombuffer(audio, "<i2").astype(np.float32) / 2**15
    expected = model.transcribe(samples, language="en").text
    kind, said = answers[-1]
    assert (kind, said["text"], said["language"]) == ("transcript", expected.strip(), "en")
