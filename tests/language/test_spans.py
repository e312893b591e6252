"""What is asked about the spans of a window, and what follows from the answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sottovoce.language.chain import ONE_NATS, Emission, Question, Spans
from tests.language.test_chain import CODES, probed

ALLOWED = ["en", "de", "pl", "ru"]
EN, DE, PL, RU = range(4)
UNSURE = probed()


def spans(
    heard: Sequence[dict[str, float]],
    *,
    seconds: Sequence[float] | None = None,
    before: int | None = None,
    expected: int | None = None,
    one_nats: float = ONE_NATS,
    alone: bool = True,
) -> Spans:
    """Spans of 3 s with these probes, encoded separately or (alone False) masked."""
    probed_spans = Spans(
        Emission(CODES, ALLOWED),
        seconds or [3.0] * len(heard),
        [UNSURE if alone else probed(**shares) for shares in heard],
        base=np.full(4, 0.25),
        spoken_s=np.zeros(4),
        before=before,
        expected=expected,
        one_nats=one_nats,
    )
    for index, shares in enumerate(heard if alone else ()):
        probed_spans.hear(index, probed(**shares))
    return probed_spans


def languages(window: Spans) -> list[tuple[int, int, int]]:
    return [(run.first, run.end, run.language) for run in window.runs()]


def test_sure_spans_are_followed() -> None:
    window = spans([{"en": 0.98}, {"de": 0.98}, {"de": 0.98}])
    assert languages(window) == [(0, 1, EN), (1, 3, DE)]
    assert all(run.probability > 0.9 for run in window.runs())


DE_98, PL_98 = {"de": 0.98}, {"pl": 0.98}


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (spans([DE_98, {"en": 0.5, "de": 0.3}, DE_98], seconds=[3.0, 0.6, 3.0]), DE),  # with those around it
        (spans([{}], before=PL), PL),
        (spans([{"de": 0.99}], before=PL), DE),
        (spans([PL_98, PL_98, {"ru": 0.5, "pl": 0.3}, PL_98]), PL),  # base detects Russian in Polish
    ],
    ids=["a short doubtful span", "doubt after Polish", "no doubt after Polish", "a neighbour of Polish"],
)
def test_a_window_of_one_language(window: Spans, expected: int) -> None:
    assert languages(window) == [(0, len(window.posterior), expected)]


def test_unsure_spans_are_asked_about_and_sure_ones_are_not() -> None:
    window = spans([{"en": 0.99}] * 3, alone=False, before=EN)
    assert window.question() is None
    window = spans([{"en": 0.99}, {"en": 0.05, "de": 0.6}, {"en": 0.99}], alone=False, before=EN)
    assert window.question() == Question(1)
    window.hear(1, probed(de=0.99))
    assert languages(window) == [(0, 1, EN), (1, 2, DE), (2, 3, EN)]


def test_the_longest_unsure_span_is_asked_about_first_and_a_very_short_one_never() -> None:
    window = spans([{}, {}, {}], seconds=[1.0, 3.0, 0.4], alone=False)
    asked = []
    while (question := window.question()) is not None and not question.languages:
        asked.append(question.span)
        window.hear(question.span, UNSURE)
    assert asked == [1, 0]


def test_text_is_asked_for_where_sound_leaves_two_languages() -> None:
    window = spans([{"pl": 0.98}, {"pl": 0.3, "de": 0.3}, {"de": 0.98}])
    question = window.question()
    assert question is not None
    assert question.span == 1
    assert {PL, DE} <= set(question.languages)
    for nats, expected in [({PL: -10.0, DE: -60.0}, PL), ({PL: -60.0, DE: -10.0}, DE)]:
        window.read(1, nats)
        assert window.posterior[1].argmax() == expected
    assert window.question() is None, "it was asked already"


def test_languages_without_text_count_as_the_least_of_those_that_have_one() -> None:
    window = spans([{}])
    sound = window.posterior[0].copy()
    window.read(0, {PL: -10.0, DE: -160.0})
    ratios = window.posterior[0] / sound
    assert ratios[RU] < ratios[PL] / 10.0
    assert ratios[EN] < ratios[PL] / 10.0


def test_one_language_is_not_asked_for_text() -> None:
    window = spans([{"en": 0.5, "de": 0.4}] * 2, expected=EN)
    assert window.question() is None


def test_several_languages_are_shown_by_clear_spans_alone() -> None:
    clear = spans([{"en": 0.98}] * 3 + [{"de": 0.98}] * 3, expected=EN)
    assert clear.shows_several()
    clear.expect_several(None)
    assert languages(clear) == [(0, 3, EN), (3, 6, DE)]
    assert not spans([{"en": 0.98}] * 3, expected=EN).shows_several()
    blurred = [{"en": 0.98}] * 3 + [{"de": 0.2, "ru": 0.15}, {"ru": 0.25}, {"pl": 0.2}] * 3
    assert not spans(blurred, expected=EN).shows_several()


def test_masked_spans_alone_show_nothing() -> None:
    assert not spans([{"en": 0.98}] * 3 + [{"de": 0.98}] * 6, expected=EN, alone=False).shows_several()


def test_windows_in_one_language_make_it_ask_less() -> None:
    hints = [{"en": 0.98}] * 4 + [{"en": 0.05, "de": 0.5}]

    def asks(one_nats: float) -> bool:
        return spans(hints, alone=False, before=EN, expected=EN, one_nats=one_nats).question() is not None

    assert asks(-5.0)
    assert not asks(10.0)
