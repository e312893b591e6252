"""Who speaks in `serving.load`, what came of it, and how it is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.clips import PAUSES_S, Clip, clips, spread
from benchmarks.live.runs import spoken_on
from sottovoce.audio.io import load_audio
from sottovoce.engine.update_interval import INTERVALS_S
from sottovoce.evaluation.wer import ScoredUtterance, count_errors
from sottovoce.types import SAMPLE_RATE, Event, Partial, Samples

PUSH_S = 0.1
"""Audio that a client sends at a time."""
PAGE_MB = 4096 / 1e6
WITHIN_S, SHARE = 2.0, 0.95


@dataclass(frozen=True, slots=True)
class Stream:
    """Somebody who speaks from a moment on (seconds), and what is said."""

    audio: Samples = field(repr=False)
    text: str
    from_s: float = 0.0

    @property
    def duration_s(self) -> float:
        return len(self.audio) / SAMPLE_RATE

    def piece(self, start_s: float, end_s: float) -> Samples:
        return self.audio[round(start_s * SAMPLE_RATE) : round(end_s * SAMPLE_RATE)]


@dataclass(slots=True)
class Said:
    """What came of a stream: seconds from the end of each word to when it was told, and the text."""

    delays_s: list[float] = field(default_factory=list)
    text: str = ""

    def add(self, events: Sequence[Event], now_s: float, stream: Stream) -> None:
        for event in events:
            if isinstance(event, Partial):
                self.delays_s += [now_s - stream.from_s - word.end for word in event.words]
                self.text += event.text


@dataclass(frozen=True, slots=True)
class Report:
    """A side at so many streams; parts: processor seconds a second of speech, by what they were spent on."""

    side: str
    said: list[Said]
    parts: dict[str, float]
    memory_mb: float = 0.0
    interval_s: float = INTERVALS_S[0]

    def within(self) -> float:
        """The share of words that came in time."""
        delays = [delay for one in self.said for delay in one.delays_s]
        return sum(delay <= WITHIN_S for delay in delays) / max(1, len(delays))

    def quantile_s(self, share: float) -> float:
        delays = sorted(delay for one in self.said for delay in one.delays_s)
        return delays[min(len(delays) - 1, round(share * len(delays)))] if delays else 0.0


def streams(data: Path, n_streams: int, seconds: float) -> list[Stream]:
    """Streams of whole clips, none twice while there are others, that begin at moments of their own."""
    found = spread(clips(data, "test", language="en", with_text=True), 400)
    waiting = iter(found * (1 + n_streams))
    made = []
    for number in range(n_streams):
        chosen: list[Clip] = []
        pieces: list[Samples] = []
        while sum(len(one) for one in pieces) < (seconds - len(pieces) * PAUSES_S[0]) * SAMPLE_RATE:
            chosen.append(next(waiting))
            pieces.append(load_audio(chosen[-1].file))
        text = " ".join(clip.text or "" for clip in chosen)
        made.append(Stream(spoken_on(pieces), text, from_s=0.5 * number / n_streams))
    return made


def n_wrong(said: Sequence[Said], texts: Sequence[str]) -> tuple[int, int]:
    """Words that differ from other texts, and words of those."""
    wrong = total = 0
    for one, text in zip(said, texts, strict=True):
        counts = count_errors(ScoredUtterance(text, one.text, "en")).word
        wrong += counts.n_errors
        total += counts.n_reference
    return wrong, total


def shares(spent: dict[str, float], total_s: float, some: Sequence[Stream]) -> dict[str, float]:
    speech_s = sum(stream.duration_s for stream in some)
    other = {"other": total_s - sum(spent.values())}
    return {name: seconds / speech_s for name, seconds in (spent | other).items()}


def memory_mb() -> float:
    """What this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_MB
