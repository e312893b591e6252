"""The languages of pieces of speech: a change has to be worth it, and is looked for in both directions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from sottovoce.language.follow import (
    CHANGE_COST,
    CLEAR_NATS,
    FLOOR,
    PAUSE_NATS,
    SHARE,
    AlikeLanguages,
    PieceEvidence,
    PieceRun,
    are_several,
    gain,
    hint_nats,
    is_likely,
    language_runs,
)


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


@pytest.mark.parametrize("seed", range(20))
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
    alike = AlikeLanguages(codes)
    turkish, german = np.array([0.001, 0.998, 0.001]), np.array([0.001, 0.001, 0.998])
    assert alike.soften(turkish) == pytest.approx([SHARE * 0.998, 0.998, 0.001])
    assert alike.soften(german) == pytest.approx(german)
    plain, soft = PieceEvidence(3.0, turkish, 0.0), PieceEvidence(3.0, turkish, 0.0, alike)
    assert gain([soft], 1, 0) == pytest.approx(-2.0 * math.log(SHARE))
    assert several([plain])
    assert not several([soft])
    assert several([PieceEvidence(3.0, german, 0.0, alike)])


def test_the_likelier_neighbour_stays_the_likelier() -> None:
    alike = AlikeLanguages(["es", "gl", "pt", "en"])
    for posterior in np.random.default_rng(0).dirichlet(np.ones(4), 50):
        assert alike.soften(posterior).argmax() == posterior.argmax()


def test_a_hint_counts_by_what_it_says_against_the_expected_language() -> None:
    assert hint_nats(piece(0), 0) == 0.0
    assert hint_nats(piece(1, 0.999), 0) > hint_nats(piece(1, 0.6), 0) > 0.0
    assert hint_nats(piece(1, seconds=3.0), 0) > hint_nats(piece(1, seconds=1.0), 0)


def test_what_shows_several_languages_has_a_clear_piece() -> None:
    for one in [piece(1, sureness, seconds) for sureness in (0.6, 0.8, 0.99) for seconds in (0.8, 1.2, 4.0)]:
        assert is_likely(one, 0) or not several([one])
        assert not is_likely(one, 1)
