"""Servers of tests, models whose work takes as long as a test wants, and requests to them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import httpx
import numpy as np
import torch

from sottovoce.api import Model
from sottovoce.errors import OptionError
from sottovoce.runtime.batching import Priority
from sottovoce.runtime.calls import Request, RunOnHost, Runtime, Steps
from sottovoce.server.models import JOIN_TIMEOUT_S
from sottovoce.server.server import Server
from sottovoce.server.services import Services
from sottovoce.server.settings import Access, Listening, ModelSettings, ServerSettings, Work
from sottovoce.server.worker import Worker
from sottovoce.streaming.live_session import EventNumbers, LiveSession, UtteranceNumbers
from sottovoce.streaming.sources import SourcesSession
from sottovoce.types import SAMPLE_RATE, Event, Final, Partial, Samples, Segment, Transcript, Word
from tests.runtime.fake import FakeBackend, Script

T = TypeVar("T")
CLIPS = Path(__file__).parents[2] / "examples" / "clips"
UPGRADE = (
    "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    "sec-websocket-key: c290dG92b2NlIHNvdHRvdg==\r\n"
)
"""Headers of the handshake of a WebSocket."""
SECOND = bytes(2 * SAMPLE_RATE)
"""Of silence, as live audio."""
TRANSCRIPTIONS = "/v1/audio/transcriptions"
KEY = "open-sesame"
LOCKED = Access(api_keys=(KEY,))


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


class Gate:
    """Work that waits until it may go on."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self.n_waiting = 0

    @property
    def is_open(self) -> bool:
        return self._is_open.is_set()

    def __call__(self) -> None:
        self.n_waiting += 1
        self._is_open.wait(30)

    def open(self) -> None:
        self._is_open.set()


class SlowModel:
    """Says a word for every second (or `word_s`) of audio; each call takes as long as `work` does."""

    name = "slow"
    languages: tuple[str, ...] = ("en", "de")
    runtime = SimpleNamespace(
        backend=SimpleNamespace(device=torch.device("meta"), own_threads=False, runtime="none")
    )
    """It computes nothing, as these sessions do their work themselves; one engine on anything but a CPU."""
    beam_size = 5
    can_translate = can_detect_languages = False

    def __init__(
        self,
        work: Callable[[], None] = lambda: None,
        word: str = " word",
        word_s: float = 1.0,
        session: Callable[[SlowModel, Runtime | None], SlowSession] | None = None,
    ) -> None:
        self.work = work
        self.word = word
        self.word_s = word_s
        self._make_session = session or SlowSession
        self.n_calls = 0
        self.threads: set[str] = set()

    def prepare(self) -> None:
        """Has no encoder."""

    def session(
        self, languages: object = None, runtime: Runtime | None = None, **options: object
    ) -> SlowSession:
        if languages == ("xx",):
            raise OptionError("language 'xx': this model knows en, de")
        return numbered(self._make_session(self, runtime))

    def sources_session(self, sources: Sequence[str], **given: Any) -> SourcesSession:
        return SourcesSession({name: cast("LiveSession", self.session(**given)) for name in sources})

    def fusion(self, hotwords: object) -> object:
        """Boost nothing."""
        return None

    def n_prompt_tokens(self, text: str) -> int:
        """Return one a word."""
        return len(text.split())

    def transcribe(self, source: object, runtime: Runtime | None = None, **options: object) -> SlowFile:
        return SlowFile(self, runtime)

    def do(self, runtime: Runtime | None) -> None:
        """Work as a call of the model."""
        if runtime is None:
            self._call()
        else:
            runtime.run(RunOnHost(self._call))

    def _call(self) -> None:
        self.n_calls += 1
        self.threads.add(threading.current_thread().name)
        self.work()


class SlowSession:
    def __init__(self, model: SlowModel, runtime: Runtime | None = None) -> None:
        self._model = model
        self.runtime = runtime
        self._n_samples = 0
        self._words: list[Word] = []
        self._n_final = 0
        self.number_by(EventNumbers())

    def number_by(self, numbers: EventNumbers, source: str | None = None) -> None:
        self.numbers, self.utterances = numbers, UtteranceNumbers(numbers, source)

    def words(self, n: int) -> list[Word]:
        """The first words of the session, at most `n`."""
        text, word_s = self._model.word, self._model.word_s
        return [Word(text, i * word_s, (i + 1) * word_s, 1.0, "en") for i in range(n)]

    def push_request(self, pcm: Samples, **how: object) -> Request[list[Event]]:
        return RunOnHost(lambda: self.push(pcm, **how))

    def end_request(self) -> Steps[list[Event]]:
        return self.end()
        yield

    def finalize_request(self) -> Steps[list[Event]]:
        return self.finalize()
        yield

    def push(self, pcm: Samples, **how: object) -> list[Event]:
        self._model.do(None)
        self._n_samples += len(pcm)
        new = self.words(int(self._n_samples / SAMPLE_RATE / self._model.word_s))[len(self._words) :]
        self._words += new
        if not new:
            return []
        text = "".join(word.word for word in new)
        return [Partial(new[0].start, new[-1].end, text, "en", tuple(new), new[-1].end)]

    def finalize(self) -> list[Event]:
        said, self._n_final = self._words[self._n_final :], len(self._words)
        return [self._final(said)] if said else []

    def close(self) -> list[Event]:
        return self.finalize()

    def end(self) -> list[Event]:
        return self.close()

    def discard(self) -> None:
        """It has no second pass."""

    def on_finals(self, notify: Callable[[], None], has_time: Callable[[], bool]) -> None:
        """It has no second pass."""

    def on_window(self, add: Callable[..., None]) -> None:
        """It has no encoder."""

    def _final(self, words: list[Word]) -> Final:
        text, end = "".join(word.word for word in words).strip(), words[-1].end
        return Final(words[0].start, end, text, "en", tuple(words), end)


def numbered(session: SlowSession) -> SlowSession:
    """Number the events of its outermost calls; a source is the speaker of its words."""
    calls = []

    def spoken(event: Event) -> Event:
        if session.utterances.source is None or not isinstance(event, Partial | Final):
            return event
        return replace(event, words=tuple(replace(w, speaker=session.utterances.source) for w in event.words))

    def of(call: Callable[..., list[Event]]) -> Callable[..., list[Event]]:
        def run(*args: Any, **options: Any) -> list[Event]:
            calls.append(call)
            try:
                events = call(*args, **options)
            finally:
                calls.pop()
            if calls:
                return events
            return session.numbers.numbered(session.utterances.numbered(map(spoken, events)))

        return run

    for name in ("push", "finalize", "end", "close"):
        setattr(session, name, of(getattr(session, name)))
    return session


class SlowFile:
    """A recording that never ends, until it is closed."""

    def __init__(self, model: SlowModel, runtime: Runtime | None = None) -> None:
        self._model = model
        self._runtime = runtime
        self._is_closed = False

    def __next__(self) -> object:
        if self._is_closed:
            raise StopIteration
        self._model.do(self._runtime)
        return Segment(0, 0.0, 1.0, " word", "en")

    def close(self) -> None:
        self._is_closed = True


class QuietModel(SlowModel):
    """Recordings hold no word; each takes as long as `work` does."""

    def transcribe(self, source: object, runtime: Runtime | None = None, **options: object) -> SlowFile:
        return QuietFile(self, runtime)


class QuietFile(SlowFile):
    detection = None

    def __next__(self) -> object:
        self._model.do(self._runtime)
        raise StopIteration

    def collect(self) -> Transcript:
        return Transcript((), "en", 1.0, "quiet")


@contextmanager
def working(n_engines: int = 1, **options: Any) -> Iterator[Worker]:
    """A worker of engines without a model, for functions and calls that need none."""
    worker = Worker(FakeBackend(Script()), n_engines=n_engines, **options)
    yield worker
    worker.close()
    worker.join(20)


def threads_of_servers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("sottovoce-")}


def submit(worker: Worker, work: Callable[[], T], priority: Priority = Priority.LIVE) -> Future[T]:
    """Submit work that the model does."""
    caller = worker.runtime.caller()
    return worker.submit(lambda: caller.run(RunOnHost(work)), priority, caller)


@contextmanager
def serving(
    model: object, *, models: ModelSettings | None = None, port: int = 0, **changes: Any
) -> Iterator[ServerThread]:
    """A server of a model, or of those that a function opens by name. changes: of its settings."""
    work = Work(forecast=False, longest_interval_s=0.5)
    settings = ServerSettings(models or ModelSettings("nano"), Listening(port=port), work=work)
    open_model = cast("Callable[[str], Model]", model if callable(model) else lambda name: model)
    with ServerThread(replace(settings, **changes), open_model) as running:
        wait_until(lambda: running.services.is_ready, 60.0)
        yield running


def head(path: str, *lines: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{''.join(lines)}\r\n".encode()


@contextmanager
def opened(server: ServerThread, beginning: bytes = b"") -> Iterator[socket.socket]:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as created:
        created.sendall(beginning)
        yield created


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def wav(speech: int | Samples, value: int = 0) -> bytes:
    """A recording of one channel at 16 kHz: of samples (n,), or of so many times the value."""
    codes = np.full(speech, value) if isinstance(speech, int) else speech * 32767
    body = codes.astype("<i2").tobytes()
    head = b"WAVEfmt " + (16).to_bytes(4, "little") + b"\x01\x00\x01\x00"
    head += (16_000).to_bytes(4, "little") + (32_000).to_bytes(4, "little") + b"\x02\x00\x10\x00"
    head += b"data" + len(body).to_bytes(4, "little")
    return b"RIFF" + (len(head) + len(body)).to_bytes(4, "little") + head + body


def post(
    server: ServerThread,
    path: str = TRANSCRIPTIONS,
    data: bytes = wav(SAMPLE_RATE),
    *,
    name: str = "talk.wav",
    key: str = "",
    **fields: Any,
) -> httpx.Response:
    """Send a recording in a form."""
    files = {"file": (name, data, "application/octet-stream")}
    return httpx.post(server.url + path, files=files, data=fields, headers=bearer(key), timeout=120)


def wait_until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.02)
