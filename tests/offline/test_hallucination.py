from __future__ import annotations

import pytest

from sottovoce.offline.seek import WindowSpan, anomaly_score, is_anomaly, skip_hallucinations
from sottovoce.offline.segments import WindowCut
from sottovoce.types import Segment, Word

SPAN = WindowSpan(start=0.0, end=30.0, full_end=30.0, last_speech=0.0)


def said(start: float, end: float, probability: float, n_words: int = 4) -> Segment:
    step = (end - start) / n_words
    words = [Word(" w", start + i * step, start + (i + 1) * step, probability) for i in range(n_words)]
    return Segment(0, start, end, " w" * n_words, "en", (1,) * n_words, words=tuple(words))


def skipped(*segments: Segment, end_frame: int | None = None) -> WindowCut:
    """What remains of a window after which one would go on at frame 2900."""
    return skip_hallucinations(WindowCut(segments, 2900), SPAN, 2.0, end_by=lambda _: end_frame)


def test_scores_add_up() -> None:
    assert anomaly_score(Word("a", 0.0, 0.5, 0.9)) == 0.0
    assert anomaly_score(Word("a", 0.0, 0.5, 0.1)) == 1.0
    assert anomaly_score(Word("a", 0.0, 0.033, 0.9)) == pytest.approx(1.5)
    assert anomaly_score(Word("a", 0.0, 3.0, 0.1)) == pytest.approx(2.0)
    assert not is_anomaly([])
    assert is_anomaly(said(0, 2, 0.05).words or ())
    assert not is_anomaly(said(0, 2, 0.8).words or ())


def test_ordinary_speech_is_kept() -> None:
    segments = said(1, 3, 0.9), said(4, 6, 0.8)
    assert skipped(*segments) == WindowCut(segments, 2900)


def test_an_improbable_beginning_after_silence_restarts_there() -> None:
    assert skipped(said(5, 7, 0.05), said(8, 9, 0.9)) == WindowCut((), 500, restarts=True)


def test_an_improbable_segment_between_silences_is_dropped_with_the_rest() -> None:
    first, *rest = said(0, 3, 0.9), said(10, 12, 0.05), said(20, 22, 0.9)
    assert skipped(first, *rest) == WindowCut((first,), 1000)
    assert skipped(first, *rest, end_frame=1350) == WindowCut((first,), 1350)  # nothing but silence is left


def test_an_improbable_segment_within_speech_is_kept() -> None:
    segments = said(0, 10, 0.9), said(10, 12, 0.05), said(12, 15, 0.9)
    assert skipped(*segments).segments == segments
