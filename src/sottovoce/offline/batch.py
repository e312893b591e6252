"""Several recordings at once: their windows share the batches of the model.

Every recording is at a place of its own and has its own prompt, so its text is that of the recording alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeAlias, TypeVar

from sottovoce.audio.recording import Recording
from sottovoce.engine.batching import Batching, BatchingExecutor
from sottovoce.engine.calls import CallGenerator, Priority, Task
from sottovoce.errors import SottovoceError
from sottovoce.offline.longform import transcription_of
from sottovoce.offline.transcriber import Transcriber
from sottovoce.types import Transcript

Source = TypeVar("Source")
Outcome: TypeAlias = Transcript | Exception

AHEAD = 4
"""So many batches of recordings may have ended and wait for one that came before them."""
FAILURES = (SottovoceError, MemoryError, RuntimeError)
"""What one recording may fail with: in PyTorch, to be out of memory is a RuntimeError."""


def transcribe_batch(
    transcriber: Transcriber,
    sources: Iterable[Source],
    open_source: Callable[[Source], Recording],
    *,
    batch_size: int,
    model: str,
) -> Iterator[tuple[Source, Outcome]]:
    """Transcribe recordings, batch_size of them at a time, and give them in the order in which they came.

    open_source: makes a recording of a source. model: its name, for the transcripts.
    A recording that fails gives its error in place of a transcript, and harms no other.
    """
    executor = BatchingExecutor(transcriber.backend, Batching(files=batch_size, encodes_files_together=True))
    waiting = iter(sources)
    runs: deque[tuple[Source, Task[Transcript]]] = deque()  # all from the first that was not given away yet
    try:
        while True:
            new: list[Source] = []
            if executor.has_file_room and len(runs) < AHEAD * batch_size:
                new = list(islice(waiting, 1))
            for source in new:
                calls = _transcript(transcriber, source, open_source, model)
                runs.append((source, executor.begin(calls, priority=Priority.FILE)))
                executor.advance()
            while runs and runs[0][1].is_done:
                source, task = runs.popleft()
                yield source, _outcome(task)
            if not new and executor.n_tasks:
                executor.round()
            elif not (new or runs):
                return
    finally:
        executor.forget()


def _transcript(
    transcriber: Transcriber, source: Source, open_source: Callable[[Source], Recording], model: str
) -> CallGenerator[Transcript]:
    with transcription_of(transcriber, open_source(source), model=model) as transcription:
        return (yield from transcription.collected())


def _outcome(task: Task[Transcript]) -> Outcome:
    """What a recording ended with. Raises: what no recording fails with."""
    if task.error is None:
        return task.result
    if isinstance(task.error, FAILURES):
        return task.error
    raise task.error
