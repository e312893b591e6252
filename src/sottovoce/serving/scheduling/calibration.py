"""What a live session costs on this machine, measured before there is one: a sound like a voice, a session an
engine at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import numpy as np

from sottovoce.engine.update_interval import INTERVALS_S
from sottovoce.options.live import LiveOptions
from sottovoce.serving.scheduling.session_handle import SessionHandle
from sottovoce.types import SAMPLE_RATE, Samples

SPEECH = 1.75
"""Times the cost of a sound alone: words take 1.4 times as much, and in company more (base)."""
SOUND_S, WARM_UP_S, PIECE_S = 4.0, 1.0, 0.5
WITHIN_S = 5.0
"""Of the clock: a model that is slower than that is measured with what it heard by then, or next."""
OpenSession: TypeAlias = Callable[[LiveOptions], Awaitable[SessionHandle]]

PITCH_HZ, SYLLABLES_HZ, N_HARMONICS = 120.0, 3.0, 20


async def calibrate(open_session: OpenSession, n_engines: int) -> float:
    """Return the engine seconds that a second of speech costs, at the shortest interval of updates.

    open_session: begins a live session. 0: nothing was heard.
    """
    options = LiveOptions(vad=False)
    handles = [await open_session(options) for _ in range(n_engines)]
    try:
        costs = await asyncio.gather(*(cost_of(handle, voice()) for handle in handles))
    finally:
        for handle in handles:
            handle.end()
    measured = [cost for cost in costs if cost > 0]
    return SPEECH * sum(measured) / len(measured) if measured else 0.0


async def cost_of(handle: SessionHandle, sound: Samples) -> float:
    """Return the engine seconds a second of a sound (n,) costs in a session, its first second aside.

    0: nothing was heard.
    """
    handle.fixed_interval_s = INTERVALS_S[0]
    ends_s = time.monotonic() + WITHIN_S
    step, n_warm_up = round(PIECE_S * SAMPLE_RATE), round(WARM_UP_S * SAMPLE_RATE)
    await handle.push(sound[:n_warm_up])
    worked_s, taken_s = handle.load.worked_s, handle.load.taken_s
    for start in range(n_warm_up, len(sound), step):
        await handle.push(sound[start : start + step])
        if time.monotonic() > ends_s and handle.load.taken_s > taken_s:
            break
    newly_taken_s = handle.load.taken_s - taken_s
    return (handle.load.worked_s - worked_s) / newly_taken_s if newly_taken_s > 0 else 0.0


def voice(seconds: float = SOUND_S) -> Samples:
    """Make a sound (n,) float32 with the pitch, harmonics and syllables of a voice, and no words."""
    at_s = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    pitch_hz = PITCH_HZ * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * at_s))
    phase = 2 * np.pi * np.cumsum(pitch_hz) / SAMPLE_RATE
    harmonics = np.sum([np.sin(k * phase) / k for k in range(1, N_HARMONICS)], axis=0)
    sound = 0.2 * harmonics * np.clip(np.sin(2 * np.pi * SYLLABLES_HZ * at_s), 0, 1)
    noise = 0.01 * np.random.default_rng(0).standard_normal(len(at_s))
    made: Samples = (sound + noise).astype(np.float32)
    return made
