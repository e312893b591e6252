"""Fuzzing, attacks and admission in small: what they find is a fault, and who speaks is measured."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter

import pytest

if sys.version_info < (3, 11):
    pytest.skip("the programs need asyncio.timeout", allow_module_level=True)

from benchmarks.server.attackers import ATTACKS, attack
from benchmarks.server.fuzz import ENDS, frame, fuzz_frames
from benchmarks.server.live_clients import Lateness, part, speak, speech
from sottovoce.server.settings import ServerLimits, Work
from tests.server.servers import SlowModel, serving


def test_frames_are_of_all_kinds_and_come_again() -> None:
    frames = [frame(random.Random(seed)) for seed in range(300)]
    assert frames == [frame(random.Random(seed)) for seed in range(300)]
    kinds = {type(item) for item in frames}
    assert kinds == {str, bytes}
    texts = [item for item in frames if isinstance(item, str)]
    broken = 0
    for text in texts:
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            broken += 1
    assert 0 < broken < len(texts)


def test_fuzzed_frames_are_no_fault() -> None:
    with serving(SlowModel()) as server:
        result = asyncio.run(fuzz_frames(server.address, 1_000, seed=1))
    assert result["frames"] >= 1_000
    assert not [name for name in result if "FAULT" in name]
    assert {name.split()[0] for name in result} - {"frames"} == {path.partition("?")[0] for path in ENDS}


def test_a_session_that_fails_is_a_fault() -> None:
    def fail() -> None:
        raise RuntimeError

    with serving(SlowModel(fail)) as server:
        result = asyncio.run(fuzz_frames(server.address, 800, seed=2))
    assert [name for name in result if "FAULT" in name]


@pytest.mark.parametrize("name", ["phrases", "half requests", "known speakers", "strangers"])
def test_attackers_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "known speakers":  # eight at a time do not come to an end
        monkeypatch.setattr("benchmarks.server.attackers.N_AT_ONCE", 2)
    limits = ServerLimits(head_s=0.5, upload_s=0.5)
    with serving(SlowModel(), limits=limits) as server:
        result: Counter[str] = asyncio.run(attack(name, server.address, 1.0))
    assert result
    assert "500" not in result
    assert name in ATTACKS


def test_clients_measure_how_late_they_are_and_who_is_refused() -> None:
    async def run() -> None:
        audio = speech("en.flac")
        await asyncio.gather(*(speak(server.address, audio, 2.5, late) for _ in range(2)))

    late = Lateness()
    with serving(SlowModel(), work=Work(forecast=False, engines=1)) as server:
        server.services.registry.schedulers[0].most_sessions = 1
        asyncio.run(run())
    assert (late.n_taken, [code for code, _ in late.refused], late.faults) == (1, [429], [])
    assert len(late.words_s) == 2  # a word for every second
    assert part(late.words_s, 0.5) < 20.0
    assert late.behind_s
