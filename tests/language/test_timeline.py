"""The timeline: when words are settled, where a change lies, and decisions at the end of an utterance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sottovoce.language.probe import ProbedLanguage
from sottovoce.language.switching import SmoothingOptions, SwitchOptions
from sottovoce.language.timeline import HISTORY_S, LanguageTimeline

HOP, WIDTH = 0.25, 1.5


def timeline(current: str | None = None) -> LanguageTimeline:
    return LanguageTimeline(
        ("en", "de"), SmoothingOptions(), SwitchOptions(), full_width_s=WIDTH, current=current
    )


def hear(line: LanguageTimeline, change_s: float, start_s: float, end_s: float) -> list[float]:
    """Windows over speech that turns from English to German at change_s; times of the ends."""
    ends = list(np.arange(start_s + 0.5, end_s + 1e-9, HOP))
    for end in ends:
        first = max(start_s, end - WIDTH)
        english = float(np.clip((change_s - first) / (end - first), 0.002, 0.998))
        line.add(first, end, ProbedLanguage(np.array([english, 1 - english]), 1.0, 0.0))
    return ends


@pytest.mark.parametrize("change_s", [3.0, 4.1, 5.37])
def test_a_change_is_found_where_it_is(change_s: float) -> None:
    line = timeline("en")
    line.begin(0.0)
    hear(line, change_s, 0.0, change_s + 2.25)
    change = line.due(change_s + 2.25, at_end=True)
    assert change is not None
    assert (change.source, change.target) == ("en", "de")
    assert abs(change.at_s - change_s) <= 0.3
    assert line.current == "de"


def test_words_wait_from_the_last_sure_stretch_on() -> None:
    line = timeline("en")
    line.begin(0.0)
    hear(line, 100.0, 0.0, 3.0)
    assert line.certain_until_s == math.inf
    line.add(1.75, 3.25, ProbedLanguage(np.array([0.3, 0.7]), 1.0, 0.0))
    assert line.certain_until_s == pytest.approx(2.25)


def test_before_the_first_language_nothing_is_certain() -> None:
    line = timeline()
    assert line.certain_until_s == -math.inf
    line.begin(0.0)
    hear(line, 100.0, 0.0, 3.0)
    change = line.due(3.0)
    assert change is not None
    assert (change.source, change.target, change.at_s) == (None, "en", 0.0)


def test_the_end_of_an_utterance_decides() -> None:
    line = timeline()
    line.begin(0.0)
    line.add(0.0, 0.3, ProbedLanguage(np.array([0.2, 0.8]), 1.0, 0.0))
    change = line.resolve(0.4)
    assert change is not None
    assert change.target == "de"
    assert line.resolve(0.5) is None


def test_what_holds_the_whole_utterance_takes_the_place_of_what_came_before() -> None:
    line = timeline()
    line.begin(1.0)
    for end, english in ((2.0, 0.02), (2.25, 0.3), (1.0 + WIDTH, 0.8)):
        line.add(1.0, end, ProbedLanguage(np.array([english, 1 - english]), 1.0, 0.0))
    assert line.belief["en"] == pytest.approx(0.8)


def test_stretches_of_the_same_speech_count_once() -> None:
    """A longer one takes the place of those that it overlaps, wherever speech before it was heard."""
    once, often = timeline("en"), timeline("en")
    for line, ends in ((once, (8.0,)), (often, (7.0, 7.5, 8.0))):
        line.begin(0.0)
        hear(line, 100.0, 0.0, 6.0)
        for end in ends:
            line.add(6.0, end, ProbedLanguage(np.array([0.2, 0.8]), 1.0, 0.0))
    assert often.belief == pytest.approx(once.belief)


def test_long_certainty_gives_way_to_a_few_seconds_of_the_contrary() -> None:
    line = timeline("en")
    line.begin(0.0)
    for end in range(2, 200):
        line.add(float(end - 1), float(end), ProbedLanguage(np.array([1.0, 0.0]), 1.0, 0.0))
    line.add(199.0, 201.0, ProbedLanguage(np.array([0.0, 1.0]), 1.0, 0.0))
    assert line.belief["de"] > 0.9


def test_a_change_is_moved_to_where_it_is_better_known() -> None:
    line = timeline("en")
    line.begin(0.0)
    hear(line, 4.0, 0.0, 7.0)
    found = line.due(7.0, at_end=True)
    assert found is not None
    placed = line.place(found, 3.9)
    assert (placed.at_s, placed.target, line.since_s) == (3.9, "de", 3.9)


def test_after_a_pause_another_language_needs_less_than_within_an_utterance() -> None:
    begun, within = timeline("en"), timeline("en")
    begun.begin(10.0)
    within.begin(0.0)
    hear(within, 100.0, 0.0, 10.0)
    begun.add(10.0, 11.5, ProbedLanguage(np.array([0.1, 0.9]), 1.0, 0.0))
    within.add(10.0, 11.5, ProbedLanguage(np.array([0.1, 0.9]), 1.0, 0.0))
    change = begun.due(11.5, at_end=True)
    assert change is not None
    assert (change.target, change.at_s) == ("de", 10.0)
    assert within.due(11.5, at_end=True) is None


def test_a_stretch_begins_no_earlier_than_the_last_change() -> None:
    line = timeline("en")
    line.begin(2.0)
    assert line.since_s == 2.0
    hear(line, 7.0, 2.0, 10.0)
    change = line.due(10.0, at_end=True)
    assert change is not None
    assert line.since_s == change.at_s > 6.0
    assert not line.is_opening


def test_the_first_language_leaves_the_utterance_open() -> None:
    line = timeline()
    line.begin(0.0)
    hear(line, 100.0, 0.0, 3.0)
    assert line.due(3.0, at_end=True) is not None
    assert line.is_opening, "all of the utterance may still be heard at once"


def test_a_first_language_is_corrected_by_all_of_the_utterance() -> None:
    """Its evidence is replaced by that of longer stretches, and does not count twice."""
    line = LanguageTimeline(("en", "de", "es"), SmoothingOptions(), SwitchOptions(), full_width_s=WIDTH)
    line.begin(0.0)
    for end in (1.0, 1.5, 2.0):
        line.add(0.0, end, ProbedLanguage(np.array([0.95, 0.03, 0.02]), 1.0, 0.0))
    first = line.due(2.0)
    assert first is not None
    assert first.target == "en"
    line.add(0.0, 4.0, ProbedLanguage(np.array([0.3, 0.65, 0.05]), 1.0, 0.0))
    corrected = line.due(4.0)
    assert corrected is not None
    assert (corrected.source, corrected.target) == ("en", "de")
    assert corrected.at_s <= 2.0, "what may be another language is no later than what spoke for the first"


@pytest.mark.parametrize(("allowed_mass", "no_speech"), [(1.0, 1.0), (0.0, 0.0)], ids=["silence", "outside"])
def test_silence_and_languages_outside_the_list_say_nothing(allowed_mass: float, no_speech: float) -> None:
    speech, nothing = timeline(), timeline()
    speech.add(0.0, WIDTH, ProbedLanguage(np.array([0.99, 0.01]), 1.0, 0.0))
    nothing.add(0.0, WIDTH, ProbedLanguage(np.array([0.99, 0.01]), allowed_mass, no_speech))
    assert speech.belief["en"] > 0.75
    assert nothing.belief["en"] == pytest.approx(0.5)


def test_history_is_bounded() -> None:
    line = timeline("en")
    for i in range(2000):
        line.add(i * HOP, i * HOP + WIDTH, ProbedLanguage(np.array([0.9, 0.1]), 1.0, 0.0))
    assert len(line.frames) <= HISTORY_S / HOP + 1


def test_mass_outside_of_the_list_is_told_for_a_span() -> None:
    line = timeline("en")
    line.begin(0.0)
    for end, mass in ((1.0, 0.9), (1.5, 0.7), (3.0, 0.2)):
        line.add(end - 0.5, end, ProbedLanguage(np.array([0.5, 0.5]), mass, 0.0))
    assert line.allowed_mass(0.0, 2.0) == pytest.approx(0.8)
    assert line.allowed_mass(2.0, 3.0) == pytest.approx(0.2)
    assert line.allowed_mass(4.0, 5.0) is None
