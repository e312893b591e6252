"""How late words come when a server has all the live sessions that it admits, on a simulated clock.

    python -m benchmarks server admission DATA --languages en,de,es,pl --most 8

Clients come one after another, and speak their languages in turn (test clips). Time passes by the processor
time of the work, on two engines with a thread each: other programs do not change the result. A session takes
one place, or --following places if it has several languages.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from benchmarks.harness.clips import PAUSES_S, clips, spread
from benchmarks.harness.report import benchmark_parser, show_json, show_table
from benchmarks.live.runs import spoken_on
from sottovoce.api import load_model
from sottovoce.audio.io import load_audio
from sottovoce.runtime.update_interval import UpdateIntervalController
from sottovoce.server.scheduler import FOLLOWING
from sottovoce.streaming.live_session import LiveSession
from sottovoce.streaming.options import LiveOptions
from sottovoce.threads import set_threads
from sottovoce.types import SAMPLE_RATE, Partial, Samples

N_ENGINES, EVERY_S, PIECE_S = 2, 3.0, 0.1


@dataclass(slots=True)
class Client:
    """audio_s: processed so far. free_s: when its last update was over."""

    session: LiveSession
    audio: Samples
    began_s: float
    free_s: float
    audio_s: float = 0.0

    @property
    def is_over(self) -> bool:
        return self.audio_s >= len(self.audio) / SAMPLE_RATE - 1e-6

    def due_s(self, interval_s: float) -> float:
        end_s = min(self.audio_s + interval_s, len(self.audio) / SAMPLE_RATE)
        return math.inf if self.is_over else max(self.free_s, self.began_s + end_s)


def spoken(data: Path, n_clients: int, seconds: float, languages: tuple[str, ...]) -> list[Samples]:
    """Recordings of clips, the languages in turn."""
    waiting = [
        iter(spread(clips(data, "test", language=code, with_text=True), 60) * 40) for code in languages
    ]
    recordings = []
    for number in range(n_clients):
        pieces: list[Samples] = []
        while sum(map(len, pieces)) < (seconds - len(pieces) * PAUSES_S[0]) * SAMPLE_RATE:
            pieces.append(load_audio(next(waiting[(number + len(pieces)) % len(waiting)]).file))
        audio = spoken_on(pieces)
        recordings.append(audio[: len(audio) - len(audio) % round(PIECE_S * SAMPLE_RATE)])
    return recordings


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="base")
    parser.add_argument("--languages", default="en,de,es,pl", help="with commas")
    parser.add_argument("--clients", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=36.0, help="of a client, about")
    parser.add_argument("--most", type=int, default=8, help="places")
    parser.add_argument("--following", type=Fraction, default=FOLLOWING, help="places of a session")
    given = parser.parse_args()
    set_threads(1)
    model = load_model(given.model)
    languages = tuple(given.languages.split(","))
    follows = len(languages) > 1
    options = LiveOptions(languages, switching="restart" if follows else "off")
    places = given.following if follows else Fraction(1)
    controller = UpdateIntervalController()
    engines_s = [0.0] * N_ENGINES
    coming = spoken(given.data, given.clients, given.seconds, languages)
    clients: list[Client] = []
    delays_s: list[tuple[float, float]] = []
    n_come = 0
    while n_come < len(coming) or not all(client.is_over for client in clients):
        is_stretched = controller.is_stretched
        interval_s = controller.interval_s if is_stretched else PIECE_S
        due_s, place = min(
            ((each.due_s(interval_s), i) for i, each in enumerate(clients)), default=(math.inf, -1)
        )
        start_s = max(due_s, min(engines_s))
        if n_come < len(coming) and EVERY_S * n_come <= start_s:
            now_s = EVERY_S * n_come
            n_active = sum(not client.is_over for client in clients)
            if places * (n_active + 1) <= given.most:
                session = model.session(options=options, languages=list(languages))
                assert isinstance(session, LiveSession)
                clients.append(Client(session, coming[n_come], now_s, now_s))
            n_come += 1
            continue
        client = clients[place]
        came_s = math.floor((start_s - client.began_s) / PIECE_S + 1e-6) * PIECE_S
        end_s = min(came_s, client.audio_s + (10.0 if is_stretched else 2.0), len(client.audio) / SAMPLE_RATE)
        pcm = client.audio[round(client.audio_s * SAMPLE_RATE) : round(end_s * SAMPLE_RATE)]
        began_s = time.thread_time()
        events = client.session.push(
            pcm, newest_only=is_stretched, greedy=controller.is_greedy, realtime=True
        )
        worked_s = time.thread_time() - began_s
        done_s = start_s + worked_s
        engines_s[engines_s.index(min(engines_s))] = client.free_s = done_s
        client.audio_s = end_s
        delays_s += [
            (start_s, done_s - client.began_s - word.end)
            for event in events
            if isinstance(event, Partial)
            for word in event.words
        ]
        if events or worked_s > 0.002:  # a call of the model
            controller.note_wait(start_s - due_s)
            controller.note_work(worked_s / N_ENGINES, done_s)
    full_s = EVERY_S * len(coming)
    full = [delay_s for at_s, delay_s in delays_s if full_s / 2 < at_s < full_s + 10]
    row = {
        "accepted": len(clients),
        "refused": len(coming) - len(clients),
        "median_s": float(np.median(full)),
        "late_s": float(np.quantile(full, 0.95)),
    }
    heads = ["accepted", "refused", "words, median", "95 %"]
    times = [f"{row[name]:.2f} s" for name in ("median_s", "late_s")]
    show_table(heads, [[row["accepted"], row["refused"], *times]])
    show_json("server admission", {"languages": languages, "following": float(places), **row})
