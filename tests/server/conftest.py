"""Real servers on free ports of this machine, with the bundled model or one that a test controls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest
from openai import OpenAI

from sottovoce.api import Model
from sottovoce.server.settings import JobSettings
from tests.server.servers import CLIPS, Gate, QuietModel, ServerThread, SlowModel, serving, threads_of_servers


@pytest.fixture(scope="module", autouse=True)
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients of HTTP read one certificate each time that one is made; to read all of them takes 50 ms."""
    first, end, _ = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----\n")
    path = tmp_path_factory.mktemp("authority") / "one.pem"
    path.write_text(first + end, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(path))
        yield


@pytest.fixture(scope="session")
def nano(model: Model) -> Model:
    return model


@pytest.fixture(scope="session")
def server(nano: Model) -> Iterator[ServerThread]:
    with serving(nano) as running:
        yield running


@pytest.fixture(scope="session")
def fake_server() -> Iterator[ServerThread]:
    with serving(SlowModel()) as running:
        yield running


@pytest.fixture(scope="session")
def quiet_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """Recordings hold no word; jobs are kept."""
    with serving(QuietModel(), jobs=JobSettings(str(tmp_path_factory.mktemp("jobs")))) as running:
        yield running


@pytest.fixture
def gate() -> Iterator[Gate]:
    created = Gate()
    yield created
    created.open()


@pytest.fixture(scope="module")  # while it is open, no other loop runs in its thread
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    from tests.server.browser_page import launched

    with launched(tmp_path_factory.mktemp("microphone") / "mixed.wav"):
        yield


@pytest.fixture(scope="session")
def client(server: ServerThread) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as created:
        yield created


@pytest.fixture(scope="session", autouse=True)
def _threads_end() -> Iterator[None]:
    """Servers of tests end before the interpreter does: a thread that it finds in a model makes it crash."""
    yield
    assert threads_of_servers() == set()


@pytest.fixture
def english() -> Path:
    return CLIPS / "en.flac"
