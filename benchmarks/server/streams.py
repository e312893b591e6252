"""How many live streams one machine bears: N people who speak at the same time, on one model of a server.

    python -m benchmarks server streams DATA --streams 2 4 6 8 --dtype bfloat16

Each stream is a joined recording of people (test clips), spoken in real time from a moment of its own, to the
server's own engines and threads; nothing else may run. So many streams are served if 95 % of their words come
within 2 s of their end. With --finals read, every utterance is transcribed again by the second pass.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from benchmarks.harness.clips import PAUSES_S, Clip, clips, spread
from benchmarks.harness.report import benchmark_parser, resident_bytes, show_heads, show_json, show_row
from benchmarks.live.runs import spoken_on
from sottovoce.api import Model, as_whisper, load_model
from sottovoce.audio.io import load_audio
from sottovoce.evaluation.scores import ScoredUtterance, score
from sottovoce.server.scheduler import Scheduler
from sottovoce.server.settings import Work
from sottovoce.streaming.options import Finals, LiveOptions, Switching
from sottovoce.types import SAMPLE_RATE, Event, Final, Partial, Samples, SpeechEnded

PUSH_S = 0.1
"""Audio that a client sends at a time."""
WITHIN_S, SHARE = 2.0, 0.95
N_THREADS = 2


@dataclass(frozen=True, slots=True)
class Stream:
    """A speaker who begins at a moment (seconds), and the text."""

    audio: Samples = field(repr=False)
    text: str
    from_s: float = 0.0

    @property
    def duration_s(self) -> float:
        return len(self.audio) / SAMPLE_RATE

    def piece(self, start_s: float, end_s: float) -> Samples:
        return self.audio[round(start_s * SAMPLE_RATE) : round(end_s * SAMPLE_RATE)]


@dataclass(slots=True)
class Said:
    """What came of a stream: seconds from the end of each word to its event, and the text.

    finals_s: seconds from the detected end of speech to the final of the second pass. ended_s: when the end
    was detected, by utterance.
    """

    delays_s: list[float] = field(default_factory=list)
    ended_s: dict[int | None, float] = field(default_factory=dict)
    finals_s: list[float] = field(default_factory=list)
    n_finals: int = 0
    n_read: int = 0
    text: str = ""
    final_text: str = ""

    def add(self, events: Sequence[Event], now_s: float, stream: Stream) -> None:
        at_s = now_s - stream.from_s
        for event in events:
            if isinstance(event, Partial):
                self.delays_s += [at_s - word.end for word in event.words]
                self.text += event.text
            elif isinstance(event, SpeechEnded):
                self.ended_s[event.utterance] = event.emission_time
            elif isinstance(event, Final):
                if event.utterance in self.ended_s:
                    self.finals_s.append(at_s - self.ended_s[event.utterance])
                self.n_finals, self.n_read = self.n_finals + 1, self.n_read + event.is_read
                self.final_text += f" {event.text}"


def streams(data: Path, n_streams: int, seconds: float) -> list[Stream]:
    """Streams of whole clips, none twice while there are others, that begin at moments of their own."""
    found = spread(clips(data, "test", language="en", with_text=True), 400)
    waiting = iter(found * (1 + n_streams))
    made = []
    for number in range(n_streams):
        chosen: list[Clip] = []
        pieces: list[Samples] = []
        while sum(len(one) for one in pieces) < (seconds - len(pieces) * PAUSES_S[0]) * SAMPLE_RATE:
            chosen.append(next(waiting))
            pieces.append(load_audio(chosen[-1].file))
        text = " ".join(clip.text or "" for clip in chosen)
        made.append(Stream(spoken_on(pieces), text, from_s=0.5 * number / n_streams))
    return made


async def heard_live(scheduler: Scheduler, stream: Stream, options: LiveOptions, began_s: float) -> Said:
    """A stream in real time, as the server hears one: what came meanwhile goes into the next update."""
    live, said, fed_s = await scheduler.open(options), Said(), 0.0
    while fed_s < stream.duration_s:
        now_s = time.monotonic() - began_s - stream.from_s
        heard_s = min(stream.duration_s, PUSH_S * int(now_s / PUSH_S + 1e-6))
        if heard_s <= fed_s:
            await asyncio.sleep(max(0.001, fed_s + PUSH_S - now_s))
            said.add(live.finals(), time.monotonic() - began_s, stream)
            continue
        events = await live.push(stream.piece(fed_s, heard_s))
        said.add(events, time.monotonic() - began_s, stream)
        fed_s = heard_s
    said.add(await live.flush(), time.monotonic() - began_s, stream)
    return said


def quantile(delays_s: Sequence[float], share: float) -> float:
    return float(np.quantile(delays_s, share)) if delays_s else float("nan")


def wrong(texts: Iterable[tuple[str, str]]) -> float:
    return score([ScoredUtterance(*each, "en") for each in texts]).overall.wer.rate or 0.0


def measure(model: Model, some: Sequence[Stream], options: LiveOptions, work: Work) -> dict[str, float]:
    scheduler = Scheduler(model, work)
    before_mb, most_mb, longest_s = resident_bytes() / 1e6, 0.0, 0.0

    async def all_streams() -> list[Said]:
        nonlocal most_mb, longest_s
        began_s = time.monotonic()
        tasks = [asyncio.create_task(heard_live(scheduler, one, options, began_s)) for one in some]
        while not all(task.done() for task in tasks):
            most_mb, longest_s = (
                max(most_mb, resident_bytes() / 1e6),
                max(longest_s, scheduler.worker.interval_controller.interval_s),
            )
            await asyncio.sleep(0.1)
        return [task.result() for task in tasks]

    began_s = time.process_time()
    said = asyncio.run(all_streams())
    cpu_s = time.process_time() - began_s
    n_engines = len(scheduler.worker.runtime.states)
    scheduler.close()
    scheduler.join(60.0)
    delays_s = [delay for one in said for delay in one.delays_s]
    finals_s = [delay for one in said for delay in one.finals_s]
    pairs = list(zip(some, said, strict=True))
    return {
        "streams": len(some),
        "engines": n_engines,
        "within": float(np.mean([delay <= WITHIN_S for delay in delays_s])),
        "middle_s": quantile(delays_s, 0.5),
        "late_s": quantile(delays_s, SHARE),
        "interval_s": longest_s,
        "mb_a_stream": (most_mb - before_mb) / len(some),
        "wrong": wrong((stream.text, one.text) for stream, one in pairs),
        "final_wrong": wrong((stream.text, one.final_text) for stream, one in pairs),
        "finals": sum(one.n_finals for one in said),
        "read": sum(one.n_read for one in said),
        "final_middle_s": quantile(finals_s, 0.5),
        "final_late_s": quantile(finals_s, SHARE),
        "cpu_s_per_s": cpu_s / sum(stream.duration_s for stream in some),
    }


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--streams", type=int, nargs="+", default=[4])
    parser.add_argument("--seconds", type=float, default=40.0, help="of a stream, about")
    parser.add_argument("--languages", default="en", help="with commas; auto: all")
    parser.add_argument("--finals", choices=get_args(Finals), default="committed")
    parser.add_argument("--engines", type=int, help="[as the server chooses]")
    given = parser.parse_args()
    torch.set_num_threads(N_THREADS)
    torch.manual_seed(0)
    languages = () if given.languages == "auto" else tuple(given.languages.split(","))
    switching: Switching = "off" if len(languages) == 1 else "restart"
    options = LiveOptions(languages, switching=switching, finals=given.finals)
    model = as_whisper(load_model(given.model, dtype=given.dtype), "streams")
    session = model.session(languages or None)  # warm
    session.push(torch.zeros(2 * SAMPLE_RATE).numpy())
    session.close()
    heads = ["streams", "engines", "words within 2 s", "middle", "95 %", "interval", "MB a stream"]
    heads += ["words wrong", "processor s a second"]
    if given.finals == "read":
        heads += ["in finals", "finals read", "middle", "95 %"]
    show_heads(*heads)
    rows = []
    for n_streams in given.streams:
        work = Work(engines=given.engines, threads=N_THREADS)
        row = measure(model, streams(given.data, n_streams, given.seconds), options, work)
        times = [f"{row[name]:.2f} s" for name in ("middle_s", "late_s", "interval_s")]
        figures = [f"{row['mb_a_stream']:.0f}", f"{row['wrong']:.1%}", f"{row['cpu_s_per_s']:.3f}"]
        if given.finals == "read":
            late = [f"{row[name]:.2f} s" for name in ("final_middle_s", "final_late_s")]
            figures += [f"{row['final_wrong']:.1%}", f"{row['read']:.0f} of {row['finals']:.0f}", *late]
        show_row(n_streams, row["engines"], f"{row['within']:.1%}", *times, *figures)
        rows.append(row)
    show_json(
        "server streams", {"model": given.model, "dtype": given.dtype, "finals": given.finals, "rows": rows}
    )
