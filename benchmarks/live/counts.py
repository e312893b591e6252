"""Counts of live runs: errors, loops, latency, and the accuracy of word times.

Units are words, and characters of scripts without spaces, after the normalisation of `evaluation.scores`.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.live.runs import Item, Live, Whole
from sottovoce.evaluation.scores import (
    Comparison,
    ErrorCounts,
    LiveRun,
    ScoredUtterance,
    compare,
    count_errors,
    split_units,
)
from sottovoce.text.normalize import normalizer_for
from sottovoce.text.word_edits import align_words
from sottovoce.types import Word

LONG_RATIO, LONG_UNITS = 1.5, 3
"""Half as many units again as were said, and no fewer than so many too many, are too long."""
REMARK = re.compile(r"\[[^\]]*\]")
BRACKETS = str.maketrans(dict.fromkeys("()[]{}<>（）", " "))
SHORT_S = 0.04
"""No subtitle can show a word shorter than this."""


@dataclass(frozen=True, slots=True)
class TimedUnit:
    """A unit as it is compared. at: index of the word that it is in, of whose time it has its share."""

    text: str
    start_s: float
    end_s: float
    at: int


def timed_units(words: Sequence[Word], language: str | None) -> list[TimedUnit]:
    """The units of words; one that is several shares its time among them evenly."""
    normalize = normalizer_for(language)
    found = []
    for at, word in enumerate(words):
        units = split_units(normalize(word.word), "mixed")
        length = (word.end - word.start) / max(1, len(units))
        for i, unit in enumerate(units):
            found.append(TimedUnit(unit, word.start + i * length, word.start + (i + 1) * length, at))
    return found


def pairs(heard: Sequence[TimedUnit], reference: Sequence[TimedUnit]) -> list[tuple[TimedUnit, TimedUnit]]:
    """Units that both have, aligned."""
    aligned = align_words([one.text for one in heard], [one.text for one in reference])
    both = [(heard[i], reference[j]) for i, j in aligned if i is not None and j is not None]
    return [(one, other) for one, other in both if one.text == other.text]


def errors(item: Item, text: str) -> ErrorCounts:
    return count_errors(utterance(item, text)).mixed


def error_rate(items: Sequence[Item], texts: Sequence[str]) -> float:
    """Errors over all units of the items; 0 where nothing was said."""
    total = sum((errors(item, text) for item, text in zip(items, texts, strict=True)), ErrorCounts())
    return total.rate or 0.0


def utterance(item: Item, text: str) -> ScoredUtterance:
    """What was said and heard. Whisper's normaliser takes what stands in brackets for a comment and drops it,
    but a program that writes some has heard the words: the brackets go, the words stay. In what was said they
    hold remarks of who wrote it down ("[false_start]"), which go."""
    said, heard = REMARK.sub(" ", item.text), text.translate(BRACKETS)
    return ScoredUtterance(said, heard, item.languages if len(item.languages) > 1 else item.language)


def is_long(counts: ErrorCounts) -> bool:
    heard = counts.hits + counts.substitutions + counts.insertions
    too_many = heard - counts.n_reference
    return heard >= LONG_RATIO * counts.n_reference and too_many >= LONG_UNITS


def is_loop(item: Item, text: str) -> bool:
    """Whether far more was heard than said, and as much as is too long is what was heard before.

    One wrong word may be written out as two by the normaliser ("I'd"), so that few words become too many
    without a loop.
    """
    return is_long(errors(item, text)) and n_repeated(item, text) >= LONG_UNITS


def n_repeated(item: Item, text: str) -> int:
    """Units heard once more, and more often than they were said."""
    normalize, both = normalizer_for(item.language), utterance(item, text)
    said, heard = (Counter(split_units(normalize(one), "mixed")) for one in (both.reference, both.hypothesis))
    return sum(max(0, n - max(1, said[unit])) for unit, n in heard.items())


def n_first(run: LiveRun) -> int:
    """Words of the first update that said anything."""
    return sum(delay == run.delays_s[0] for delay in run.delays_s)


@dataclass(frozen=True, slots=True)
class Timing:
    """Of one recording: latencies (seconds from a word's end in the file's transcript to its coming, and to
    its end as the program itself has it), and how far starts and ends lie from those of the file."""

    latencies_s: tuple[float, ...]
    own_latencies_s: tuple[float, ...]
    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]


def timing(run: LiveRun, whole: Whole, language: str | None) -> Timing:
    """Only words that both transcripts have, for they are where their ends are known."""
    both = pairs(timed_units(run.words, language), timed_units(whole.words, language))
    return Timing(
        tuple(run.delays_s[one.at] - other.end_s for one, other in both),
        tuple(delay - word.end for delay, word in zip(run.delays_s, run.words, strict=True)),
        tuple(one.start_s - other.start_s for one, other in both),
        tuple(one.end_s - other.end_s for one, other in both),
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one setting over recordings; rates are of all units together.

    beside: rate minus that of the files' transcripts, with its interval. at_end: share of words that came
    when the recording was over. first_words: words in the first update that said anything, a recording. cpu:
    processor seconds a second of audio. frames: encoder frames computed for each frame of audio. start_s,
    end_s: median distance of word times from the file's. short: share of words shorter than `SHORT_S`.
    """

    n_clips: int
    n_units: int
    rate: float
    beside: Comparison
    insertions: int
    loops: int
    latency_s: float | None
    latency_p90_s: float | None
    own_latency_s: float | None
    at_end: float
    first_words: float
    cpu: float
    frames: float | None
    start_s: float | None
    end_s: float | None
    short: float


def summary(items: Sequence[Item], lives: Sequence[Live], wholes: Sequence[Whole]) -> Summary:
    """Raises: OptionError where nothing is said in the items."""
    counts = [errors(item, live.text) for item, live in zip(items, lives, strict=True)]
    total = sum(counts, ErrorCounts())
    runs = [live.run for live in lives]
    times = [timing(run, whole, item.language) for item, run, whole in zip(items, runs, wholes, strict=True)]
    words = [word for run in runs for word in run.words]
    latencies = [one for time in times for one in time.latencies_s]
    late = sum(delay >= run.duration_s for run in runs for delay in run.delays_s)
    seconds = sum(run.duration_s for run in runs)
    frames = [live.encoder_frames for live in lives]
    known = [count for count in frames if count is not None]
    return Summary(
        n_clips=len(items),
        n_units=total.n_reference,
        rate=total.rate or 0.0,
        beside=beside(items, [whole.text for whole in wholes], [live.text for live in lives]),
        insertions=total.insertions,
        loops=sum(is_loop(item, live.text) for item, live in zip(items, lives, strict=True)),
        latency_s=median(latencies),
        latency_p90_s=float(np.quantile(latencies, 0.9)) if latencies else None,
        own_latency_s=median([one for time in times for one in time.own_latencies_s]),
        at_end=late / max(1, len(words)),
        first_words=statistics.fmean([n_first(run) for run in runs if run.words] or [0]),
        cpu=sum(run.cpu_s for run in runs) / seconds,
        frames=sum(known) / (50 * seconds) if len(known) == len(lives) else None,
        start_s=median([abs(one) for time in times for one in time.starts_s]),
        end_s=median([abs(one) for time in times for one in time.ends_s]),
        short=sum(word.end - word.start < SHORT_S for word in words) / max(1, len(words)),
    )


def beside(items: Sequence[Item], first: Sequence[str], second: Sequence[str]) -> Comparison:
    ours, theirs = (
        [utterance(i, text) for i, text in zip(items, texts, strict=True)] for texts in (first, second)
    )
    return compare(ours, theirs)


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
