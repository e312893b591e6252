"""A transcript of several languages is shared out over what was spoken."""

from __future__ import annotations

from sottovoce.evaluation.manifest import LabelledSpan
from sottovoce.evaluation.wer import ScoreOptions, by_span, score

SPANS = (
    LabelledSpan(0.0, 1.0, "en", "good morning my friend"),
    LabelledSpan(1.0, 2.0, "zh", "没问题"),
    LabelledSpan(2.0, 3.0, "en", "see you"),
)


def test_errors_count_for_the_language_that_was_spoken() -> None:
    shared = by_span(SPANS, "Good morning, my fiend. 没题 see you")
    assert [(one.language, one.hypothesis) for one in shared] == [
        ("en", "good morning my fiend"),
        ("zh", "没 题"),
        ("en", "see you"),
    ]
    found = score(shared, ScoreOptions(n_resamples=0)).by_language
    assert found["en"].mer.rate == 1 / 6
    assert found["zh"].mer.rate == 1 / 3


def test_without_texts_nothing_is_shared_out() -> None:
    assert by_span((*SPANS, LabelledSpan(3.0, 4.0, "de")), "good morning") == []
