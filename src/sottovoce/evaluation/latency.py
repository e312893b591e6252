"""Latency of live transcripts: runs of a session, LAAL, StreamLAAL, word latency, SimulEval's log lines.

Delays are seconds of received audio, or of the clock (computation-aware). Normalise words first.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sottovoce.errors import InputError
from sottovoce.evaluation.language_scores import FoundSwitch
from sottovoce.text.word_edits import align_words
from sottovoce.types import SAMPLE_RATE, Event, Final, LanguageChanged, Partial, Samples, Word


def laal(delays_s: Sequence[float], source_s: float, n_reference: int) -> float:
    """Compute the length-adaptive average lagging of one utterance, in seconds; nan without words.

    delays_s: of each word. source_s: length of the audio.
    Source: Papi et al., Over-Generation Cannot Be Rewarded (2022), equation 4, and SimulEval.
    """
    if not delays_s or source_s <= 0.0:
        return math.nan
    if delays_s[0] > source_s:
        return delays_s[0]
    pace = source_s / max(len(delays_s), n_reference)
    lags = []
    for i, delay in enumerate(delays_s):
        lags.append(delay - i * pace)
        if delay >= source_s:
            break
    return sum(lags) / len(lags)


@dataclass(frozen=True, slots=True)
class ReferenceSegment:
    words: tuple[str, ...]
    start_s: float
    end_s: float


def resegment(hypothesis: Sequence[str], segments: Sequence[ReferenceSegment]) -> list[range]:
    """Cut a hypothesis into an adjoining range for each reference segment, by the aligned reference words.

    Source: Matusov et al. (2005), on which StreamLAAL is defined.
    """
    reference = [word for segment in segments for word in segment.words]
    owner = [i for i, segment in enumerate(segments) for _ in segment.words]
    starts = [0] * (len(segments) + 1)
    starts[-1] = len(hypothesis)
    current = 0
    for i, j in align_words(hypothesis, reference):
        if i is not None and j is not None and owner[j] > current:
            for segment in range(current + 1, owner[j] + 1):
                starts[segment] = i
            current = owner[j]
    for segment in range(current + 1, len(segments)):
        starts[segment] = len(hypothesis)
    return [range(starts[k], starts[k + 1]) for k in range(len(segments))]


def stream_laal(
    words: Sequence[str], delays_s: Sequence[float], segments: Sequence[ReferenceSegment]
) -> float:
    """Compute the mean LAAL of the segments of a long recording; nan when none got a word.

    Raises: InputError unless there is one delay a word.
    Source: Papi et al., StreamAtt (2024), section 4.
    """
    if len(words) != len(delays_s):
        raise InputError(f"stream_laal: expected a delay for each of {len(words)} words, got {len(delays_s)}")
    lags = []
    for segment, piece in zip(segments, resegment(words, segments), strict=True):
        delays = [delays_s[i] - segment.start_s for i in piece]
        lag = laal(delays, segment.end_s - segment.start_s, len(segment.words))
        if not math.isnan(lag):
            lags.append(lag)
    return sum(lags) / len(lags) if lags else math.nan


def word_latencies(
    words: Sequence[str],
    delays_s: Sequence[float],
    reference: Sequence[str],
    reference_ends_s: Sequence[float],
) -> list[float]:
    """Return emission minus true end, in seconds, of each correct word.

    Raises: InputError unless there is one delay a word and one end a reference word.
    """
    if len(words) != len(delays_s) or len(reference) != len(reference_ends_s):
        raise InputError(
            f"word_latencies: expected {len(words)} delays and {len(reference)} ends, "
            f"got {len(delays_s)} and {len(reference_ends_s)}"
        )
    return [
        delays_s[i] - reference_ends_s[j]
        for i, j in align_words(words, reference)
        if i is not None and j is not None and words[i] == reference[j]
    ]


@dataclass(frozen=True, slots=True)
class LogLine:
    """One recording in the log format of SimulEval and OmniSTEval."""

    index: int
    words: tuple[str, ...]
    delays_s: tuple[float, ...]
    elapsed_s: tuple[float, ...]
    source_s: float
    source: str
    reference: str = ""

    def to_json(self) -> str:
        document = {
            "index": self.index,
            "prediction": " ".join(self.words),
            "delays": [round(1000.0 * delay, 3) for delay in self.delays_s],
            "elapsed": [round(1000.0 * elapsed, 3) for elapsed in self.elapsed_s],
            "prediction_length": len(self.words),
            "reference": self.reference,
            "source": [self.source],
            "source_length": round(1000.0 * self.source_s, 3),
        }
        return json.dumps(document, ensure_ascii=False)


class EventSource(Protocol):
    def push(self, pcm: Samples) -> Sequence[Event]: ...

    def close(self) -> Sequence[Event]: ...


@dataclass(frozen=True, slots=True)
class LiveRun:
    """The result of a session over one recording.

    delays_s, elapsed_s: audio received and the clock when each word came. compute_s, cpu_s: time inside the
    session. late_updates: share of updates that were unfinished when the next audio arrived. final_words: of
    the finals, which differ from the words after a second pass.
    """

    words: tuple[Word, ...]
    delays_s: tuple[float, ...]
    elapsed_s: tuple[float, ...]
    first_language: str | None
    switches: tuple[FoundSwitch, ...]
    duration_s: float
    compute_s: float
    cpu_s: float
    late_updates: float = 0.0
    final_words: tuple[Word, ...] = ()

    @property
    def text(self) -> str:
        return "".join(word.word for word in self.words).strip()

    @property
    def final_text(self) -> str:
        return "".join(word.word for word in self.final_words).strip()


def run_live(session: EventSource, audio: Samples, *, chunk_s: float) -> LiveRun:
    """Push a recording, samples (n,) at 16 kHz, into a new session in pieces of chunk_s, and close it.

    The clock is simulated: a piece is pushed once its last sample is there and the previous piece is done.
    """
    step = max(1, round(chunk_s * SAMPLE_RATE))
    words: list[tuple[Word, float, float]] = []
    final_words: list[Word] = []
    first: str | None = None
    switches: list[FoundSwitch] = []
    clock = compute = cpu = 0.0
    late: list[bool] = []
    for start in range(0, len(audio) + step, step):
        piece = audio[start : start + step]
        clock = max(clock, min(start + step, len(audio)) / SAMPLE_RATE)
        began, began_cpu = time.perf_counter(), time.process_time()
        events = session.push(piece) if start < len(audio) else session.close()
        spent, spent_cpu = time.perf_counter() - began, time.process_time() - began_cpu
        clock, compute, cpu = clock + spent, compute + spent, cpu + spent_cpu
        late.append(clock > min(start + step, len(audio)) / SAMPLE_RATE + chunk_s)
        for event in events:
            if isinstance(event, Partial):
                words += [(word, event.emission_time, clock) for word in event.words]
            elif isinstance(event, Final):
                final_words += event.words
            elif isinstance(event, LanguageChanged) and event.previous is None:
                first = event.target
            elif isinstance(event, LanguageChanged):
                switches.append(FoundSwitch(event.at, event.confirmed_at, event.previous or "", event.target))
    return LiveRun(
        words=tuple(word for word, _, _ in words),
        delays_s=tuple(delay for _, delay, _ in words),
        elapsed_s=tuple(elapsed for _, _, elapsed in words),
        first_language=first,
        switches=tuple(switches),
        duration_s=len(audio) / SAMPLE_RATE,
        compute_s=compute,
        cpu_s=cpu,
        late_updates=sum(late) / len(late),
        final_words=tuple(final_words),
    )
