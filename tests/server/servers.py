"""Settings for servers of tests, and a model whose work takes as long as a test wants."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from sottovoce.api import Model
from sottovoce.errors import OptionError
from sottovoce.runtime.calls import Runtime
from sottovoce.server.models import JOIN_TIMEOUT_S
from sottovoce.server.server import Server
from sottovoce.server.services import Services
from sottovoce.server.settings import (
    Access,
    JobSettings,
    Listening,
    ModelSettings,
    ServerLimits,
    ServerSettings,
    TranslationSettings,
    Work,
)
from sottovoce.server.worker import Worker
from sottovoce.types import SAMPLE_RATE, Event, Final, Partial, Samples, Transcript, Word
from tests.runtime.fake import FakeBackend, Script

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
UPGRADE = (
    "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    "sec-websocket-key: c290dG92b2NlIHNvdHRvdg==\r\n"
)
"""Headers of the handshake of a WebSocket."""


class ServerThread:
    """A server in a thread; inside its context it answers at `url`."""

    def __init__(self, settings: ServerSettings, open_model: Callable[[str], Model]) -> None:
        self._listening = threading.Event()
        self._port = 0
        self._settings = settings
        self.server = Server(settings, open_model, self._note)
        self._thread = threading.Thread(
            target=self.server.serve_until_ended, name="sottovoce-server", daemon=True
        )

    @property
    def services(self) -> Services:
        return self.server.services

    @property
    def state(self) -> Any:
        """The state of the app: its jobs and captions."""
        return self.server.config.app.state  # type: ignore[union-attr]

    @property
    def address(self) -> str:
        return f"{self._settings.listening.host}:{self._port}"

    @property
    def url(self) -> str:
        return f"{self._settings.listening.scheme}://{self.address}"

    def __enter__(self) -> ServerThread:
        self._thread.start()
        if not self._listening.wait(60.0):
            self.stop()
            raise RuntimeError("server: expected it to listen within 60 s")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_until_ready(self, within_s: float = 60.0) -> None:
        """Wait for the default model. Raises: TimeoutError."""
        end = time.monotonic() + within_s
        while not self.services.is_ready:
            if time.monotonic() > end:
                raise TimeoutError(f"server: expected its model within {within_s:g} s")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server and all of its threads. Raises: RuntimeError if it does not end."""
        self.server.should_exit = True
        within_s = self._settings.limits.shutdown_s + 2 * JOIN_TIMEOUT_S
        self._thread.join(within_s)
        if self._thread.is_alive():
            raise RuntimeError(f"server: expected it to end within {within_s:g} s")

    def _note(self, port: int) -> None:
        self._port = port
        self._listening.set()


def settings(
    *,
    limits: ServerLimits | None = None,
    access: Access | None = None,
    models: ModelSettings | None = None,
    port: int = 0,
) -> ServerSettings:
    return ServerSettings(
        models or ModelSettings("nano"),
        Listening(port=port),
        access or Access(),
        limits or ServerLimits(),
        Work(forecast=False, longest_interval_s=0.5),
    )


class SlowModel:
    """Says a word for every second (or `word_s`) of audio; each call takes as long as `work` does."""

    name = "slow"
    languages = ("en", "de")
    backend = SimpleNamespace(device=torch.device("meta"), own_threads=False)
    """It computes nothing, as these sessions do their work themselves; one engine on anything but a CPU."""
    tokenizer = SimpleNamespace(is_multilingual=False)
    """It refuses to translate."""

    def __init__(
        self, work: Callable[[], None] = lambda: None, word: str = " word", word_s: float = 1.0
    ) -> None:
        self.work = work
        self.word = word
        self.word_s = word_s
        self.n_open = 0
        self.n_calls = 0
        self.threads: set[str] = set()

    def session(
        self, languages: object = None, runtime: Runtime | None = None, **options: object
    ) -> SlowSession:
        if languages == ("xx",):
            raise OptionError("language 'xx': this model knows en, de")
        self.n_open += 1
        return SlowSession(self, runtime)

    def fusion(self, hotwords: object) -> None:
        """Boost nothing."""

    def transcribe(self, source: object, runtime: Runtime | None = None, **options: object) -> SlowFile:
        return SlowFile(self, runtime)

    def do(self, runtime: Runtime | None) -> None:
        """Work as a call of the model."""
        if runtime is None:
            self._call()
        else:
            runtime.run_on_host(self._call)

    def _call(self) -> None:
        self.n_calls += 1
        self.threads.add(threading.current_thread().name)
        self.work()


class SlowSession:
    def __init__(self, model: SlowModel, runtime: Runtime | None = None) -> None:
        self._model = model
        self._runtime = runtime
        self._n_samples = 0
        self._words: list[Word] = []
        self._n_final = 0

    def finalize(self) -> list[Event]:
        said, self._n_final = self._words[self._n_final :], len(self._words)
        return [self._final(said)] if said else []

    def push(self, pcm: Samples, *, newest_only: bool = False, greedy: bool = False) -> list[Event]:
        self._model.do(self._runtime)
        self._n_samples += len(pcm)
        text, word_s = self._model.word, self._model.word_s
        n = int(self._n_samples / SAMPLE_RATE / word_s)
        new = [Word(text, i * word_s, (i + 1) * word_s, 1.0, "en") for i in range(len(self._words), n)]
        self._words += new
        if not new:
            return []
        text = "".join(word.word for word in new)
        return [Partial(new[0].start, new[-1].end, text, "en", tuple(new), new[-1].end)]

    def close(self) -> list[Event]:
        said, self._n_final = self._words[self._n_final :], len(self._words)
        return [self._final(said)] if said else []

    def _final(self, words: list[Word]) -> Final:
        text, end = "".join(word.word for word in words).strip(), words[-1].end
        return Final(words[0].start, end, text, "en", tuple(words), end)


class SlowFile:
    """A recording that never ends, until it is closed."""

    def __init__(self, model: SlowModel, runtime: Runtime | None = None) -> None:
        self._model = model
        self._runtime = runtime
        self.is_closed = False

    def __iter__(self) -> SlowFile:
        return self

    def __next__(self) -> object:
        if self.is_closed:
            raise StopIteration
        self._model.do(self._runtime)
        from sottovoce.types import Segment

        return Segment(0, 0.0, 1.0, " word", "en")

    def close(self) -> None:
        self.is_closed = True


class QuietModel(SlowModel):
    """Recordings hold no word; each takes as long as `work` does."""

    def transcribe(self, source: object, runtime: Runtime | None = None, **options: object) -> SlowFile:
        return QuietFile(self, runtime)


class QuietFile(SlowFile):
    def __next__(self) -> object:
        self._model.do(self._runtime)
        raise StopIteration

    def collect(self) -> Transcript:
        return Transcript((), "en", 1.0, "quiet")


def make_worker(n_engines: int = 1, **options: Any) -> Worker:
    """A worker of engines without a model, for functions and calls that need none."""
    return Worker(FakeBackend(Script()), n_engines=n_engines, **options)


@contextmanager
def serving(
    model: SlowModel | Model,
    *,
    limits: ServerLimits | None = None,
    access: Access | None = None,
    port: int = 0,
    wyoming: Listening | None = None,
    work: Work | None = None,
    listening: Listening | None = None,
    translation: TranslationSettings | None = None,
    jobs: JobSettings | None = None,
) -> Iterator[ServerThread]:
    """A server of that model."""
    wanted = settings(limits=limits, access=access, port=port)
    wanted = replace(wanted, wyoming=wyoming, translation=translation, jobs=jobs)
    wanted = replace(wanted, work=work or wanted.work, listening=listening or wanted.listening)
    with ServerThread(wanted, lambda name: cast(Model, model)) as running:
        running.wait_until_ready()
        yield running


def head(path: str, *lines: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{''.join(lines)}\r\n".encode()


@contextmanager
def opened(server: ServerThread, beginning: bytes = b"") -> Iterator[socket.socket]:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as made:
        made.sendall(beginning)
        yield made


def wait_until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.02)
