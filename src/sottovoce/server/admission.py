"""The number of live sessions that a model keeps up with, measured once: when the model is loaded, a session
on each engine decodes a sound like a voice.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import numpy as np

from sottovoce.options.live import LiveOptions
from sottovoce.server.errors import RETRY_S, ApiError, too_many_requests
from sottovoce.types import SAMPLE_RATE, Samples

MAX_LOAD = 0.85
"""Part of the engines' time that sessions may take; the rest absorbs bursts."""
MEASURED_INTERVAL_S = 0.5
"""Between two updates; longer intervals are a reserve."""
SPEECH_FACTOR = 1.75
"""Cost of speech relative to the sound: words cost 1.4 times as much, and more in batches (base).

Source: docs/research/serving.md, admission.
"""
SOUND_S, WARM_UP_S, PIECE_S = 4.0, 1.0, 0.5
TIMEOUT_S = 5.0
PITCH_HZ, SYLLABLES_HZ, N_HARMONICS = 120.0, 3.0, 20


def overloaded(n_sessions: int) -> ApiError:
    """Return an error with a random time until a retry, to spread refused clients."""
    message = f"{n_sessions} live sessions are as many as this model keeps up with: try again later"
    return too_many_requests(message, retry_s=RETRY_S * (1 + random.random()))


class MeasuredSession(Protocol):
    """worked_s: engine seconds for `audio_s` seconds of audio. fixed_interval_s: between updates; None: it
    depends on the load.
    """

    worked_s: float
    audio_s: float
    fixed_interval_s: float | None

    async def push(self, pcm: Samples) -> object:
        """Process samples (n,) float32 at 16 kHz."""

    def end(self) -> None:
        """Leave the model."""


async def measured_capacity(
    open_session: Callable[[LiveOptions], Awaitable[MeasuredSession]], n_engines: int
) -> int | None:
    """Return the number of sessions, at least 1, that the engines keep up with; None: unknown."""
    options = LiveOptions(vad=False)
    sessions = [await open_session(options) for _ in range(n_engines)]
    try:
        costs = await asyncio.gather(*(measured_cost(session) for session in sessions))
    finally:
        for session in sessions:
            session.end()
    measured = [SPEECH_FACTOR * cost for cost in costs if cost > 0]
    return max(1, int(MAX_LOAD * n_engines * len(measured) / sum(measured))) if measured else None


async def measured_cost(session: MeasuredSession) -> float:
    """Return the engine seconds for a second of a sound, without its first second; 0: unknown."""
    session.fixed_interval_s = MEASURED_INTERVAL_S
    ends_s = time.monotonic() + TIMEOUT_S
    sound = voice_like_sound()
    step, n_warm_up = round(PIECE_S * SAMPLE_RATE), round(WARM_UP_S * SAMPLE_RATE)
    await session.push(sound[:n_warm_up])
    worked_s, audio_s = session.worked_s, session.audio_s
    for start in range(n_warm_up, len(sound), step):
        await session.push(sound[start : start + step])
        if time.monotonic() > ends_s and session.audio_s > audio_s:
            break
    new_audio_s = session.audio_s - audio_s
    return (session.worked_s - worked_s) / new_audio_s if new_audio_s > 0 else 0.0


def voice_like_sound() -> Samples:
    """Return a sound (n,) float32 with the pitch, harmonics and syllables of a voice."""
    at_s = np.arange(round(SOUND_S * SAMPLE_RATE)) / SAMPLE_RATE
    pitch_hz = PITCH_HZ * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * at_s))
    phase = 2 * np.pi * np.cumsum(pitch_hz) / SAMPLE_RATE
    harmonics = np.sum([np.sin(k * phase) / k for k in range(1, N_HARMONICS)], axis=0)
    sound = 0.2 * harmonics * np.clip(np.sin(2 * np.pi * SYLLABLES_HZ * at_s), 0, 1)
    noise = 0.01 * np.random.default_rng(0).standard_normal(len(at_s))
    samples: Samples = (sound + noise).astype(np.float32)
    return samples
