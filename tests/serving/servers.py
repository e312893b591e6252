"""Settings for servers of tests, and a model whose work takes as long as a test wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import torch

from sottovoce.api import Model
from sottovoce.engine.calls import CallGenerator
from sottovoce.errors import OptionError
from sottovoce.serving.http.server import ServerThread
from sottovoce.serving.settings import (
    Access,
    JobSettings,
    Listening,
    ModelSettings,
    ServerLimits,
    ServerSettings,
    TranslationSettings,
    Work,
    WyomingAddress,
)
from sottovoce.types import SAMPLE_RATE, Event, Final, Partial, Samples, Word

CLIPS = Path(__file__).parents[2] / "examples" / "clips"


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
        Work(forecast=False),
    )


class SlowModel:
    """Says a word for every second of audio; each call takes as long as `work` does."""

    name = "slow"
    languages = ("en", "de")
    backend = SimpleNamespace(device=torch.device("meta"), own_threads=False)
    """It computes nothing, as these sessions do their work themselves; one engine on anything but a CPU."""

    def __init__(self, work: Callable[[], None] = lambda: None, word: str = " word") -> None:
        self.work = work
        self.word = word
        self.n_open = 0
        self.n_calls = 0
        self.threads: set[str] = set()

    def session(self, languages: object = None, **options: object) -> SlowSession:
        if languages == ("xx",):
            raise OptionError("language 'xx': this model knows en, de")
        self.n_open += 1
        return SlowSession(self)

    def fusion(self, hotwords: object) -> None:
        """Boost nothing."""

    def transcribe(self, source: object, **options: object) -> SlowFile:
        return SlowFile(self)


class SlowSession:
    def __init__(self, model: SlowModel) -> None:
        self._model = model
        self._n_samples = 0
        self._words: list[Word] = []
        self._n_final = 0

    def listen(self, pcm: Samples, *, newest_only: bool = False) -> CallGenerator[list[Event]]:
        yield from ()
        return self.push(pcm)

    def conclude(self) -> CallGenerator[list[Event]]:
        yield from ()
        said, self._n_final = self._words[self._n_final :], len(self._words)
        return [self._final(said)] if said else []

    def finish(self) -> CallGenerator[list[Event]]:
        yield from ()
        return self.close()

    def push(self, pcm: Samples) -> list[Event]:
        self._model.n_calls += 1
        self._model.threads.add(threading.current_thread().name)
        self._model.work()
        self._n_samples += len(pcm)
        seconds = self._n_samples // SAMPLE_RATE
        new = [Word(self._model.word, at, at + 1.0, 1.0, "en") for at in range(len(self._words), seconds)]
        self._words += new
        if not new:
            return []
        text = "".join(word.word for word in new)
        return [Partial(new[0].start, new[-1].end, text, "en", tuple(new), float(seconds))]

    def close(self) -> list[Event]:
        said, self._n_final = self._words[self._n_final :], len(self._words)
        return [self._final(said)] if said else []

    def _final(self, words: list[Word]) -> Final:
        text, end = "".join(word.word for word in words).strip(), words[-1].end
        return Final(words[0].start, end, text, "en", tuple(words), end)


class SlowFile:
    """A recording that never ends, until it is closed."""

    def __init__(self, model: SlowModel) -> None:
        self._model = model
        self.is_closed = False

    def __iter__(self) -> SlowFile:
        return self

    def __next__(self) -> object:
        if self.is_closed:
            raise StopIteration
        self._model.n_calls += 1
        self._model.work()
        from sottovoce.types import Segment

        return Segment(0, 0.0, 1.0, " word", "en")

    def next_segment(self) -> CallGenerator[object]:
        yield from ()
        return next(self, None)

    def close(self) -> None:
        self.is_closed = True


@contextmanager
def serving(
    model: SlowModel | Model,
    *,
    limits: ServerLimits | None = None,
    access: Access | None = None,
    port: int = 0,
    wyoming: WyomingAddress | None = None,
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


def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.02)
