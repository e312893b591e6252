"""Which language each piece of a recording's speech is in: evidence of the pieces, smoothed in both
directions.

A piece is speech between two pauses. What a model says of its language counts the more the longer it is, and
a change has to be worth `change_cost` nats of it; the best sequence is found over all pieces at hand
(Viterbi). Not known here: audio, models, and what is done with the languages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from sottovoce.language.alike import AlikeLanguages
from sottovoce.language.smoothing import Posterior

FULL_S, MOST = 1.5, 2.0
"""Seconds of a piece whose evidence counts once; longer ones count for more, up to MOST times."""
FLOOR = 1e-3
"""Least probability given to a language: one piece must not be able to rule it out."""
CHANGE_COST = 3.0
"""Nats that a change of language has to win. It and the numbers above: chosen on 20 recordings joined from
development clips, where 1 to 3 nats, 1 to 3 s and 1 to 3 times found 0.88 to 0.92 of the changes (F1)."""
PAUSE_NATS = 0.1
"""By so many a second a longer pause makes a change likelier: it decides between places that are equal."""
PAUSE_S = 0.02
"""With less between them pieces were cut apart where nobody paused."""

SEVERAL_NATS = 9.0
"""Nats for other languages, of all clear pieces of a window together, that show several."""
CLEAR_NATS, CLEAR_S, CLEAR_PROBABILITY = 5.0, 1.0, 0.75
"""A clear piece has so many nats by itself, is this long and this sure."""
LIKELY_NATS = 3.0
"""Nats of one piece with which all of its window is probed: it may be a part of a longer one."""
UNDERSTOOD, WHOLE_S = 0.75, 4.0
"""The mean sureness of the pieces of a window, weighed by seconds up to WHOLE_S, with which pieces are
believed together: speech in a language that the model hardly knows is heard as many."""
SURE_S, SURE_PROBABILITY, UNDERSTOOD_WITH_SURE = 2.0, 0.95, 0.6
"""One piece this long and this sure is believed alone, in a window of which so much is understood. Chosen,
with those above, on development recordings in several languages that base knows, and in one language each,
many of which it hardly knows."""


@dataclass(frozen=True, slots=True, eq=False)
class PieceEvidence:
    """What a model says of one piece of speech.

    duration_s: seconds. posterior: (L,) over the languages to choose among, summing to 1. no_speech:
    probability that nobody speaks in it. alike: softens evidence between neighbours; None: it counts whole.
    text: (L,) log-likelihoods of its text in each language, in nats, as they count; None: nobody asked.
    """

    duration_s: float
    posterior: Posterior
    no_speech: float
    alike: AlikeLanguages | None = None
    text: npt.NDArray[np.float64] | None = None

    @property
    def weight(self) -> float:
        """How much its posterior counts."""
        return min(self.duration_s / FULL_S, MOST) * (1.0 - self.no_speech)

    @property
    def sureness(self) -> float:
        """The probability of its likeliest language."""
        return float(self.posterior.max())

    @property
    def log_evidence(self) -> npt.NDArray[np.float64]:
        """Weighed log-likelihoods (L,) of the languages, in nats."""
        posterior = self.posterior if self.alike is None else self.alike.soften(self.posterior)
        weighed: npt.NDArray[np.float64] = self.weight * np.log(np.maximum(posterior, FLOOR))
        return weighed if self.text is None else weighed + self.text


@dataclass(frozen=True, slots=True)
class PieceRun:
    """Pieces [first, end) are in one language: its place among those to choose among."""

    first: int
    end: int
    language: int


def language_runs(
    pieces: Sequence[PieceEvidence], pauses_s: Sequence[float], *, before: int | None = None
) -> list[PieceRun]:
    """Find the languages of at least one piece: runs in order, neighbours differ.

    pauses_s: seconds before each piece. before: the language that is spoken before the first one; to begin
        in another is a change. None: nothing is known of it.
    """
    evidence = np.stack([piece.log_evidence for piece in pieces])  # (T, L)
    path = _best_path(evidence, pauses_s, before)
    runs, first = [], 0
    for language, group in groupby(path):
        end = first + len(list(group))
        runs.append(PieceRun(first, end, language))
        first = end
    return runs


def gain(pieces: Sequence[PieceEvidence], language: int, other: int) -> float:
    """Nats by which the evidence of pieces is for one language rather than for another."""
    return float(sum(piece.log_evidence[language] - piece.log_evidence[other] for piece in pieces))


def hint_nats(piece: PieceEvidence, expected: int) -> float:
    """Nats of a piece for its likeliest language rather than for the expected one; 0 where these are one."""
    likeliest = int(piece.posterior.argmax())
    return 0.0 if likeliest == expected else gain([piece], likeliest, expected)


def is_likely(piece: PieceEvidence, expected: int) -> bool:
    """Tell whether a piece is likely to be in another language, so that those beside it are to be probed."""
    is_sure = piece.duration_s >= CLEAR_S and piece.sureness >= CLEAR_PROBABILITY
    return is_sure and hint_nats(piece, expected) >= LIKELY_NATS


def are_several(pieces: Sequence[PieceEvidence], pauses_s: Sequence[float], expected: int) -> bool:
    """Tell whether pieces of a window show that the recording is not in the expected language alone.

    pauses_s: seconds before each piece; neighbours without one that sound alike count as one.
    """
    long = [one for one in _stretches(pieces, pauses_s) if one.duration_s >= CLEAR_S]
    nats = {one: gain(one.pieces, one.language, expected) for one in long}
    clear = [one for one in long if one.sureness >= CLEAR_PROBABILITY and nats[one] >= CLEAR_NATS]
    if sum(nats[one] for one in clear) < SEVERAL_NATS:
        return False
    weights = [min(one.duration_s, WHOLE_S) for one in long]
    understood = float(np.average([one.sureness for one in long], weights=weights))
    is_one_sure = any(
        one.duration_s >= SURE_S and one.sureness >= SURE_PROBABILITY and nats[one] >= SEVERAL_NATS
        for one in clear
    )
    return understood >= (UNDERSTOOD_WITH_SURE if is_one_sure else UNDERSTOOD)


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Pieces with no pause between them that have the same likeliest language."""

    pieces: tuple[PieceEvidence, ...]
    language: int

    @property
    def duration_s(self) -> float:
        return sum(one.duration_s for one in self.pieces)

    @property
    def sureness(self) -> float:
        seconds = [max(one.duration_s, 1e-3) for one in self.pieces]
        return float(np.average([one.sureness for one in self.pieces], weights=seconds))


def _stretches(pieces: Sequence[PieceEvidence], pauses_s: Sequence[float]) -> list[_Stretch]:
    found: list[_Stretch] = []
    for piece, pause_s in zip(pieces, pauses_s, strict=True):
        language = int(piece.posterior.argmax())
        if found and pause_s < PAUSE_S and found[-1].language == language:
            found[-1] = _Stretch((*found[-1].pieces, piece), language)
        else:
            found.append(_Stretch((piece,), language))
    return found


def _best_path(evidence: npt.NDArray[np.float64], pauses_s: Sequence[float], before: int | None) -> list[int]:
    """The likeliest language of each piece; evidence: (T, L)."""
    n_pieces, n_languages = evidence.shape
    score = np.zeros(n_languages)
    if before is not None:
        score -= CHANGE_COST
        score[before] = 0.0
    score = score + evidence[0]
    arrivals = np.zeros((n_pieces, n_languages), dtype=np.int64)
    stay = np.arange(n_languages)
    for index in range(1, n_pieces):
        source = int(score.argmax())
        changed = score[source] - CHANGE_COST + PAUSE_NATS * min(pauses_s[index], 1.0)
        arrivals[index] = np.where(changed > score, source, stay)
        score = np.maximum(score, changed) + evidence[index]
    path = [int(score.argmax())]
    for index in range(n_pieces - 1, 0, -1):
        path.append(int(arrivals[index, path[-1]]))
    return path[::-1]
