"""Many sessions on one model: each says what it says alone, and harms nobody else."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.api import load_model
from sottovoce.audio.vad import VadStream
from sottovoce.decoding.decode import WindowDecoder
from sottovoce.errors import OptionError
from sottovoce.language.probe import ProbeOptions
from sottovoce.models.backend import Backend, IncrementalResult, IncrementalWindow
from sottovoce.options.decoding import DecodingOptions
from sottovoce.runtime.batching import (
    Batching,
    BatchingRuntime,
    CallBatcher,
    Caller,
    PendingRequest,
    Priority,
)
from sottovoce.runtime.calls import (
    DecodeCall,
    DetectLanguageCall,
    DirectRuntime,
    IncrementalEncodeCall,
    ModelCall,
    Request,
    Result,
    RunBeside,
    RunOnHost,
    Runtime,
    Steps,
)
from sottovoce.runtime.static_rows import RowPool
from sottovoce.runtime.torch import TorchBackend
from sottovoce.runtime.torch_encoder import eagerly
from sottovoce.runtime.update_interval import INTERVALS_S, JUDGED_EVERY_S, UpdateIntervalController
from sottovoce.streaming.options import LiveOptions, StreamOptions
from sottovoce.streaming.session import Session
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Event, Features, Final, Partial, Samples, Word
from tests.models import tiny
from tests.runtime.fake import FakeBackend, Script
from tests.streaming.sessions import ALIGNATT, TOKENIZER, spoken, words_of
from tests.streaming.speech import ToneDetector, backend, hear, say, silence

WIDE = Batching(encoder_frames=100_000, max_length_ratio=1.0)
NARROW = Batching(encoder_frames=1)


@dataclass(frozen=True)
class Speaker:
    """Somebody who speaks: options, audio, and how much of it comes at a time."""

    options: LiveOptions
    audio: Samples
    chunk: int = 8000

    def session(self, model: Backend, runtime: Runtime | None = None) -> Session:
        return Session(model, TOKENIZER, self.options, vad=VadStream(model=ToneDetector()), runtime=runtime)

    def alone(self, model: Backend) -> list[Event]:
        session = self.session(model)
        events = [event for piece in self.pieces() for event in session.push(piece)]
        return events + session.close()

    def pieces(self) -> list[Samples]:
        return [self.audio[at : at + self.chunk] for at in range(0, len(self.audio), self.chunk)]


def together(
    model: Backend,
    batching: Batching,
    opened: Sequence[Callable[[Runtime], Session]],
    pieces: Sequence[list[Samples]],
) -> tuple[list[list[Event] | Exception], list[Session]]:
    """Every session's events, or what it failed with, and the sessions; each has a thread of its own."""
    shared = BatchingRuntime(model, batching, waits_for_all=True)
    sessions: dict[int, Session] = {}
    with ExitStack() as stack:
        stack.callback(shared.join, 10.0)
        stack.callback(shared.close)
        callers = [stack.enter_context(shared.caller()) for _ in opened]

        def events_of(i: int) -> list[Event] | Exception:
            callers[i].begin(Priority.LIVE, float(i % 3))
            session = sessions[i] = opened[i](callers[i])
            try:
                events = [event for piece in pieces[i] for event in session.push(piece)]
                return events + session.close()
            except Exception as error:
                return error
            finally:
                shared.count_caller(-1)

        with ThreadPoolExecutor(len(opened)) as pool:
            result = list(pool.map(events_of, range(len(opened))))
    return result, [sessions[i] for i in range(len(opened))]


def speakers() -> list[Speaker]:
    """Of every kind, and every length."""
    fast = ProbeOptions(1.0, 0.25, 0.25)
    greedy = replace(ALIGNATT, beam_size=1)
    english = LiveOptions(("en",), switching="off", stream=greedy)
    beams = replace(english, stream=replace(ALIGNATT, beam_size=3))
    several = LiveOptions(("en", "de", "es"), stream=greedy, probe=fast)
    mixed = [*spoken("en", 6), *spoken("de", 7), *spoken("en", 4, seed=1)]
    return [
        Speaker(english, np.concatenate([silence(0.3), say(spoken("en", 9)), silence(1.0)])),
        Speaker(beams, np.concatenate([say(spoken("en", 7, seed=2)), silence(1.5), say(spoken("en", 3))])),
        Speaker(several, np.concatenate([silence(0.5), say(mixed), silence(0.5)]), chunk=3000),
        Speaker(several, say(mixed), chunk=12_000),
        Speaker(several, say(spoken("es", 12))),
        Speaker(replace(english, captions="revisable"), say(spoken("en", 5, seed=3)), chunk=16_000),
    ]


@pytest.mark.quick(1)
@pytest.mark.parametrize("batching", [WIDE, replace(NARROW, rows=2)], ids=str)
def test_events_in_company_are_those_of_a_session_alone(batching: Batching) -> None:
    model = backend()
    alone = [speaker.alone(backend()) for speaker in speakers()]
    opened = [partial(speaker.session, model) for speaker in speakers()]
    pieces = [speaker.pieces() for speaker in speakers()]
    for ours, theirs in zip(together(model, batching, opened, pieces)[0], alone, strict=True):
        assert ours == theirs
        assert any(isinstance(event, Final) for event in theirs)


def assert_alike(ours: Sequence[Event], theirs: Sequence[Event]) -> None:
    """Equal but for rounding of probabilities."""
    for item, other in zip(ours, theirs, strict=True):
        assert type(item) is type(other)
        if isinstance(item, Partial | Final) and isinstance(other, Partial | Final):
            assert (item.text, item.start, item.end, item.language) == (
                other.text,
                other.start,
                other.end,
                other.language,
            )
            for word, same in zip(item.words, other.words, strict=True):
                assert_same_word(word, same)


def assert_same_word(item: Word, other: Word) -> None:
    assert replace(item, probability=0.0) == replace(other, probability=0.0)
    assert item.probability == pytest.approx(other.probability, abs=1e-3)


def test_a_real_network_says_the_same_in_company() -> None:
    """Sessions of one and of several languages, of other ages and lengths, in one running decode."""
    nano = load_model("nano", device="cpu", dtype="float32")
    rng = np.random.default_rng(0)
    kinds: list[dict[str, Any]] = [
        {"languages": "en", "switching": "off", "vad": False},
        {"languages": ["en", "de"], "vad": False},
        {"languages": "de", "vad": False, "stream": StreamOptions(beam_size=2)},
        {"languages": ["en", "de", "es"], "vad": False},
    ]
    voice = [say(spoken("en", 3, seed=i), word_s=0.3 + 0.1 * i) for i in range(len(kinds))]
    audio = [item + rng.normal(0, 0.02, len(item)).astype(np.float32) for item in voice]
    pieces = [[item[at : at + 8000] for at in range(0, len(item), 8000)] for item in audio]
    alone = []
    for kind, owned in zip(kinds, pieces, strict=True):
        session = nano.session(**kind)
        alone.append([event for piece in owned for event in session.push(piece)] + session.close())
    opened = [lambda runtime, kind=kind: nano.session(**kind, runtime=runtime) for kind in kinds]
    result, _ = together(nano.backend, WIDE, opened, pieces)
    for ours, theirs in zip(result, alone, strict=True):
        assert not isinstance(ours, Exception)
        assert_alike(ours, theirs)


class SmallMemory(FakeBackend):
    """Has room for so many windows of a call, and so many rows."""

    def __init__(self, most: int) -> None:
        super().__init__(hear)
        self.most = most
        self.n_refused = 0

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        self._check(len(windows))
        return super().encode_incremental(windows)

    def note_step(self, tokens: Sequence[Sequence[int]]) -> None:
        self._check(len(tokens))

    def _check(self, n: int) -> None:
        if n > self.most:
            self.n_refused += 1
            raise RuntimeError("out of memory")


@pytest.mark.failing_batch
def test_what_is_too_much_together_is_done_one_by_one() -> None:
    some = [speaker for speaker in speakers() if len(speaker.options.languages) == 1]
    some = [speaker for speaker in some if speaker.options.stream.beam_size == 1] * 2
    model = SmallMemory(most=1)
    alone = [speaker.alone(backend()) for speaker in some]
    opened = [partial(speaker.session, model) for speaker in some]
    result, _ = together(model, WIDE, opened, [speaker.pieces() for speaker in some])
    assert result == alone
    assert model.n_refused > 5


class Poisoned(FakeBackend):
    """Fails with whatever holds a window of exactly so many log-mel frames."""

    def __init__(self, n_columns: int) -> None:
        super().__init__(hear)
        self.n_columns = n_columns

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        if any(window.log_mel.shape[1] > self.n_columns for window in windows):
            raise RuntimeError("poison")
        return super().encode_incremental(windows)


class Through(Runtime):
    """Another runtime, which may be replaced."""

    def __init__(self, current: list[Runtime]) -> None:
        self.current = current
        self.backend = current[0].backend

    def run(self, request: Request[Result]) -> Result:
        return self.current[0].run(request)

    def torch_threads(self) -> AbstractContextManager[None]:
        return self.current[0].torch_threads()


def test_who_fails_harms_nobody_else() -> None:
    options = LiveOptions(("en",), switching="off", stream=ALIGNATT)
    some = [Speaker(options, say(spoken("en", n, seed=n))) for n in (5, 12, 6)]
    model = Poisoned(2 * round(50 * 0.4 * 8))
    direct = DirectRuntime(model)
    runtimes: dict[int, list[Runtime]] = {}

    def opened_by(speaker: Speaker, runtime: Runtime) -> Session:
        current = runtimes[speaker.audio.size] = [runtime]
        return speaker.session(model, Through(current))

    opened = [partial(opened_by, speaker) for speaker in some]
    result, sessions = together(model, WIDE, opened, [speaker.pieces() for speaker in some])
    assert isinstance(result[1], RuntimeError)
    for i in (0, 2):
        assert result[i] == some[i].alone(backend())
    model.n_columns = 10_000
    runtimes[some[1].audio.size][0] = direct
    reported = words_of(sessions[1].close())
    assert reported, "the session itself goes on"
    assert " ".join(reported) in " ".join(spoken("en", 12, seed=12))


def pending(
    backend: Backend, call: ModelCall[object], since_s: float = 0.0, priority: Priority = Priority.LIVE
) -> PendingRequest[object]:
    request = PendingRequest(call, Caller(SimpleNamespace(backend=backend), priority, since_s))  # type: ignore[arg-type]
    request.go_on()
    return request


def run_all(batcher: CallBatcher) -> None:
    while batcher.requests:
        batcher.round()


def test_what_is_due_first_is_encoded_first() -> None:
    """And what is of its length goes along, as far as the budget bears it."""
    model = backend()
    calls: list[list[int]] = []
    plain = model.encode_incremental

    def encode_incremental(windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        calls.append([window.log_mel.shape[1] // 2 for window in windows])
        return plain(windows)

    model.encode_incremental = encode_incremental  # type: ignore[method-assign]
    batcher = CallBatcher(model, Batching(encoder_frames=250, max_length_ratio=0.25))
    for n_frames, due_s in ((100, 3.0), (50, 1.0), (48, 4.0), (101, 2.0), (45, 5.0), (52, 6.0), (60, 0.5)):
        window = IncrementalWindow(np.zeros((80, 2 * n_frames), np.float32), model.encoder_mode)
        batcher.submit(pending(model, IncrementalEncodeCall([window]), due_s))
    run_all(batcher)
    assert calls == [[60, 50, 48, 45], [101, 100], [52]]


def decode_call(backend: Backend, seed: int, n: int = 1) -> DecodeCall[Any, Any]:
    """A call that samples from noise, at length."""
    options = DecodingOptions("en", temperature=0.9, sample_len=40, seed=seed, without_timestamps=True)
    mel = torch.randn(n, backend.dims.n_mels, 64, generator=torch.Generator().manual_seed(seed)).numpy()
    encoded = backend.encode(Features(mel, (64,) * n))
    decoder = WindowDecoder(backend, Tokenizer.for_model(backend.dims.n_vocab), options)
    return DecodeCall(decoder, encoded, [options] * n)


def decoding(
    backend: Backend, seed: int, priority: Priority = Priority.FILE, n: int = 1
) -> PendingRequest[object]:
    return pending(backend, decode_call(backend, seed, n), priority=priority)


def texts(results: Any) -> list[tuple[int, ...]]:
    return [each.tokens for each in results]


def network() -> TorchBackend:
    return tiny.backend(tiny.dims(n_vocab=51865, n_text_ctx=64))


@pytest.mark.parametrize("decodes_first", [True, False])
def test_no_recording_waits_for_another_to_end(decodes_first: bool) -> None:
    """Other calls and the decoder steps of a recording take turns, however many there are."""
    model = network()
    batcher = CallBatcher(model, clock=lambda: 0.0)
    request = decoding(model, 1)
    calls = [request] if decodes_first else []
    n_others = 0
    for _ in range(80):
        if not any(isinstance(request.call, RunOnHost) for request in batcher.requests):
            calls.append(pending(model, RunOnHost(list), priority=Priority.FILE))
            n_others += 1
        if not decodes_first and request not in calls:
            calls.append(request)
        while calls:
            batcher.submit(calls.pop(0))
        batcher.round()
        if request.is_done:
            break
        calls = []
    assert request.is_done
    assert n_others > 1


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_recordings_join_and_leave_between_the_steps_of_others(seed: int) -> None:
    """Results are those alone, whoever joins when; the one that came last need not end last."""
    model = network()
    rng = random.Random(seed)
    batcher = CallBatcher(model, Batching(files_together=True), clock=lambda: 0.0)
    some = [decoding(model, number, n=rng.choice([1, 1, 2, 3])) for number in range(6)]
    alone = [item.call.run_alone(model) for item in some if item.call]
    waiting = list(some)
    n_together = 0
    while waiting or batcher.requests:
        while waiting and (not batcher.requests or rng.random() < 0.15):
            batcher.submit(waiting.pop())
        batcher.round()
        n_together = max(n_together, len(batcher.requests))
    assert n_together > 1
    for item, expected in zip(some, alone, strict=True):
        assert texts(item.result()) == texts(expected)


def test_calls_wait_for_the_rows_of_others() -> None:
    """Static memory has room for three windows; calls of four fail, and nobody else."""
    model = network()
    expected = [DirectRuntime(model).run(decode_call(model, seed, n=2)) for seed in range(11, 15)]
    model.pool = RowPool(model.dims, model.dtype, model.device, eagerly, most_recordings=3)
    batcher = CallBatcher(model, clock=lambda: 0.0)
    kinds = [Priority.FILE, Priority.LIVE] * 2
    some = [decoding(model, seed, kind, n=2) for seed, kind in enumerate(kinds, start=11)]
    result = DetectLanguageCall(Tokenizer.for_model(51865), some[0].call.encoded, ())  # type: ignore[attr-defined]
    probes = [pending(model, result, priority=kind) for kind in kinds]
    too_many = decoding(model, 9, n=4)
    for probe in (*some, *probes, too_many):
        batcher.submit(probe)
    run_all(batcher)
    for probe, alone in zip(some, expected, strict=True):
        assert texts(probe.result()) == texts(alone)
    assert all(len(probe.result()) == 2 for probe in probes)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="4 recordings given, expected at most 3"):
        too_many.result()


def test_a_closed_runtime_ends_its_callers() -> None:
    reached, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        assert go_on.wait(10)

    shared = BatchingRuntime(FakeBackend(Script()))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(shared.caller().run, RunOnHost(wait))
        assert reached.wait(10)
        second = pool.submit(shared.caller().run, RunOnHost(wait))
        while not shared.waiting:
            time.sleep(0.001)
        shared.close(ValueError("closed"))
        with pytest.raises(ValueError, match="closed"):
            second.result(10)
        go_on.set()
        first.result(10)
        shared.join(10)
        with pytest.raises(ValueError, match="closed"):
            shared.caller().run(RunOnHost(wait))


def test_no_request_waits_for_work_beside_the_model() -> None:
    reached, go_on = threading.Event(), threading.Event()
    done: SimpleQueue[PendingRequest[object]] = SimpleQueue()

    def wait() -> str:
        reached.set()
        assert go_on.wait(10)
        return "compared"

    def compared() -> Steps[object]:
        result = yield from RunBeside(wait)
        try:
            yield from RunBeside(lambda: 1 / 0)
        except ZeroDivisionError:
            return result, (yield from RunOnHost(lambda: "on the host"))

    shared = BatchingRuntime(FakeBackend(Script()), most_live=1)
    try:
        shared.caller().begin_request(compared(), done.put)
        assert reached.wait(10)
        assert shared.caller().run(RunOnHost(lambda: "other")) == "other"
        assert done.empty()
        go_on.set()
        assert done.get(timeout=10).result() == ("compared", "on the host")
        reached.clear()
        go_on.clear()
        shared.caller().begin_request(RunBeside(wait), done.put)
        assert reached.wait(10)
    finally:
        shared.close(ValueError("closed"))
        go_on.set()
    with pytest.raises(ValueError, match="closed"):
        done.get(timeout=10).result()
    shared.join(10)


ENGINE_AT_WORK = """
import threading
import torch
from sottovoce.runtime.batching import BatchingRuntime
from sottovoce.runtime.calls import RunOnHost
from tests.runtime.fake import FakeBackend, Script

caller = BatchingRuntime(FakeBackend(Script())).caller()
matrix = torch.zeros(1000, 1000)
works = threading.Event()

def multiply():
    for _ in range(40):
        works.set()
        matrix @ matrix

threading.Thread(target=caller.run, args=(RunOnHost(multiply),), daemon=True).start()
assert works.wait(60)
"""


def test_the_interpreter_ends_while_an_engine_works() -> None:
    """A thread that the end of the interpreter finds in native code would abort the process."""
    ended = subprocess.run([sys.executable, "-c", ENGINE_AT_WORK], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def live(
    controller: UpdateIntervalController, now_s: float, seconds: float, *, busy: float, wait_s: float
) -> float:
    """So many seconds in which the model is at work for a part of the time."""
    end_s = now_s + seconds
    while now_s < end_s:
        now_s += 0.1
        controller.note_wait(wait_s)
        controller.note_work(0.1 * busy, now_s)
    return now_s


def test_it_stretches_under_load_and_comes_back() -> None:
    controller = UpdateIntervalController()
    assert controller.interval_s == 0.25
    now_s = live(controller, 0.0, 10.0, busy=0.7, wait_s=0.05)
    assert controller.interval_s == 0.25
    assert not controller.is_greedy
    assert controller.has_spare_time
    now_s = live(controller, now_s, JUDGED_EVERY_S + 0.3, busy=1.0, wait_s=0.4)
    assert controller.interval_s == 0.25
    assert not controller.has_spare_time
    assert controller.is_greedy, "a smaller beam comes before a longer interval"
    assert not controller.is_stretched
    now_s = live(controller, now_s, 2 * JUDGED_EVERY_S, busy=1.0, wait_s=0.4)
    assert controller.interval_s == 0.5
    assert controller.is_stretched
    assert not controller.has_spare_time
    now_s = live(controller, now_s, JUDGED_EVERY_S, busy=1.0, wait_s=3.0)
    assert controller.interval_s == 0.5, "what piled up before is worked off first"
    now_s = live(controller, now_s, 20.0, busy=1.0, wait_s=3.0)
    assert controller.interval_s == INTERVALS_S[-1]
    now_s = live(controller, now_s, 20.0, busy=0.6, wait_s=0.05)
    assert controller.interval_s == INTERVALS_S[-1], "twice as often would be too much again"
    live(controller, now_s, 30.0, busy=0.1, wait_s=0.0)
    assert controller.interval_s == 0.25
    assert not controller.is_greedy
    assert controller.has_spare_time


def test_busy_without_a_queue_is_no_reason() -> None:
    controller = UpdateIntervalController()
    live(controller, 0.0, 20.0, busy=1.0, wait_s=0.05)
    assert controller.interval_s == 0.25


def test_it_stays_within_its_bounds() -> None:
    controller = UpdateIntervalController(longest_s=1.5)
    now_s = live(controller, 0.0, 30.0, busy=1.0, wait_s=3.0)
    assert controller.interval_s == 1.5
    live(controller, now_s, 30.0, busy=0.0, wait_s=0.0)
    assert controller.interval_s == 0.25
    fixed = UpdateIntervalController(longest_s=0.25)
    live(fixed, 0.0, 30.0, busy=1.0, wait_s=3.0)
    assert not fixed.is_greedy, "words are those of the library at any load"
