"""The timeline of a live session: its posterior against enumeration, switches, change points, decisions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sottovoce.language.chain import (
    HISTORY_S,
    Emission,
    LanguageChange,
    LanguageTimeline,
    base_prior,
    fitted,
    prior_after,
)
from sottovoce.language.probe import ProbedLanguage
from sottovoce.text.tokenizer import Tokenizer

CODES = Tokenizer.for_model(51865).language_codes
HOP, WIDTH = 0.25, 1.5


def timeline(
    current: str | None = None,
    languages: tuple[str, ...] = ("en", "de"),
    *,
    certainty: float = 0.8,
    first_wait_s: float = 3.5,
) -> LanguageTimeline:
    base = base_prior(CODES, languages, {})
    emission = Emission(CODES, languages)
    return LanguageTimeline(
        languages, emission, base, certainty=certainty, first_wait_s=first_wait_s, initial=current
    )


def probed(no_speech: float = 0.0, **shares: float) -> ProbedLanguage:
    probabilities = np.zeros(len(CODES))
    for code, share in shares.items():
        probabilities[CODES.index(code)] = share
    return ProbedLanguage(probabilities, 1.0, no_speech)


def hear(line: LanguageTimeline, change_s: float, start_s: float, end_s: float) -> None:
    """Add stretches over speech that turns from English to German at change_s."""
    for end in np.arange(start_s + 0.5, end_s + 1e-9, HOP):
        first = max(start_s, end - WIDTH)
        english = float(np.clip((change_s - first) / (end - first), 0.002, 0.998))
        line.add(first, end, probed(en=english, de=1 - english))


def decided(line: LanguageTimeline, *, at_end: bool = False) -> LanguageChange:
    change = line.decide(at_end=at_end)
    assert change is not None
    return change


def test_the_posterior_is_that_of_all_paths() -> None:
    """Of stretches without overlap; the languages before the utterance count too."""
    languages, rng = ("en", "de", "fr"), np.random.default_rng(5)
    line = timeline("en", languages)
    line.begin(0.0)
    line.add(0.0, 2.0, probed(en=0.9, de=0.05, fr=0.05))
    spoken_s = 2.0 * np.array([line.belief[code] for code in languages])
    line.begin(4.0)
    rows = [probed(**dict(zip(languages, rng.dirichlet(np.ones(3)), strict=True))) for _ in range(4)]
    for index, row in enumerate(rows):
        line.add(4.0 + index, 5.0 + index, row)

    emission, change = Emission(CODES, languages), fitted().numbers.change
    equal = np.full(3, 1 / 3)

    def move(log_prior: np.ndarray) -> np.ndarray:
        moves = np.exp(-change) * np.tile(np.exp(log_prior), (3, 1))
        return moves + (1 - np.exp(-change)) * np.eye(3)

    before = move(prior_after(equal, np.zeros(3), fitted().numbers.unspoken_s))
    after = move(prior_after(equal, spoken_s, fitted().numbers.unspoken_s))
    likelihoods = [np.exp(emission.log_likelihood(probed(en=0.9, de=0.05, fr=0.05), 2.0))]
    likelihoods += [np.exp(emission.log_likelihood(row, 1.0)) for row in rows]
    ending = np.zeros(3)
    for path in itertools.product(range(3), repeat=5):
        score = likelihoods[0][path[0]] * before[0, path[0]]  # English before the session
        for index, (a, b) in enumerate(itertools.pairwise(path), start=1):
            score *= after[a, b] * likelihoods[index][b]
        ending[path[-1]] += score
    expected = dict(zip(languages, ending / ending.sum(), strict=True))
    assert line.belief == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("change_s", [3.0, 4.1, 5.37])
def test_a_change_is_found_where_it_is(change_s: float) -> None:
    line = timeline("en")
    line.begin(0.0)
    hear(line, change_s, 0.0, change_s + 2.25)
    change = decided(line)
    assert (change.source, change.target) == ("en", "de")
    assert abs(change.at_s - change_s) <= 0.3
    assert line.current == "de"


def test_words_wait_from_the_last_sure_stretch_on() -> None:
    line = timeline("en")
    line.begin(0.0)
    hear(line, 100.0, 0.0, 3.0)
    assert line.certain_until_s == math.inf
    line.add(1.75, 3.25, probed(en=0.2, de=0.8))
    assert line.certain_until_s == pytest.approx(2.25)


def test_before_the_first_language_nothing_is_certain() -> None:
    line = timeline()
    assert line.certain_until_s == -math.inf
    line.begin(0.0)
    hear(line, 100.0, 0.0, 3.0)
    change = decided(line)
    assert (change.source, change.target, change.at_s) == (None, "en", 0.0)


def test_the_first_language_waits_no_longer_than_allowed() -> None:
    line = timeline(first_wait_s=2.0)
    line.begin(10.0)
    line.add(10.0, 11.5, probed(en=0.5, de=0.5))
    assert line.decide() is None
    line.add(10.0, 12.0, probed(en=0.4, de=0.6))
    change = decided(line)
    assert change.target == "de"


def test_the_end_of_an_utterance_decides() -> None:
    line = timeline()
    line.begin(0.0)
    line.add(0.0, 0.3, probed(en=0.2, de=0.8))
    change = decided(line, at_end=True)
    assert change.target == "de"
    assert line.decide(at_end=True) is None


def test_stretches_of_the_same_speech_count_once() -> None:
    """A longer one takes the place of those that it overlaps, wherever speech before it was heard."""
    for before_s in (0.0, 6.0):
        once, often = timeline("en"), timeline("en")
        for line, ends in ((once, (8.0,)), (often, (7.0, 7.5, 8.0))):
            line.begin(0.0)
            if before_s:
                hear(line, 100.0, 0.0, before_s)
            for end in ends:
                line.add(before_s, end, probed(en=0.2, de=0.8))
        assert often.belief == pytest.approx(once.belief)


def test_long_certainty_gives_way_to_a_few_seconds_of_the_contrary() -> None:
    line = timeline("en")
    line.begin(0.0)
    for end in range(2, 200):
        line.add(float(end - 1), float(end), probed(en=1.0))
    line.add(199.0, 202.0, probed(de=1.0))
    assert line.belief["de"] > 0.9


def test_a_change_is_moved_to_where_it_is_better_known() -> None:
    line = timeline("en")
    line.begin(0.0)
    hear(line, 4.0, 0.0, 7.0)
    change = decided(line)
    placed = line.place(change, 3.9)
    assert (placed.at_s, placed.target, line.since_s) == (3.9, "de", 3.9)


def test_a_language_that_was_spoken_before_needs_less() -> None:
    """Spanish was spoken for a while, French never was."""
    lines = [timeline("es", ("en", "es", "fr")) for _ in range(2)]
    for line, target in zip(lines, ("es", "fr"), strict=True):
        line.begin(0.0)
        line.add(0.0, 5.0, probed(es=1.0))
        line.begin(10.0)
        line.add(10.0, 15.0, probed(en=1.0))
        assert line.decide(at_end=True) is not None
        line.begin(20.0)
        line.add(20.0, 21.0, probed(**{target: 0.8}, en=0.2))
    assert lines[0].belief["es"] > lines[1].belief["fr"] + 0.1


def test_a_stretch_begins_no_earlier_than_the_last_change() -> None:
    line = timeline("en")
    line.begin(2.0)
    assert line.since_s == 2.0
    hear(line, 7.0, 2.0, 10.0)
    change = decided(line)
    assert line.since_s == change.at_s > 6.0
    assert not line.is_opening


def test_the_first_language_leaves_the_utterance_open() -> None:
    line = timeline()
    line.begin(0.0)
    hear(line, 100.0, 0.0, 3.0)
    assert line.decide() is not None
    assert line.is_opening, "all of the utterance may still be heard at once"


def test_a_first_language_is_corrected_by_all_of_the_utterance() -> None:
    """Its evidence is replaced by that of longer stretches, and does not count twice."""
    line = timeline(languages=("en", "de", "es"))
    line.begin(0.0)
    for end in (1.0, 1.5, 2.0):
        line.add(0.0, end, probed(en=0.95, de=0.03, es=0.02))
    first = decided(line)
    assert first.target == "en"
    line.add(0.0, 4.0, probed(en=0.2, de=0.75, es=0.05))
    corrected = decided(line)
    assert (corrected.source, corrected.target) == ("en", "de")
    assert corrected.at_s <= 2.0, "what may be another language is no later than what spoke for the first"


def test_a_higher_certainty_takes_more_evidence() -> None:
    ends = np.arange(0.5, 5.0, 0.1)
    n_switched = []
    for certainty in (0.6, 0.9, 0.98, 1.0):
        line = timeline("en", certainty=certainty)
        line.begin(0.0)
        n = 0
        while line.decide() is None and n < len(ends):
            line.add(0.0, float(ends[n]), probed(en=0.01, de=0.99))
            n += 1
        n_switched.append(n)
    assert n_switched == sorted(set(n_switched))
    assert n_switched[-1] == len(ends), "certainty 1 never switches within an utterance"


@pytest.mark.parametrize(("no_speech", "shares"), [(1.0, {"en": 0.99, "de": 0.01}), (0.0, {"ja": 1.0})])
def test_silence_and_languages_outside_the_list_say_little(
    no_speech: float, shares: dict[str, float]
) -> None:
    speech, nothing = timeline(), timeline()
    speech.add(0.0, WIDTH, probed(en=0.99, de=0.01))
    nothing.add(0.0, WIDTH, probed(no_speech, **shares))
    assert speech.belief["en"] > 0.9
    assert nothing.belief["en"] < 0.8


def test_history_is_bounded() -> None:
    line = timeline("en")
    for i in range(2000):
        line.add(i * HOP, i * HOP + WIDTH, probed(en=0.9, de=0.1))
    assert len(line.frames) <= HISTORY_S / HOP + 1


def test_mass_of_the_list_is_measured_for_a_span() -> None:
    line = timeline("en")
    line.begin(0.0)
    for end, mass in ((1.0, 0.9), (1.5, 0.7), (3.0, 0.2)):
        line.add(end - 0.5, end, probed(en=mass, fr=1 - mass))
    assert line.allowed_mass(0.0, 2.0) == pytest.approx(0.8)
    assert line.allowed_mass(2.0, 3.0) == pytest.approx(0.2)
    assert line.allowed_mass(4.0, 5.0) is None
