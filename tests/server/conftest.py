"""A real server on a free port of this machine, with the bundled model or one that a test controls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from sottovoce.api import Model, load_model
from tests.server.servers import CLIPS, ServerThread, settings


@pytest.fixture(scope="session")
def nano() -> Model:
    return load_model("nano", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def server(nano: Model) -> Iterator[ServerThread]:
    with ServerThread(settings(), lambda name: nano) as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(scope="session")
def client(server: ServerThread) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def _threads_end() -> Iterator[None]:
    """Servers of tests end before the interpreter does: a thread that it finds in a model makes it crash."""
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("sottovoce-")]
    assert left == []


@pytest.fixture
def english() -> Path:
    return CLIPS / "en.flac"
