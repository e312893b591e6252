"""How many live streams one machine bears: N people who speak at the same time, on one model.

    python -m benchmarks serving load DATA --streams 2,4,6,8 --dtype float32
    python -m benchmarks serving load DATA --streams 4 --alone --dtype bfloat16
    python -m benchmarks serving load DATA --streams 4 --clock real --side engine

Each stream is a joined recording of people (test clips), spoken in real time from a moment of its own. So
many streams are served if 95 % of their words come within 2 s of their end. Sides: `engine`, many sessions
put together (`sottovoce.engine`), on the real clock by the server's own threads; `threads`, each session by
itself in a thread of its own; `processes`, the same with a process and a model for each.

--clock simulated: the clock stands still but for the processor time that the work takes, over --cores, so
that other programs on the machine change nothing; `threads` and `processes` are one side then, `alone`:
streams that share the cores evenly, at what each took alone, without the interpreter's lock or the cache
between them. --clock real: as it is; nothing else may run. --alone: the update interval never stretches, and
texts of sessions in company are compared with those of the same sessions alone.
"""

from __future__ import annotations

import heapq
import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.arguments import benchmark_parser
from benchmarks.serving.server import on_server
from benchmarks.serving.streams import (
    PUSH_S,
    SHARE,
    Report,
    Said,
    Stream,
    memory_mb,
    n_wrong,
    shares,
    streams,
)
from sottovoce.api import Model, load_model
from sottovoce.engine.batching import BatchingExecutor
from sottovoce.engine.calls import Task
from sottovoce.engine.update_interval import INTERVALS_S, UpdateIntervalController
from sottovoce.serving.scheduling.session_handle import AudioAccumulator
from sottovoce.serving.settings import Work
from sottovoce.streaming.session import Session
from sottovoce.types import SAMPLE_RATE, Event


def open_session(model: Model, languages: Sequence[str]) -> Session:
    """languages: that may be spoken; none: all of the model, as the server's clients have it by default."""
    return model.session(list(languages) or None, switching="off" if len(languages) == 1 else "restart")


class Clock:
    """Seconds: of processor time over the cores, and of what is slept through; or as they are."""

    def __init__(self, *, is_real: bool, n_cores: int) -> None:
        self._is_real = is_real
        self._n_cores = n_cores
        self._skipped_s = 0.0
        self._from_s = self._spent_s()

    def __call__(self) -> float:
        return self._spent_s() - self._from_s + self._skipped_s

    def wait_until(self, moment_s: float) -> None:
        left_s = moment_s - self()
        if left_s > 0 and self._is_real:
            time.sleep(left_s)
        elif left_s > 0:
            self._skipped_s += left_s

    def _spent_s(self) -> float:
        return time.monotonic() if self._is_real else time.process_time() / self._n_cores


class TimedEngine(BatchingExecutor):
    """Counts the processor time of each kind of work."""

    spent: dict[str, float]

    def _encode(self) -> None:
        with self._timed("encode"):
            super()._encode()

    def _probe(self) -> None:
        with self._timed("probe"):
            super()._probe()

    def _decode(self) -> None:
        with self._timed("read"):
            super()._decode()

    def _timed(self, name: str) -> Timed:
        return Timed(self.spent, name)


class Timed:
    """Adds what a block takes."""

    def __init__(self, spent: dict[str, float], name: str) -> None:
        self._spent, self._name = spent, name

    def __enter__(self) -> None:
        self._began_s = time.process_time()

    def __exit__(self, *error: object) -> None:
        took_s = time.process_time() - self._began_s
        self._spent[self._name] = self._spent.get(self._name, 0.0) + took_s


class Talker:
    """A stream on the engine: its feed, and the update under way."""

    def __init__(self, stream: Stream, session: Session) -> None:
        self.stream = stream
        self.said = Said()
        self.is_over = False
        self._session = session
        self._held_audio = AudioAccumulator()
        self._fed_s = 0.0
        self._task: Task[list[Event]] | None = None

    def hear(self, now_s: float) -> None:
        """What was said until now."""
        heard_s = min(self.stream.duration_s, PUSH_S * int((now_s - self.stream.from_s) / PUSH_S + 1e-6))
        if heard_s > self._fed_s:
            self._held_audio.add(self.stream.piece(self._fed_s, heard_s))
            self._fed_s = heard_s

    def next_s(self) -> float:
        """When there is more to hear."""
        return self.stream.from_s + self._fed_s + PUSH_S

    def go_on(self, engine: BatchingExecutor, controller: UpdateIntervalController, clock: Clock) -> None:
        """Begin an update, if one is due and none is under way."""
        if self._task is not None and not self._task.is_done:
            return
        due_s = self.stream.from_s + self._fed_s
        is_at_end = self._fed_s >= self.stream.duration_s
        if is_at_end and not self._held_audio.waiting_s:
            if self._task is not None and not self.is_over:
                self.is_over = True
                self._task = engine.begin(self._session.finish(), due_s, lambda task: self._end(task, clock))
        elif is_at_end or self._held_audio.is_due(controller.interval_s):
            pcm = self._held_audio.take()
            steps = self._session.listen(pcm, newest_only=controller.interval_s > INTERVALS_S[0])

            def end(task: Task[list[Event]]) -> None:
                if task.began_s == task.began_s:
                    controller.note_wait(task.began_s - due_s)
                self._end(task, clock)

            self._task = engine.begin(steps, due_s, end)

    @property
    def is_done(self) -> bool:
        return self.is_over and self._task is not None and self._task.is_done

    def _end(self, task: Task[list[Event]], clock: Clock) -> None:
        self.said.add(task.result, clock(), self.stream)


def on_engine(
    model: Model,
    some: Sequence[Stream],
    languages: Sequence[str],
    clock: Clock,
    controller: UpdateIntervalController,
    *,
    is_paced: bool,
) -> Report:
    """All streams put together; is_paced: the interval changes under load."""
    engine = TimedEngine(model.backend, clock=clock)
    engine.spent = {}
    before_mb = memory_mb()
    talkers = [Talker(stream, open_session(model, languages)) for stream in some]
    most_mb, longest_s, began_s = before_mb, 0.0, time.process_time()
    while not all(talker.is_done for talker in talkers):
        now_s = clock()
        for talker in talkers:
            talker.hear(now_s)
            talker.go_on(engine, controller, clock)
        if engine.n_tasks:
            engine.round()
            if is_paced:
                controller.note_work(clock() - now_s, clock())
            longest_s = max(longest_s, controller.interval_s)
            most_mb = max(most_mb, memory_mb())
        else:
            clock.wait_until(min(talker.next_s() for talker in talkers if not talker.is_over))
    return Report(
        "engine",
        [talker.said for talker in talkers],
        shares(engine.spent, time.process_time() - began_s, some),
        (most_mb - before_mb) / len(some),
        longest_s,
    )


@dataclass(frozen=True, slots=True)
class Push:
    """An update of a stream alone: when its audio is there, processor seconds, and what it said."""

    at_s: float
    took_s: float
    events: list[Event] = field(repr=False)


def pushes_of(model: Model, stream: Stream, languages: Sequence[str]) -> list[Push]:
    """A stream by itself, every update done, on this thread."""
    session = open_session(model, languages)
    made = []
    for at in range(0, len(stream.audio), round(PUSH_S * SAMPLE_RATE)):
        piece = stream.audio[at : at + round(PUSH_S * SAMPLE_RATE)]
        began_s = time.process_time()
        events = session.push(piece)
        took_s = time.process_time() - began_s
        made.append(Push((at + len(piece)) / SAMPLE_RATE, took_s, events))
    began_s = time.process_time()
    events = session.close()
    made.append(Push(stream.duration_s, time.process_time() - began_s, events))
    return made


def shared_out(alone: Sequence[list[Push]], some: Sequence[Stream], n_cores: int) -> list[Said]:
    """Streams that share cores evenly, none on more than one: what a thread or a process each comes to."""
    said = [Said() for _ in some]
    waiting = [iter(pushes) for pushes in alone]
    arriving: list[tuple[float, int, Push]] = []
    for i, pushes in enumerate(waiting):
        push = next(pushes)
        heapq.heappush(arriving, (some[i].from_s + push.at_s, i, push))
    working: dict[int, tuple[float, Push]] = {}  # seconds left
    now_s = 0.0
    while arriving or working:
        speed = min(1.0, n_cores / max(1, len(working)))
        ends_s = now_s + min((left_s / speed for left_s, _ in working.values()), default=float("inf"))
        until_s = min(ends_s, arriving[0][0]) if arriving else ends_s
        for i, (left_s, push) in list(working.items()):
            left_s -= (until_s - now_s) * speed
            working[i] = (left_s, push)
            if left_s <= 1e-9:
                del working[i]
                said[i].add(push.events, until_s, some[i])
                following = next(waiting[i], None)
                if following is not None:
                    heapq.heappush(arriving, (max(until_s, some[i].from_s + following.at_s), i, following))
        now_s = until_s
        while arriving and arriving[0][0] <= now_s:
            _, i, push = heapq.heappop(arriving)
            working[i] = (push.took_s, push)
    return said


def talk(model: Model, stream: Stream, languages: Sequence[str], began_s: float, said: Said) -> None:
    """A stream in real time on this thread, and nobody else's."""
    session = open_session(model, languages)
    fed_s = 0.0
    while fed_s < stream.duration_s:
        heard_s = min(stream.duration_s, time.monotonic() - began_s - stream.from_s)
        if heard_s - fed_s < PUSH_S and heard_s < stream.duration_s:
            time.sleep(PUSH_S / 2)
            continue
        events = session.push(stream.piece(fed_s, heard_s))
        said.add(events, time.monotonic() - began_s, stream)
        fed_s = heard_s
    said.add(session.close(), time.monotonic() - began_s, stream)


def on_threads(model: Model, some: Sequence[Stream], languages: Sequence[str]) -> Report:
    said = [Said() for _ in some]
    before_mb, began_s = memory_mb(), time.monotonic()
    threads = [
        threading.Thread(target=talk, args=(model, stream, languages, began_s, one))
        for stream, one in zip(some, said, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Report("threads", said, {}, (memory_mb() - before_mb) / len(some))


def _process(
    place: int, wish: tuple[str, str], stream: Stream, languages: Sequence[str], barrier: Any, results: Any
) -> None:
    torch.set_num_threads(1)
    model = load_model(wish[0], device="cpu", dtype=wish[1])
    warm(model, languages)
    barrier.wait()
    said = Said()
    talk(model, stream, languages, time.monotonic(), said)
    results.put((place, said, memory_mb()))


def on_processes(wish: tuple[str, str], some: Sequence[Stream], languages: Sequence[str]) -> Report:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(len(some)), context.Queue()
    processes = [
        context.Process(target=_process, args=(place, wish, stream, languages, barrier, results))
        for place, stream in enumerate(some)
    ]
    for process in processes:
        process.start()
    found = sorted((results.get() for _ in processes), key=lambda one: one[0])
    for process in processes:
        process.join()
    return Report("processes", [said for _, said, _ in found], {}, sum(mb for _, _, mb in found) / len(found))


def warm(model: Model, languages: Sequence[str]) -> None:
    session = open_session(model, languages)
    session.push(torch.zeros(2 * SAMPLE_RATE).numpy())
    session.close()


def rows(report: Report, some: Sequence[Stream], alone: Sequence[Said] | None = None) -> Iterator[str]:
    wrong, total = n_wrong(report.said, [stream.text for stream in some])
    yield f"| {len(some)} | {report.side} | {100 * report.within():.1f} % | {report.quantile_s(0.5):.2f} "
    yield f"| {report.quantile_s(SHARE):.2f} | {report.interval_s:g} | {report.memory_mb:.0f} "
    yield f"| {100 * wrong / max(1, total):.1f} % "
    if alone is not None:
        wrong, total = n_wrong(report.said, [one.text for one in alone])
        yield f"| {wrong} of {total} "
    parts = ", ".join(f"{name} {value:.3f}" for name, value in report.parts.items())
    yield f"| {parts} |"


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu", help="cuda: of sides engine and threads")
    parser.add_argument("--streams", default="4")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a stream, about")
    parser.add_argument("--languages", default="en", help="with commas; auto: all")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--engines", type=int, default=0, help="of --clock real; 0: as the server")
    parser.add_argument("--interval", type=float, choices=INTERVALS_S, help="always, of --clock simulated")
    parser.add_argument("--uploads", type=int, default=0, help="recordings read beside, of --clock real")
    parser.add_argument("--clock", choices=["simulated", "real"], default="simulated")
    parser.add_argument("--side", choices=["both", "engine", "threads", "processes"], default="both")
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args()
    is_real = args.clock == "real"
    torch.set_num_threads(args.cores if is_real and args.side == "engine" else 1)
    torch.manual_seed(0)
    languages = [] if args.languages == "auto" else args.languages.split(",")
    counts = [int(n) for n in args.streams.split(",")]
    model = load_model(args.model, device=args.device, dtype=args.dtype)
    warm(model, languages)
    known: list[tuple[Stream, list[Push]]] = []
    print(
        "| streams | side | words within 2 s | p50, s | p95, s | interval, s | MB a stream | words wrong | …"
    )
    for n_streams in counts:
        some = streams(args.data, n_streams, args.seconds)
        alone = None
        if not is_real and args.side != "engine":
            for stream in some[len(known) :]:
                known.append((stream, pushes_of(model, stream, languages)))
            pushes = [made for _, made in known[:n_streams]]
            spent = sum(push.took_s for own in pushes for push in own)
            alone = shared_out(pushes, some, args.cores)
            for n_fewer in range(1, n_streams):
                fewer = shared_out(pushes[:n_fewer], some[:n_fewer], args.cores)
                print(f"{n_fewer} alone: {100 * Report('', fewer, {}).within():.1f} % of words in time")
            report = Report("alone", alone, shares({}, spent, some))
            print("".join(rows(report, some)), flush=True)
        if is_real and args.side == "engine":
            work = Work(engines=args.engines or None, threads=args.cores)
            print("".join(rows(on_server(model, some, languages, work, args.uploads), some)), flush=True)
        elif args.side in ("both", "engine"):
            clock = Clock(is_real=is_real, n_cores=args.cores)
            controller = UpdateIntervalController(clock(), shortest_s=args.interval or INTERVALS_S[0])
            is_paced = not (args.alone or args.interval)
            report = on_engine(model, some, languages, clock, controller, is_paced=is_paced)
            print("".join(rows(report, some, alone)), flush=True)
        if is_real and args.side == "threads":
            print("".join(rows(on_threads(model, some, languages), some)), flush=True)
        if is_real and args.side == "processes":
            print("".join(rows(on_processes((args.model, args.dtype), some, languages), some)), flush=True)
