"""The languages of pieces of speech: a change has to be worth it, and is looked for in both directions;
limits adapt; text settles runs that sound leaves open.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.language.follow import (
    CHANGE_COST,
    CLEAR,
    CLEAR_NATS,
    FLOOR,
    LEAST_CLEAR,
    LEAST_HINT_NATS,
    LEAST_SURPRISAL,
    MOST_HINT_NATS,
    MOST_SURPRISAL,
    PAUSE_NATS,
    SHARE,
    TEXT_WEIGHT,
    UNKNOWN_NATS,
    AskingLimits,
    PieceEvidence,
    PieceRun,
    are_several,
    gain,
    hint_nats,
    is_likely,
    language_runs,
    likelier_nats,
    neighbour_shares,
    text_evidence,
    uncertain_runs,
)


def test_pieces_are_detected_less_after_windows_in_one_language_and_as_before_after_another() -> None:
    limits = AskingLimits()
    found = [limits.clear]
    for _ in range(20):
        limits = limits.after_pieces(finds_another=False)
        found.append(limits.clear)
    assert found == sorted(found, reverse=True)
    assert (found[0], found[-1]) == (CLEAR, LEAST_CLEAR)
    assert limits.after_pieces(finds_another=True).clear == CLEAR


def test_limits_stay_between_their_bounds_and_come_back() -> None:
    limits = AskingLimits()
    for _ in range(50):
        limits = limits.after_hints().after_text()
    assert (limits.hint_nats, limits.surprisal) == (MOST_HINT_NATS, MOST_SURPRISAL)
    for _ in range(50):
        limits = limits.in_next_window().rested()
    assert (limits.hint_nats, limits.surprisal) == (LEAST_HINT_NATS, LEAST_SURPRISAL)


def piece(
    language: int, sureness: float = 0.95, seconds: float = 3.0, no_speech: float = 0.0
) -> PieceEvidence:
    posterior = np.full(3, (1.0 - sureness) / 2)
    posterior[language] = sureness
    return PieceEvidence(seconds, posterior, no_speech)


def several(pieces: Sequence[PieceEvidence], pause_s: float = 0.3) -> bool:
    return are_several(pieces, [pause_s] * len(pieces), 0)


def runs(*pieces: PieceEvidence, before: int | None = None) -> list[tuple[int, int, int]]:
    found = language_runs(pieces, [0.3] * len(pieces), before=before)
    return [(run.first, run.end, run.language) for run in found]


def test_sure_pieces_are_followed() -> None:
    assert runs(piece(0), piece(0), piece(1), piece(2)) == [(0, 2, 0), (2, 3, 1), (3, 4, 2)]


def test_a_short_doubtful_piece_goes_with_those_around_it() -> None:
    assert runs(piece(0), piece(1, 0.6, 0.7), piece(0)) == [(0, 3, 0)]
    assert runs(piece(0), piece(1, 0.95, 0.1), piece(0)) == [(0, 3, 0)]
    assert runs(piece(0), piece(1, no_speech=0.9), piece(0)) == [(0, 3, 0)]


def test_what_follows_counts_as_much_as_what_went_before() -> None:
    """A doubtful piece between two languages belongs to the one that it is likelier in, later or earlier."""
    assert runs(piece(0), piece(1, 0.6, 1.0), piece(1)) == [(0, 1, 0), (1, 3, 1)]
    assert runs(piece(0), piece(0, 0.6, 1.0), piece(1)) == [(0, 2, 0), (2, 3, 1)]


def test_the_language_before_stays_in_doubt() -> None:
    assert runs(piece(1, 0.6, 1.0), before=0) == [(0, 1, 0)]
    assert runs(piece(1, 0.6, 1.0)) == [(0, 1, 1)]
    assert runs(piece(1), before=0) == [(0, 1, 1)]


def test_of_equal_places_the_longest_pause_is_the_change() -> None:
    silent = PieceEvidence(0.0, np.full(3, 1 / 3), 0.0)
    pieces = [piece(0), silent, silent, piece(1)]
    assert language_runs(pieces, [0.0, 0.1, 0.9, 0.1])[0] == PieceRun(0, 2, 0)
    assert language_runs(pieces, [0.0, 0.9, 0.1, 0.1])[0] == PieceRun(0, 1, 0)


@pytest.mark.parametrize("seed", range(8))
def test_no_other_sequence_is_better(seed: int) -> None:
    """Beside all 3 ** 5 sequences."""
    rng = np.random.default_rng(seed)
    pieces = [
        PieceEvidence(float(rng.uniform(0.3, 4)), rng.dirichlet([0.5] * 3), float(rng.uniform(0, 0.5)))
        for _ in range(5)
    ]
    pauses = rng.uniform(0, 2, 5).tolist()

    def score(path: tuple[int, ...]) -> float:
        total = sum(one.log_evidence[language] for one, language in zip(pieces, path, strict=True))
        changes = [at for at in range(1, 5) if path[at] != path[at - 1]]
        return total - sum(CHANGE_COST - PAUSE_NATS * min(pauses[at], 1.0) for at in changes)

    found = language_runs(pieces, pauses)
    path = tuple(run.language for run in found for _ in range(run.first, run.end))
    best = max(map(score, itertools.product(range(3), repeat=5)))
    assert score(path) == pytest.approx(best)


def test_gain_is_the_weighed_log_ratio() -> None:
    (one,) = [PieceEvidence(1.5, np.array([0.9, 0.1, 0.0]), 0.0)]
    assert gain([one], 0, 1) == pytest.approx(math.log(9.0))
    assert gain([one, one], 0, 2) == pytest.approx(2 * math.log(0.9 / FLOOR))


def test_several_languages_are_one_sure_piece_or_clear_ones_together() -> None:
    assert not several([piece(0), piece(0), piece(0)])
    assert several([piece(0), piece(0), piece(1, 0.999)])
    one, other = piece(1, 0.99, 1.6), piece(2, 0.99, 1.6)
    assert 5.0 < gain([one], 1, 0) < 9.0
    assert not several([piece(0), one])
    assert several([piece(0), one, other]), "two languages besides are evidence together"


def test_what_is_heard_in_speech_that_is_hardly_understood_shows_nothing() -> None:
    """But for one piece that is beyond doubt, where at least some of it is understood."""
    unclear = [piece(0, 0.4), piece(2, 0.4), piece(1, 0.4)]
    clear = [piece(1, 0.93), piece(1, 0.93)]
    assert several([piece(0), *clear])
    assert not several([*unclear, *clear])
    assert several([*unclear, *clear, piece(1, 0.999)])


def test_pieces_that_are_short_or_silent_show_nothing() -> None:
    assert not several([piece(1, 0.99, 0.9)] * 9)
    assert not several([piece(1, 0.99, no_speech=0.9)] * 3)


def test_pieces_of_speech_that_was_cut_apart_count_together() -> None:
    """Half a sentence tells less of its language than all of it."""
    halves = [piece(1, 0.98, 1.5), piece(1, 0.98, 1.5)]
    assert gain([halves[0]], 1, 0) < CLEAR_NATS <= gain(halves, 1, 0)
    assert not several([piece(0), *halves])
    assert several([piece(0), *halves], pause_s=0.0)
    assert not several([piece(0), halves[0], piece(2, 0.98, 1.5)], pause_s=0.0), "each in another language"


def test_neighbours_are_weak_evidence_of_one_another() -> None:
    """Azerbaijani that is heard as Turkish stays; German in it does not."""
    codes = ["az", "tr", "de"]
    alike = neighbour_shares(codes)
    turkish, german = np.array([0.001, 0.998, 0.001]), np.array([0.001, 0.001, 0.998])
    assert (alike * turkish).max(axis=1) == pytest.approx([SHARE * 0.998, 0.998, 0.001])
    assert (alike * german).max(axis=1) == pytest.approx(german)
    plain, soft = PieceEvidence(3.0, turkish, 0.0), PieceEvidence(3.0, turkish, 0.0, alike)
    assert gain([soft], 1, 0) == pytest.approx(-2.0 * math.log(SHARE))
    assert several([plain])
    assert not several([soft])
    assert several([PieceEvidence(3.0, german, 0.0, alike)])


def test_the_likelier_neighbour_stays_the_likelier() -> None:
    alike = neighbour_shares(["es", "gl", "pt", "en"])
    for posterior in np.random.default_rng(0).dirichlet(np.ones(4), 50):
        assert (alike * posterior).max(axis=1).argmax() == posterior.argmax()


def test_a_hint_counts_by_what_it_says_against_the_expected_language() -> None:
    assert hint_nats(piece(0), 0) == 0.0
    assert hint_nats(piece(1, 0.999), 0) > hint_nats(piece(1, 0.6), 0) > 0.0
    assert hint_nats(piece(1, seconds=3.0), 0) > hint_nats(piece(1, seconds=1.0), 0)


def test_what_shows_several_languages_has_a_clear_piece() -> None:
    for one in [piece(1, sureness, seconds) for sureness in (0.6, 0.8, 0.99) for seconds in (0.8, 1.2, 4.0)]:
        assert is_likely(one, 0) or not several([one])
        assert not is_likely(one, 1)


GERMAN, SPANISH, THAI = range(3)


def test_a_short_run_without_a_sure_piece_may_be_in_the_languages_around() -> None:
    pieces = [piece(SPANISH, 0.97), piece(THAI, 0.5, 1.5), piece(GERMAN, 0.98)]
    runs = [PieceRun(0, 1, SPANISH), PieceRun(1, 2, THAI), PieceRun(2, 3, GERMAN)]
    assert uncertain_runs(pieces, runs) == [(runs[1], (THAI, SPANISH, GERMAN))]
    assert uncertain_runs([pieces[0], piece(THAI, 0.95, 1.5), pieces[2]], runs) == []
    assert uncertain_runs([pieces[0], piece(THAI, 0.5, 0.5), pieces[2]], runs) == []
    assert uncertain_runs([pieces[0], piece(THAI, 0.5, 9.0), pieces[2]], runs) == []


def test_one_language_alone_is_not_asked() -> None:
    runs = [PieceRun(0, 1, GERMAN)]
    assert uncertain_runs([piece(GERMAN, 0.5)], runs) == []
    assert uncertain_runs([piece(GERMAN, 0.5)], runs, before=GERMAN) == []
    assert uncertain_runs([piece(GERMAN, 0.85)], runs, before=SPANISH) == [(runs[0], (GERMAN, SPANISH))]
    heard = [(runs[0], (GERMAN, SPANISH, THAI))]
    assert uncertain_runs([piece(GERMAN, 0.5)], runs, before=SPANISH) == heard


def test_english_that_is_not_heard_is_not_asked_as_it_would_be_a_translation() -> None:
    english, spanish, polish = range(3)
    runs = [PieceRun(0, 1, english), PieceRun(1, 2, polish), PieceRun(2, 3, spanish)]
    pieces = [piece(english, 0.97), piece(polish, 0.85, 1.5), piece(spanish, 0.98)]
    assert uncertain_runs(pieces, runs, english=english) == [(runs[1], (polish, spanish))]
    assert uncertain_runs(pieces, runs) == [(runs[1], (polish, english, spanish))]
    pieces[1] = piece(polish, 0.6, 1.5)  # and 0.2 English
    assert uncertain_runs(pieces, runs, english=english) == [(runs[1], (polish, english, spanish))]
    assert uncertain_runs(pieces[:2], runs[:2], english=english) == [(runs[1], (polish, english, spanish))]
    pieces[1] = piece(polish, 0.85, 1.5)
    assert uncertain_runs(pieces[:2], runs[:2], english=english) == []


def test_a_language_spoken_nowhere_around_needs_more_of_its_text() -> None:
    pieces = [piece(SPANISH, 0.97), piece(THAI, 0.5, 1.5), piece(GERMAN, 0.98)]
    runs = [PieceRun(0, 1, SPANISH), PieceRun(1, 2, THAI), PieceRun(2, 3, GERMAN)]
    alike = text_evidence({THAI: -10.0, SPANISH: -10.0, GERMAN: -10.0}, pieces, runs, None)
    np.testing.assert_allclose(alike, [0.0, 0.0, -UNKNOWN_NATS])
    worse = text_evidence({THAI: -4.0, GERMAN: -10.0}, pieces, runs, None)
    np.testing.assert_allclose(worse[[GERMAN, THAI]], [0.0, TEXT_WEIGHT * 6.0 - UNKNOWN_NATS], atol=1e-9)
    assert worse.max() == 0.0
    assert worse[SPANISH] <= min(worse[GERMAN], worse[THAI])  # it was not asked


def test_what_text_adds_counts_in_the_sequence_of_languages() -> None:
    thai = piece(THAI, 0.55, 1.5)
    pieces = [piece(SPANISH, 0.97), thai, piece(GERMAN, 0.98)]
    pauses = [0.3] * 3
    pieces[1] = replace(thai, text=np.array([0.0, -4.0, -5.0]))
    assert [(run.first, run.language) for run in language_runs(pieces, pauses)] == [(0, SPANISH), (1, GERMAN)]
    pieces[1] = replace(thai, text=np.array([-4.0, 0.0, -5.0]))
    assert [(run.first, run.language) for run in language_runs(pieces, pauses)] == [(0, SPANISH), (2, GERMAN)]


def test_sound_and_text_tell_together_what_a_stretch_is_in() -> None:
    """Each may overrule the other."""
    unsure, sure = piece(GERMAN, 0.5, 1.5), piece(GERMAN, 0.99, 3.0)
    text = {GERMAN: -20.0, SPANISH: -8.0, THAI: -20.0}
    found = likelier_nats(unsure, text, GERMAN)
    assert found.keys() == {SPANISH, THAI}
    assert found[THAI] == pytest.approx(np.log(0.25 / 0.5))
    assert found[SPANISH] == pytest.approx(np.log(0.25 / 0.5) + 12.0 * TEXT_WEIGHT)
    assert likelier_nats(sure, text, GERMAN)[SPANISH] < 0.0
    assert likelier_nats(sure, {GERMAN: -60.0, SPANISH: -8.0}, GERMAN)[SPANISH] > 0.0
