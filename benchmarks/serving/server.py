"""The side of `serving.load` that is the server's own: its engines and threads, on the real clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.serving.streams import PUSH_S, Report, Said, Stream, memory_mb, shares
from sottovoce.api import Model
from sottovoce.options.live import LiveOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.serving.scheduling.scheduler import Scheduler, TranscriptionRequest
from sottovoce.serving.settings import Work
from sottovoce.types import Samples


async def heard_live(scheduler: Scheduler, stream: Stream, options: LiveOptions, began_s: float) -> Said:
    """A stream in real time, as the server hears one: what came meanwhile goes into the next update."""
    live, said, fed_s = await scheduler.open(options), Said(), 0.0
    while fed_s < stream.duration_s:
        now_s = time.monotonic() - began_s - stream.from_s
        heard_s = min(stream.duration_s, PUSH_S * int(now_s / PUSH_S + 1e-6))
        if heard_s <= fed_s:
            await asyncio.sleep(max(0.001, fed_s + PUSH_S - now_s))
            continue
        told = await live.push(stream.piece(fed_s, heard_s))
        said.add(told, time.monotonic() - began_s, stream)
        fed_s = heard_s
    said.add(await live.close(), time.monotonic() - began_s, stream)
    return said


async def uploading(scheduler: Scheduler, audio: Samples, language: str) -> None:
    """Somebody who sends a long recording, and again one when it is done."""
    while True:
        job = await scheduler.transcribe(audio, TranscriptionRequest(TranscribeOptions(), (language,)))
        try:
            await job.collect()
        finally:
            job.close()


def on_server(
    model: Model, some: Sequence[Stream], languages: Sequence[str], work: Work, n_uploads: int
) -> Report:
    """All streams on the engines of a server, on the real clock; recordings are read beside them."""
    options = LiveOptions(tuple(languages), switching="off" if len(languages) == 1 else "restart")
    scheduler = Scheduler(model, work)
    before_mb, most_mb, longest_s = memory_mb(), 0.0, 0.0

    async def all_streams() -> list[Said]:
        nonlocal most_mb, longest_s
        began_s = time.monotonic()
        tasks = [asyncio.create_task(heard_live(scheduler, one, options, began_s)) for one in some]
        audio = np.concatenate([one.audio for one in some])
        uploads = [
            asyncio.create_task(uploading(scheduler, audio, (languages or ["en"])[0]))
            for _ in range(n_uploads)
        ]
        while not all(task.done() for task in tasks):
            most_mb, longest_s = max(most_mb, memory_mb()), max(longest_s, scheduler.interval_s)
            await asyncio.sleep(0.1)
        for upload in uploads:
            upload.cancel()
        await asyncio.gather(*uploads, return_exceptions=True)
        return [task.result() for task in tasks]

    began_s = time.process_time()
    said = asyncio.run(all_streams())
    spent_s = time.process_time() - began_s
    n_engines = len(scheduler.engines)
    scheduler.close()
    scheduler.join(60.0)
    per_stream_mb = (most_mb - before_mb) / len(some)
    return Report(f"{n_engines} engines", said, shares({}, spent_s, some), per_stream_mb, longest_s)
