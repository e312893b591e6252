"""Text settles the language of runs that sound leaves open, and of no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sottovoce.language.follow import (
    TEXT_WEIGHT,
    UNKNOWN_NATS,
    PieceEvidence,
    PieceRun,
    language_runs,
    likelier_nats,
    text_evidence,
    uncertain_runs,
)

GERMAN, SPANISH, THAI = range(3)


def piece(language: int, sureness: float, seconds: float = 3.0) -> PieceEvidence:
    posterior = np.full(3, (1.0 - sureness) / 2)
    posterior[language] = sureness
    return PieceEvidence(seconds, posterior, 0.0)


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
