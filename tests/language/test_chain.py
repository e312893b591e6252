"""The hidden Markov model of languages equals enumeration; questions about the spans of a window."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from sottovoce.language.chain import (
    ONE_NATS,
    Array,
    Emission,
    Question,
    Spans,
    base_prior,
    best_path,
    fitted,
    moved,
    posterior,
    prior_after,
    spoken_given_detected,
)
from sottovoce.language.probe import ProbedLanguage
from sottovoce.text.languages import language_codes

CODES = list(language_codes())
CHANGE = 1.5


def example(seed: int) -> tuple[Array, Array]:
    """Evidence (T, A) and a log-prior (A,)."""
    rng = np.random.default_rng(seed)
    n_spans, n_languages = rng.integers(1, 6), rng.integers(2, 4)
    return rng.normal(0.0, 2.0, (n_spans, n_languages)), np.log(rng.dirichlet(np.ones(n_languages)))


def all_paths(evidence: Array, log_prior: Array, before: int | None) -> dict[tuple[int, ...], float]:
    """The log-probability of each path with the evidence, where a change may draw the same language."""
    n_spans, n_languages = evidence.shape
    prior, change = np.exp(log_prior), np.exp(-CHANGE)
    paths = {}
    for path in product(range(n_languages), repeat=n_spans):
        total = 0.0
        for index, place in enumerate(path):
            source = path[index - 1] if index else before
            if source is None:
                total += np.log(prior[place])
            else:
                total += np.log((source == place) * (1.0 - change) + change * prior[place])
            total += evidence[index, place]
        paths[path] = total
    return paths


@pytest.mark.parametrize("before", [None, 0])
@pytest.mark.parametrize("seed", range(20))
def test_posteriors_sum_over_all_paths(seed: int, before: int | None) -> None:
    evidence, log_prior = example(seed)
    paths = all_paths(evidence, log_prior, before)
    expected = np.zeros_like(evidence)
    for path, nats in paths.items():
        expected[np.arange(len(path)), path] += np.exp(nats)
    posteriors, log_likelihood = posterior(evidence, log_prior, CHANGE, before)
    np.testing.assert_allclose(posteriors, expected / expected.sum(axis=1, keepdims=True), atol=1e-9)
    assert log_likelihood == pytest.approx(np.logaddexp.reduce(list(paths.values())), abs=1e-9)


def score(path: list[int], evidence: Array, log_prior: Array, before: int | None) -> float:
    """The best of the ways to a path: to stay, or to change to the same language, costs no more than one."""
    total = 0.0
    for index, place in enumerate(path):
        source = path[index - 1] if index else before
        if source is None:
            total += log_prior[place]
        elif index == 0:
            total += moved(np.where(np.arange(len(log_prior)) == source, 0.0, -1e9), log_prior, CHANGE)[place]
        else:
            changed = log_prior[place] - CHANGE
            total += max(changed, np.log1p(-np.exp(-CHANGE))) if source == place else changed
        total += evidence[index, place]
    return total


@pytest.mark.parametrize("before", [None, 1])
@pytest.mark.parametrize("seed", range(20))
def test_no_other_path_is_better(seed: int, before: int | None) -> None:
    evidence, log_prior = example(seed)
    viterbi = best_path(evidence, log_prior, CHANGE, before)
    best = max(
        score(list(path), evidence, log_prior, before)
        for path in product(range(evidence.shape[1]), repeat=len(evidence))
    )
    assert score(viterbi, evidence, log_prior, before) == pytest.approx(best, abs=1e-9)


def test_a_language_that_was_spoken_is_likelier() -> None:
    base = np.full(4, 0.25)
    unknown = prior_after(base, np.zeros(4), 2.0)
    np.testing.assert_allclose(unknown, np.log(base))
    after = np.exp(prior_after(base, np.array([6.0, 0.0, 2.0, 0.0]), 2.0))
    np.testing.assert_allclose(after, [0.65, 0.05, 0.25, 0.05])


def test_frequent_languages_are_likelier_and_odds_count() -> None:
    plain, less = (
        base_prior(["en", "zh", "de"], ["en", "zh", "de"], {}),
        base_prior(["en", "zh", "de"], ["en", "zh", "de"], {"zh": -np.inf}),
    )
    np.testing.assert_allclose(plain, np.array([6, 3, 2]) / 11)
    np.testing.assert_allclose(less, np.array([3, 0, 1]) / 4)


def test_each_detected_language_was_spoken_in_one() -> None:
    spoken = spoken_given_detected(CODES, fitted().detected)
    np.testing.assert_allclose(spoken.sum(axis=0), 1.0)
    assert (spoken > 0.0).all()
    detected = CODES.index("gl")  # base detects Galician in Spanish and Portuguese
    assert spoken[CODES.index("es"), detected] > 5 * spoken[CODES.index("de"), detected]
    assert spoken[CODES.index("pl"), CODES.index("pl")] > 0.5


def probed(no_speech: float = 0.0, **shares: float) -> ProbedLanguage:
    probabilities = np.full(len(CODES), (1.0 - sum(shares.values())) / len(CODES))
    for code, share in shares.items():
        probabilities[CODES.index(code)] += share
    return ProbedLanguage(probabilities, 1.0, no_speech)


def test_evidence_grows_with_duration_and_falls_with_silence() -> None:
    emission = Emission(CODES, ["de", "pl"])

    def nats(probe: ProbedLanguage, seconds: float, *, masked: bool = False) -> float:
        german, polish = emission.log_likelihood(probe, seconds, masked=masked)
        return float(german - polish)

    german = probed(de=0.9)
    assert 0.0 < nats(german, 1.0) < nats(german, 3.0)
    assert nats(probed(no_speech=0.9, de=0.9), 3.0) == pytest.approx(0.1 * nats(german, 3.0))
    assert nats(german, 1.0, masked=True) == nats(german, 9.0, masked=True)
    assert nats(probed(ru=0.9), 3.0) < 0.0, "base detects Russian in Polish"


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
