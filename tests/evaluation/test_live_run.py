"""Recordings through a session: words with their delays, switches, and a clock as if it were live."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest

from sottovoce.evaluation.language_scores import FoundSwitch
from sottovoce.evaluation.latency import run_live
from sottovoce.types import SAMPLE_RATE, Event, Final, LanguageChanged, Partial, Samples, Unstable, Word


class Scripted:
    """Says prepared events at each push, after some work; the last ones at the end."""

    def __init__(self, *events: Sequence[Event], work_s: float = 0.0) -> None:
        self._events = list(events)
        self._work_s = work_s
        self.pieces: list[int] = []

    def push(self, pcm: Samples) -> Sequence[Event]:
        self.pieces.append(len(pcm))
        time.sleep(self._work_s)
        return self._events[len(self.pieces) - 1]

    def close(self) -> Sequence[Event]:
        return self._events[len(self.pieces)]


def partial(text: str, at: float) -> Partial:
    word = Word(text, at - 0.5, at - 0.2, 0.9, "en")
    return Partial(word.start, word.end, text, "en", (word,), at)


AUDIO = np.zeros(round(2.5 * SAMPLE_RATE), np.float32)


def test_words_and_switches_are_collected() -> None:
    session = Scripted(
        [LanguageChanged(None, "en", 0.1, 0.9)],
        [partial(" one", 2.0), Unstable(1.0, 2.0, " tw", "en", 2.0)],
        [partial(" two", 2.5), LanguageChanged("en", "de", 1.5, 2.25)],
        [Final(1.5, 2.3, "one two", "en", (), 2.5)],
    )
    run = run_live(session, AUDIO, chunk_s=1.0)
    assert session.pieces == [16000, 16000, 8000]
    assert run.text == "one two"
    assert run.delays_s == (2.0, 2.5)
    assert run.first_language == "en"
    assert run.switches == (FoundSwitch(1.5, 2.25, "en", "de"),)
    assert run.duration_s == 2.5
    assert run.late_updates == 0.0


def test_a_piece_is_given_when_it_is_there() -> None:
    """Who is fast waits for the audio."""
    run = run_live(Scripted([], [partial(" a", 2.0)], [], [partial(" b", 2.5)]), AUDIO, chunk_s=1.0)
    assert run.elapsed_s == pytest.approx((2.0, 2.5), abs=0.1)
    assert run.compute_s < 0.1


def test_who_is_slow_falls_behind() -> None:
    pieces = [[partial(f" {i}", 0.1 * (i + 1))] for i in range(25)]
    run = run_live(Scripted(*pieces, [], work_s=0.12), AUDIO, chunk_s=0.1)
    assert run.elapsed_s[0] >= 0.22
    assert run.elapsed_s[-1] >= 25 * 0.12 + 0.1
    assert run.compute_s >= 25 * 0.12
    assert run.cpu_s < run.compute_s
    assert run.late_updates > 0.5
    assert list(run.elapsed_s) == sorted(run.elapsed_s)
