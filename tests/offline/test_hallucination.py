from __future__ import annotations

import pytest

from sottovoce.offline.drafts import Draft
from sottovoce.offline.hallucination import WindowSpan, anomaly_score, is_anomaly, skip_hallucinations
from sottovoce.types import Word

SPAN = WindowSpan(start=0.0, end=30.0, full_end=30.0, last_speech=0.0)


def said(start: float, end: float, probability: float, n_words: int = 4) -> Draft:
    step = (end - start) / n_words
    words = [Word(" w", start + i * step, start + (i + 1) * step, probability) for i in range(n_words)]
    return Draft(start, end, (1,) * n_words, words)


def test_scores_add_up() -> None:
    assert anomaly_score(Word("a", 0.0, 0.5, 0.9)) == 0.0
    assert anomaly_score(Word("a", 0.0, 0.5, 0.1)) == 1.0
    assert anomaly_score(Word("a", 0.0, 0.033, 0.9)) == pytest.approx(1.5)
    assert anomaly_score(Word("a", 0.0, 3.0, 0.1)) == pytest.approx(2.0)
    assert not is_anomaly([])
    assert is_anomaly(said(0, 2, 0.05).words)
    assert not is_anomaly(said(0, 2, 0.8).words)


def test_ordinary_speech_is_kept() -> None:
    drafts = [said(1, 3, 0.9), said(4, 6, 0.8)]
    assert skip_hallucinations(drafts, SPAN, 2.0).drafts == drafts
    assert skip_hallucinations(drafts, SPAN, 2.0).seek is None


def test_an_improbable_beginning_after_silence_restarts_there() -> None:
    verdict = skip_hallucinations([said(5, 7, 0.05), said(8, 9, 0.9)], SPAN, 2.0)
    assert (verdict.drafts, verdict.seek, verdict.restarts) == ([], 500, True)


def test_an_improbable_segment_between_silences_is_dropped_with_the_rest() -> None:
    first = said(0, 3, 0.9)
    verdict = skip_hallucinations([first, said(10, 12, 0.05), said(20, 22, 0.9)], SPAN, 2.0)
    assert (verdict.drafts, verdict.seek, verdict.dropped_end) == ([first], 1000, 12)


def test_an_improbable_segment_within_speech_is_kept() -> None:
    drafts = [said(0, 10, 0.9), said(10, 12, 0.05), said(12, 15, 0.9)]
    assert skip_hallucinations(drafts, SPAN, 2.0).drafts == drafts
