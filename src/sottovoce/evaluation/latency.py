"""Latency of live transcripts: LAAL, StreamLAAL, word latency, and SimulEval's log lines.

Delays are seconds of audio received when a word was emitted (computation-unaware) or seconds on the clock
since the audio began (computation-aware); the caller gives one or the other. Words are compared as they are:
normalise them first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sottovoce.errors import InputError
from sottovoce.text.word_edits import align_words


def laal(delays_s: Sequence[float], source_s: float, n_reference: int) -> float:
    """Compute the length-adaptive average lagging of one utterance, in seconds; nan without words.

    delays_s: of each emitted word, in order. source_s: length of the audio. n_reference: words of the
    reference. Words up to the first that came when all audio was in are counted; nan without words.
    Source: Papi et al., Over-Generation Cannot Be Rewarded (2022), equation 4; as in SimulEval, an
    utterance whose first word comes only after its end has that word's delay.
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
    """A stretch of the reference: its words (normalised) and where it lies in the recording."""

    words: tuple[str, ...]
    start_s: float
    end_s: float


def resegment(hypothesis: Sequence[str], segments: Sequence[ReferenceSegment]) -> list[range]:
    """Cut a running hypothesis into as many pieces as the reference has segments.

    A word goes to the segment of the reference word it is aligned with; a word aligned with none goes with
    the word before it. Returns index ranges of `hypothesis` that join without gap or overlap.
    Source: the least-edit segmentation of Matusov et al. (2005), on which StreamLAAL is defined.
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
    """Compute the mean LAAL of a long recording, whose words are first cut into the segments of the
    reference.

    Each segment has its own clock. nan when no segment got a word.
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
    """Return emission minus true end, in seconds, of each word that was recognised right.

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
    """One recording in the form that SimulEval, OmniSTEval and others read.

    delays_s: audio received at each word's emission. elapsed_s: clock at the same moments, from the
    beginning of the audio. source_s: length of the recording.
    """

    index: int
    words: tuple[str, ...]
    delays_s: tuple[float, ...]
    elapsed_s: tuple[float, ...]
    source_s: float
    source: str
    reference: str = ""

    def to_json(self) -> str:
        """Return one JSON line: times in milliseconds, `prediction` as words joined by single spaces."""
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
