"""Recordings that one model drafts and another one reads again, in a server where people speak meanwhile."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import pytest

from sottovoce.api import Model
from sottovoce.cli.main import run
from sottovoce.models.backend import EncoderOutput
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.options.decoding import DeferralOptions
from sottovoce.server.settings import JobSettings, ModelSettings, Work
from sottovoce.types import Features
from tests.offline.transcribing import WORLD, at, script
from tests.runtime.fake import FAKE_DIMS, FakeBackend, Script
from tests.server.servers import CLIPS, TRANSCRIPTIONS, ServerThread, post, serving, wait_until
from tests.server.test_live import clip, talk

ENGLISH = (CLIPS / "en.flac").read_bytes()
ALL = DeferralOptions(min_avg_logprob=0.0)
SAID = script(at(0), *[WORLD] * 3, at(20), at(20))


class SecondBackend(FakeBackend):
    """Says its words once `gate` is open, and remembers in which threads."""

    def __init__(self, n_vocab: int = FAKE_DIMS.n_vocab) -> None:
        said = SAID if n_vocab == FAKE_DIMS.n_vocab else Script()
        super().__init__(said, dims=replace(FAKE_DIMS, n_vocab=n_vocab))
        self.gate = threading.Event()
        self.gate.set()
        self.n_waiting = 0

    def encode(self, features: Features) -> EncoderOutput:
        self.n_waiting += 1
        assert self.gate.wait(60.0)
        self.n_waiting -= 1
        return super().encode(features)


def model_of(backend: FakeBackend) -> Model:
    about = SimpleNamespace(name="second", trained_tokens=None, languages=None, ctc_head=None, mode_key=None)
    return Model(cast(Checkpoint, about), backend)


@contextmanager
def both(
    nano: Model, second: SecondBackend, deferral: DeferralOptions = ALL, jobs: JobSettings | None = None
) -> Iterator[ServerThread]:
    models = ModelSettings("nano", second="second", deferral=deferral)
    opened = {"nano": nano, "second": model_of(second)}
    work = Work(engines=1, forecast=False)
    with serving(opened.__getitem__, models=models, jobs=jobs, work=work) as server:
        yield server


def openai(server: ServerThread) -> str:
    answer = post(server, data=ENGLISH, model="nano", language="en")
    assert answer.status_code == 200, answer.text
    return cast(str, answer.json()["text"]).strip()


def deepgram(server: ServerThread) -> str:
    address = f"{server.url}/v1/listen?language=en"
    answer = httpx.post(address, content=ENGLISH, timeout=120).json()
    return cast(str, answer["results"]["channels"][0]["alternatives"][0]["transcript"]).strip()


def inference(server: ServerThread) -> str:
    answer = post(server, "/inference", ENGLISH, language="en", response_format="json")
    return cast(str, answer.json()["text"]).strip()


def job(server: ServerThread) -> str:
    address = f"{server.url}/v1/jobs/{post(server, '/v1/jobs', ENGLISH, language='en').json()['id']}"
    wait_until(lambda: httpx.get(address).json()["status"] == "succeeded", 60.0)
    return cast(str, httpx.get(address).json()["result"]["text"]).strip()


@pytest.mark.long
def test_every_api_of_files_has_what_is_in_doubt_read_again(nano: Model, tmp_path: Path) -> None:
    second = SecondBackend()
    with both(nano, second, jobs=JobSettings(str(tmp_path))) as server:
        for ask in (openai, deepgram, inference, job):
            n_before = second.n_encoded
            assert set(re.findall(r"\w+", ask(server).lower())) == {"world"}, ask.__name__
            assert second.n_encoded > n_before


def test_what_is_sure_stays_the_drafts(nano: Model) -> None:
    second, sure = SecondBackend(), DeferralOptions(min_avg_logprob=-1e3, min_word_prob=0.0)
    alone = nano.transcribe(CLIPS / "en.flac", language="en", beam_size=5).collect().text
    with both(nano, second, sure) as server:
        assert openai(server) == alone.strip()
    assert second.n_encoded == 0


def test_people_speak_while_the_second_model_reads(nano: Model) -> None:
    second = SecondBackend()
    second.gate.clear()
    with both(nano, second) as server, ThreadPoolExecutor() as pool:
        answer = pool.submit(openai, server)
        wait_until(lambda: second.n_waiting > 0)
        began = time.monotonic()
        events, code, _ = talk(server, clip("en"), query="languages=en")
        assert code == 1000
        assert any(message["type"] == "final" and message["text"] for message in events)
        assert any(message["type"] == "partial" for message in events)
        assert time.monotonic() - began < 60.0
        assert not answer.done()
        assert second.n_waiting == 1
        second.gate.set()
        assert answer.result(60) == "world world world"


def test_a_client_that_goes_ends_what_the_second_reads(nano: Model) -> None:
    second = SecondBackend()
    second.gate.clear()
    with both(nano, second) as server:
        client = HTTPConnection(server.address)
        part = b'--x\r\ncontent-disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
        fields = ((b"model", b"", b"nano"), (b"language", b"", b"en"), (b"file", b'; filename="a"', ENGLISH))
        form = b"".join(part % field for field in fields) + b"--x--\r\n"
        kind = {"content-type": "multipart/form-data; boundary=x"}
        client.request("POST", TRANSCRIPTIONS, form, kind)
        wait_until(lambda: second.n_waiting > 0)
        client.close()
        wait_until(lambda: server.services.n_requests == 0)
        second.gate.set()
        wait_until(lambda: second.n_waiting == 0)
        time.sleep(0.2)
        n_encoded = second.n_encoded
        assert n_encoded == 1
        assert openai(server) == "world world world"
        assert second.n_encoded > n_encoded


def test_what_the_second_cannot_read_is_left_to_the_first(nano: Model) -> None:
    second = SecondBackend(n_vocab=51864)
    with both(nano, second) as server:
        answer = post(server, data=(CLIPS / "de.flac").read_bytes(), language="de")
        assert answer.json()["text"].strip()
        assert second.n_encoded == 0
        openai(server)
        assert second.n_encoded > 0


def test_it_is_loaded_with_the_first_and_cannot_be_asked_for(nano: Model) -> None:
    with both(nano, SecondBackend()) as server:
        assert set(server.services.registry.running) == {"nano", "second"}
        names = [item["id"] for item in httpx.get(f"{server.url}/v1/models").json()["data"]]
        assert "second" not in names
        assert post(server, data=ENGLISH, model="second").status_code == 404


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("-m nano --second-model nano", "second model: expected another one than 'nano', which drafts"),
        (
            "-m nano --second-model base --model-memory-mb 200",
            "model memory: expected 377.6 MB or more for 'nano' and 'base', got 200",
        ),
    ],
)
def test_what_cannot_be_is_one_line(words: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--port", "0", *words.split()]) == 2
    (result,) = capsys.readouterr().err.splitlines()
    assert result.startswith(f"error: {line}")
