"""What is asked about the spans of a window, and what follows from the answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
    found = Spans(
        Emission(CODES, ALLOWED),
        seconds or [3.0] * len(heard),
        [UNSURE if alone else probed(**one) for one in heard],
        base=np.full(4, 0.25),
        spoken_s=np.zeros(4),
        before=before,
        expected=expected,
        one_nats=one_nats,
    )
    for index, one in enumerate(heard if alone else ()):
        found.hear(index, probed(**one))
    return found


def languages(found: Spans) -> list[tuple[int, int, int]]:
    return [(run.first, run.end, run.language) for run in found.runs()]


def test_sure_spans_are_followed() -> None:
    found = spans([{"en": 0.98}, {"de": 0.98}, {"de": 0.98}])
    assert languages(found) == [(0, 1, EN), (1, 3, DE)]
    assert all(run.probability > 0.9 for run in found.runs())


def test_a_short_doubtful_span_goes_with_those_around_it() -> None:
    found = spans([{"de": 0.98}, {"en": 0.5, "de": 0.3}, {"de": 0.98}], seconds=[3.0, 0.6, 3.0])
    assert languages(found) == [(0, 3, DE)]


def test_the_language_before_stays_in_doubt() -> None:
    assert languages(spans([{}], before=PL)) == [(0, 1, PL)]
    assert languages(spans([{"de": 0.99}], before=PL)) == [(0, 1, DE)]


def test_a_neighbour_of_a_spoken_language_is_taken_for_it() -> None:
    """Base detects Russian in Polish."""
    found = spans([{"pl": 0.98}, {"pl": 0.98}, {"ru": 0.5, "pl": 0.3}, {"pl": 0.98}])
    assert languages(found) == [(0, 4, PL)]


def test_unsure_spans_are_asked_about_and_sure_ones_are_not() -> None:
    found = spans([{"en": 0.99}] * 3, alone=False, before=EN)
    assert found.question() is None
    found = spans([{"en": 0.99}, {"en": 0.05, "de": 0.6}, {"en": 0.99}], alone=False, before=EN)
    assert found.question() == Question(1)
    found.hear(1, probed(de=0.99))
    assert languages(found) == [(0, 1, EN), (1, 2, DE), (2, 3, EN)]


def test_the_longest_unsure_span_is_asked_about_first_and_a_very_short_one_never() -> None:
    found = spans([{}, {}, {}], seconds=[1.0, 3.0, 0.4], alone=False)
    asked = []
    while (question := found.question()) is not None and not question.languages:
        asked.append(question.span)
        found.hear(question.span, UNSURE)
    assert asked == [1, 0]


def test_text_is_asked_for_where_sound_leaves_two_languages() -> None:
    found = spans([{"pl": 0.98}, {"pl": 0.3, "de": 0.3}, {"de": 0.98}])
    question = found.question()
    assert question is not None
    assert question.span == 1
    assert {PL, DE} <= set(question.languages)
    for nats, expected in [({PL: -10.0, DE: -60.0}, PL), ({PL: -60.0, DE: -10.0}, DE)]:
        found.read(1, nats)
        assert found.posterior[1].argmax() == expected
    assert found.question() is None, "it was asked already"


def test_languages_without_text_count_as_the_least_of_those_that_have_one() -> None:
    found = spans([{}])
    sound = found.posterior[0].copy()
    found.read(0, {PL: -10.0, DE: -160.0})
    ratios = found.posterior[0] / sound
    assert ratios[RU] < ratios[PL] / 10.0
    assert ratios[EN] < ratios[PL] / 10.0


def test_one_language_is_not_asked_for_text() -> None:
    found = spans([{"en": 0.5, "de": 0.4}] * 2, expected=EN)
    assert found.question() is None


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
