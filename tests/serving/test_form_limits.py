"""What a form may hold in all, and that nothing of it is worked on where others wait for it."""

from __future__ import annotations

import base64
import threading
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from sottovoce.serving.http.server import ServerThread
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.forms import MOST_LIST_TEXT, Fields
from sottovoce.serving.recordings import requests
from sottovoce.serving.recordings.uploads import FORM_BYTES
from sottovoce.serving.scheduling.worker import THREAD_NAME
from sottovoce.types import Transcript
from tests.serving.servers import CLIPS, SlowModel, serving
from tests.serving.test_uploads import wav

PATH = "/v1/audio/transcriptions"


@pytest.mark.parametrize("name", ["keywords", "languages", "include", "timestamp_granularities"])
def test_a_list_has_a_limit_in_all(name: str) -> None:
    half = "a" * 1_000
    within = Fields([(f"{name}[]", half)] * (MOST_LIST_TEXT // 1_000))
    assert len(within.many(name)) == MOST_LIST_TEXT // 1_000
    with pytest.raises(ApiError, match=f"{MOST_LIST_TEXT} characters in all, got {MOST_LIST_TEXT + 1_000}"):
        Fields([(f"{name}[]", half)] * (MOST_LIST_TEXT // 1_000 + 1)).many(name)


def test_a_form_of_many_keywords_is_refused(server: ServerThread) -> None:
    keywords = [f"{i:04} " + "word " * 199 for i in range(300)]
    files = {"file": ("en.flac", (CLIPS / "en.flac").read_bytes())}
    answer = httpx.post(server.url + PATH, data={"keywords[]": keywords}, files=files)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "keywords"


def test_fields_have_a_limit_together(server: ServerThread) -> None:
    fields = {"known_speaker_references[]": ["a" * 7_000_000] * (FORM_BYTES // 7_000_000 + 1)}
    answer = httpx.post(server.url + PATH, data=fields, files={"file": ("a.wav", wav(16_000))})
    assert answer.status_code == 400
    assert "Fields exceeded maximum size" in answer.json()["error"]["message"]


class PhraseModel(SlowModel):
    """Notes the thread in which phrases become part of a search."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = SimpleNamespace(encode=lambda text: [])
        self.fusion_threads: list[str] = []

    def fusion(self, hotwords: object) -> object:
        self.fusion_threads.append(threading.current_thread().name)
        return object()

    def transcribe(self, source: object, **options: object) -> Any:
        assert options["fusion"] is not None
        return EmptyFile()


class EmptyFile:
    def next_segment(self) -> Any:
        yield from ()
        return None

    def collect(self) -> Transcript:
        return Transcript((), "en", 1.0, "phrases")

    def close(self) -> None:
        pass


def test_phrases_are_prepared_off_the_threads_of_the_model() -> None:
    model = PhraseModel()
    with serving(model) as server:
        answer = httpx.post(
            server.url + PATH, data={"keywords[]": ["garden"]}, files={"file": ("a.wav", wav(16_000))}
        )
    assert answer.status_code == 200
    (name,) = model.fusion_threads
    assert not name.startswith((THREAD_NAME, "sottovoce-server"))


def test_the_same_phrases_are_prepared_once() -> None:
    model = PhraseModel()
    with serving(model) as server:
        for phrase in ("garden", "garden", "gate", "garden"):
            files = {"file": ("a.wav", wav(16_000))}
            assert (
                httpx.post(server.url + PATH, data={"keywords[]": [phrase]}, files=files).status_code == 200
            )
    assert len(model.fusion_threads) == 2


def test_a_known_speaker_may_have_half_a_minute(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noted(*given: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return np.zeros(16_000 * 30, np.float32)

    monkeypatch.setattr(requests, "load_audio", noted)
    reference = "data:audio/wav;base64," + base64.b64encode(wav(3 * 16_000 * 30)).decode()
    fields = {
        "response_format": "diarized_json",
        "known_speaker_names[]": ["Ann", "Ben"],
        "known_speaker_references[]": [reference, reference],
        "temperature": "9",
    }
    answer = httpx.post(server.url + PATH, data=fields, files={"file": ("a.wav", wav(16_000))})
    assert answer.json()["error"]["param"] != "known_speaker_references[]"
    fields["temperature"] = "0"
    httpx.post(server.url + PATH, data=fields, files={"file": ("a.wav", b"none")})
    assert len(threads) == 2
    assert all(name.startswith("sottovoce-decode") for name in threads)
