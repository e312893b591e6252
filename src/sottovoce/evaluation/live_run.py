"""Run a recording through a live session: its words with their delays, switches, and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sottovoce.evaluation.language_scores import FoundSwitch
from sottovoce.types import SAMPLE_RATE, Event, LanguageChanged, Partial, Samples, Word


class LiveSession(Protocol):
    """A session as `run_live` needs it."""

    def push(self, pcm: Samples) -> Sequence[Event]:
        """Take samples (n,) float32, mono, 16 kHz; return the events that they bring."""
        ...

    def close(self) -> Sequence[Event]:
        """End the audio; return the last events."""
        ...


@dataclass(frozen=True, slots=True)
class LiveRun:
    """What a session made of one recording.

    delays_s: audio received when each word came. elapsed_s: the clock then, had the audio come in real
    time and the session been given each piece as soon as it was there and the one before was done.
    languages: first language, and the switches after it. compute_s: clock time inside the session. cpu_s:
    processor time of this process in it, which a busy machine does not change much.
    """

    words: tuple[Word, ...]
    delays_s: tuple[float, ...]
    elapsed_s: tuple[float, ...]
    first_language: str | None
    switches: tuple[FoundSwitch, ...]
    duration_s: float
    compute_s: float
    cpu_s: float

    @property
    def text(self) -> str:
        return "".join(word.word for word in self.words).strip()


def run_live(
    session: LiveSession,
    audio: Samples,
    *,
    chunk_s: float,
    on_piece: Callable[[float, Sequence[Event]], None] | None = None,
) -> LiveRun:
    """Push a recording, samples (n,) float32 at 16 kHz, into a new session in pieces of chunk_s, and close
    it.

    The clock is simulated: a piece is given when its last sample is there or the piece before is done,
    whichever is later; only time inside the session is measured.

    on_piece: called after each piece with the seconds given so far and the events that it brought.
    """
    step = max(1, round(chunk_s * SAMPLE_RATE))
    words: list[tuple[Word, float, float]] = []
    first: str | None = None
    switches: list[FoundSwitch] = []
    clock = compute = cpu = 0.0
    for start in range(0, len(audio) + step, step):
        piece = audio[start : start + step]
        clock = max(clock, min(start + step, len(audio)) / SAMPLE_RATE)
        began, began_cpu = time.perf_counter(), time.process_time()
        events = session.push(piece) if start < len(audio) else session.close()
        spent = time.perf_counter() - began
        clock, compute, cpu = clock + spent, compute + spent, cpu + time.process_time() - began_cpu
        if on_piece is not None:
            on_piece(min(start + step, len(audio)) / SAMPLE_RATE, events)
        for event in events:
            if isinstance(event, Partial):
                words += [(word, event.emission_time, clock) for word in event.words]
            elif isinstance(event, LanguageChanged) and event.source is None:
                first = event.target
            elif isinstance(event, LanguageChanged):
                switches.append(FoundSwitch(event.at, event.confirmed_at, event.source or "", event.target))
    return LiveRun(
        words=tuple(word for word, _, _ in words),
        delays_s=tuple(delay for _, delay, _ in words),
        elapsed_s=tuple(elapsed for _, _, elapsed in words),
        first_language=first,
        switches=tuple(switches),
        duration_s=len(audio) / SAMPLE_RATE,
        compute_s=compute,
        cpu_s=cpu,
    )
