"""Recordings of several languages are what their condition says."""

from __future__ import annotations

import random
from itertools import cycle, pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.language import conditions
from benchmarks.language.conditions import CONDITIONS, Block
from sottovoce.types import SAMPLE_RATE

SPANS = [(0.5, 1.5), (2.0, 3.0)]
SPEECH = np.zeros(4 * SAMPLE_RATE, np.float32)
for start_s, end_s in SPANS:
    SPEECH[round(start_s * SAMPLE_RATE) : round(end_s * SAMPLE_RATE)] = 0.2


def order(name: str) -> list[Block]:
    codes = cycle(["en", "en", "de", "es"])
    chosen = CONDITIONS[name].order
    assert chosen is not None
    return list(chosen(random.Random(0), lambda: next(codes)))


@pytest.mark.parametrize("name", ["blocks", "one-short", "ends", "turns"])
def test_neighbours_differ(name: str) -> None:
    assert all(one.language != after.language for one, after in pairwise(order(name)))


def test_orders() -> None:
    assert len({one.language for one in order("turns")}) == 2
    first, short, last = order("one-short")
    assert first.language == last.language
    assert short.most_s == 5.0
    assert min(first.seconds, last.seconds) >= 40.0 > short.seconds
    assert min(one.seconds for one in order("blocks")) >= 60.0
    assert [one.language for one in order("scripts")][1::2] == ["en"] * (len(order("scripts")) // 2)


def test_sounds() -> None:
    rng = random.Random(0)
    soft = conditions.uneven(SPEECH, SPANS, rng, Path())
    assert soft[SAMPLE_RATE] == pytest.approx(0.2)
    assert soft[round(2.5 * SAMPLE_RATE)] == pytest.approx(0.02)
    assert conditions.clipped(SPEECH, SPANS, rng, Path()).max() == 1.0
    between = conditions.music_between(SPEECH, SPANS, rng, Path())
    assert between[SAMPLE_RATE] == SPEECH[SAMPLE_RATE]
    assert np.abs(between[: SAMPLE_RATE // 2]).max() > 0.01
    under = conditions.music_under(SPEECH, SPANS, rng, Path())
    assert np.abs(under[SAMPLE_RATE : round(1.4 * SAMPLE_RATE)] - 0.2).max() > 0.01
    assert all(len(one) == len(SPEECH) for one in (soft, between, under))
