"""Which language each piece of a recording's speech is in: evidence of the pieces, smoothed in both
directions.

A piece is speech between two pauses. The evidence of a model for its language counts the more the longer
it is, and a change has to be worth `CHANGE_COST` nats; the best sequence is found over all pieces at hand
(Viterbi). Evidence between languages that sound alike counts less.

Sound decides over long pieces; a second or two next to a change of language is detected wrongly now and
then, above all in noise: as a language that is spoken nowhere else, or as a neighbour (Polish as
Ukrainian). Text in a wrong language is improbable as a whole: P(language, text | audio) = P(language |
audio) P(text | language, audio).

No audio and no model is needed here; positions are whatever the caller counts in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from sottovoce.language.probe import ProbedLanguage
from sottovoce.language.switching import Posterior

CLEAR, LEAST_CLEAR, CLEAR_STEP = 0.5, 0.2, 0.1
"""Where the masked probe gives a piece's expected language less than CLEAR among all languages of the model,
the piece is encoded by itself: on development recordings so were 98 % of the pieces in another language, and
63 % of those in one language. After each window in which no other language was clear it is a step less, down
to LEAST_CLEAR (92 and 45 %), and CLEAR again after one in which one was."""
LEAST_HINT_NATS, MOST_HINT_NATS = 3.0, 9.0
"""Nats that a hint needs to be followed up, at first and at most: among 40 development recordings in several
languages the strongest of a window has 4.7 at least, of 24 in one language most have less than 3."""
REFUTED_NATS, REST_NATS = 1.0, 0.25
"""So much more a hint needs after a window in which they were nothing, and so much less with each window: an
hour in one language is disturbed by one in four windows, and never becomes deaf."""
LEAST_SURPRISAL, MOST_SURPRISAL = 0.45, 1.2
"""Mean surprisal of a text, in nats a token, above which its language is verified, at first and at most; one
step more after each that was in the right one, and half a step less with each window."""
SURPRISAL_STEP = 0.1


@dataclass(frozen=True, slots=True)
class AskingLimits:
    """Limits beyond which languages are detected separately.

    clear: of a piece whose expected language is less probable, where a recording is in several. hint_nats: of
    one with more nats for another language, where it counts as in one. surprisal: of a text of more nats a
    token.
    """

    clear: float = CLEAR
    hint_nats: float = LEAST_HINT_NATS
    surprisal: float = LEAST_SURPRISAL

    def in_next_window(self) -> AskingLimits:
        """Return those of the next window: texts are verified sooner."""
        return replace(self, surprisal=max(LEAST_SURPRISAL, self.surprisal - SURPRISAL_STEP / 2))

    def rested(self) -> AskingLimits:
        """Return those after a window that counts as in one language: hints are followed up sooner."""
        return replace(self, hint_nats=max(LEAST_HINT_NATS, self.hint_nats - REST_NATS))

    def after_hints(self) -> AskingLimits:
        """Return those after hints that were nothing."""
        return replace(self, hint_nats=min(MOST_HINT_NATS, self.hint_nats + REFUTED_NATS))

    def after_pieces(self, *, finds_another: bool) -> AskingLimits:
        """Return those after the unclear pieces of a window were encoded by themselves."""
        return replace(self, clear=CLEAR if finds_another else max(LEAST_CLEAR, self.clear - CLEAR_STEP))

    def after_text(self) -> AskingLimits:
        """Return those after an improbable text that was in the right language."""
        return replace(self, surprisal=min(MOST_SURPRISAL, self.surprisal + SURPRISAL_STEP))


GROUPS = (
    *("az tr tk", "kk ba tt uz", "fa tg ps", "hi ur pa sd", "hi mr ne sa", "bn as"),
    *("da no nn sv fo", "is fo", "nl af", "de lb yi", "et fi", "lv lt"),
    *("hr sr bs sl mk bg", "cs sk", "ru uk be", "pl be"),
    *("es gl", "pt gl", "es ca", "ca oc", "fr oc", "it la", "fr ht", "it mt"),
    *("id ms jw su", "zh yue", "th lo", "te kn", "ml ta", "mi haw", "hy ka"),
)
"""Neighbours by family and sound, as codes; a language may be in several groups."""
SHARE = 0.15
"""So much of the probability of a language its neighbours have at least: that one is detected in the speech
of the other is weak evidence of a change between them."""


def neighbour_shares(codes: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return shares (L, L): a language (row) has at least this share of the probability of another (column).

    SHARE for neighbours, 1 on the diagonal, 0 elsewhere.
    """
    shares: npt.NDArray[np.float64] = np.eye(len(codes))
    for group in GROUPS:
        places = [codes.index(code) for code in group.split() if code in codes]
        for one in places:
            for other in places:
                shares[one, other] = max(shares[one, other], SHARE)
    return shares


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
"""With less between them pieces were cut apart without a pause."""

SEVERAL_NATS = 9.0
"""Nats for other languages, of all clear pieces of a window together, that show several."""
CLEAR_NATS, CLEAR_S, CLEAR_PROBABILITY = 5.0, 1.0, 0.75
"""A clear piece has so many nats by itself, is this long and this sure."""
LIKELY_NATS = 3.0
"""Nats of one piece with which all of its window is probed: it may be a part of a longer one."""
UNDERSTOOD, WHOLE_S = 0.75, 4.0
"""The mean sureness of the pieces of a window, weighed by seconds up to WHOLE_S, with which pieces are
believed together: speech in a language that the model hardly knows is detected as many."""
SURE_S, SURE_PROBABILITY, UNDERSTOOD_WITH_SURE = 2.0, 0.95, 0.6
"""One piece this long and this sure is believed alone, in a window of which so much is understood. Chosen,
with those above, on development recordings in several languages that base knows, and in one language each,
many of which it hardly knows."""


@dataclass(frozen=True, slots=True, eq=False)
class PieceEvidence:
    """The evidence of a model for the language of one piece of speech.

    duration_s: seconds. posterior: (L,) over the languages to choose among, summing to 1. no_speech:
    probability that it holds no speech. shares: those of neighbours (L, L), which
    soften evidence between them; None: it counts whole.
    text: (L,) log-likelihoods of its text in each language, in nats, as they count; None: not computed.
    """

    duration_s: float
    posterior: Posterior
    no_speech: float
    shares: npt.NDArray[np.float64] | None = None
    text: npt.NDArray[np.float64] | None = None

    @property
    def weight(self) -> float:
        return min(self.duration_s / FULL_S, MOST) * (1.0 - self.no_speech)

    @property
    def sureness(self) -> float:
        return float(self.posterior.max())

    @property
    def log_evidence(self) -> npt.NDArray[np.float64]:
        """Weighed log-likelihoods (L,) of the languages, in nats."""
        posterior = self.posterior if self.shares is None else (self.shares * self.posterior).max(axis=1)
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
    """Return whether a piece is likely to be in another language, so that its neighbours are to be probed."""
    is_sure = piece.duration_s >= CLEAR_S and piece.sureness >= CLEAR_PROBABILITY
    return is_sure and hint_nats(piece, expected) >= LIKELY_NATS


def are_several(pieces: Sequence[PieceEvidence], pauses_s: Sequence[float], expected: int) -> bool:
    """Return whether pieces of a window show that the recording is not in the expected language alone.

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


BORDER_NATS = 0.5
"""Nats that another moment than the first, the quietest, has to win."""


def sides_of(moments: Sequence[int], first: int, end: int, length: int) -> list[tuple[int, int]]:
    """Return the stretches [start, end) before each of some moments, then those after each.

    length: of a stretch, at most. They stay within [first, end).
    """
    before = [(max(first, at - length), at) for at in moments]
    return before + [(at, min(end, at + length)) for at in moments]


def surest_border(moments: Sequence[int], probed: Sequence[ProbedLanguage], source: int, target: int) -> int:
    """Return the moment before which one language and after which the other is the surest.

    probed: of `sides_of` the moments. source, target: places of the two languages in the probabilities.
    """
    here, there = (
        np.log([max(float(one.probabilities[place]), FLOOR) for one in side])
        for side, place in ((probed[: len(moments)], source), (probed[len(moments) :], target))
    )
    nats = here + there
    nats[0] += BORDER_NATS
    return moments[int(nats.argmax())]


SURE_BY_SOUND = 0.9
"""Probability from which the language of a piece is settled by sound."""
LEAST_TEXT_S, MOST_TEXT_S = 0.8, 8.0
"""Seconds of a run whose text is decoded: a shorter one has none, a longer one is clear by its sound."""
TEXT_WEIGHT = 0.25
"""The weight of a nat of text against one of sound: tokens are not independent, and a model is surer of them
than it is right; what it translates it writes fluently. By default 3.8 of 535 s of development recordings in
noise are in a wrong language with 0.25 and with 0.5, 8.5 without text; of 648 s in eight languages without
noise 30.5, 32.3 and 30.3 (F1 of changes 0.88, 0.89 and 0.88)."""
CANDIDATE_PROBABILITY = 0.1
"""Probability by sound from which a language that is spoken nowhere around is tried too."""
UNKNOWN_NATS = 3.0
"""Taken off a language in which nothing around is surely spoken: a short invented text is probable too."""


def uncertain_runs(
    pieces: Sequence[PieceEvidence],
    runs: Sequence[PieceRun],
    *,
    before: int | None = None,
    english: int | None = None,
) -> list[tuple[PieceRun, tuple[int, ...]]]:
    """List the runs no piece of which is sure, each with the places of the languages that it may be in: its
    own, those around, and likely ones by sound; more than one.

    runs: languages of the pieces, as of `language_runs`. before: the language that is spoken before the first
        piece; None: nothing is known of it. english: the place of the language that a model translates into,
        fluently, so that its text shows nothing where sound does not support it; None: it is not among them.
    """
    found = []
    for at, run in enumerate(runs):
        own = pieces[run.first : run.end]
        left = runs[at - 1].language if at else before
        right = runs[at + 1].language if at + 1 < len(runs) else None
        languages = dict.fromkeys(place for place in (run.language, left, right) if place is not None)
        is_short = LEAST_TEXT_S <= sum(one.duration_s for one in own) <= MOST_TEXT_S
        if is_short and len(languages) > 1 and not is_sure(own, run):
            acoustic = np.average(
                [one.posterior for one in own], axis=0, weights=[one.duration_s for one in own]
            )
            languages |= dict.fromkeys(np.flatnonzero(acoustic >= CANDIDATE_PROBABILITY).tolist())
            if english is not None and english != run.language and acoustic[english] < CANDIDATE_PROBABILITY:
                languages.pop(english, None)
            if len(languages) > 1:
                found.append((run, tuple(languages)))
    return found


def text_evidence(
    nats: Mapping[int, float], pieces: Sequence[PieceEvidence], runs: Sequence[PieceRun], before: int | None
) -> npt.NDArray[np.float64]:
    """Return what texts of a run add to its evidence (L,), in nats, 0 at most.

    nats: log-probabilities of its text by the place of the language; others count as the least of them.
    pieces, runs, before: as of `uncertain_runs`.
    """
    certain = {run.language for run in runs if is_sure(pieces[run.first : run.end], run)} | {before}
    evidence = np.full(len(pieces[0].posterior), TEXT_WEIGHT * min(nats.values()) - UNKNOWN_NATS)
    for place, value in nats.items():
        evidence[place] = TEXT_WEIGHT * value - (0.0 if place in certain else UNKNOWN_NATS)
    added: npt.NDArray[np.float64] = evidence - evidence.max()
    return added


def likelier_nats(piece: PieceEvidence, text: Mapping[int, float], expected: int) -> dict[int, float]:
    """Return the nats of sound and text of a piece for each other language rather than for the expected one.

    text: log-probabilities of its text by the place of the language, that of the expected one too.
    """
    sound = piece.log_evidence
    return {
        place: float(sound[place] - sound[expected] + TEXT_WEIGHT * (value - text[expected]))
        for place, value in text.items()
        if place != expected
    }


def is_sure(pieces: Sequence[PieceEvidence], run: PieceRun) -> bool:
    """Return whether one of the pieces of a run is surely in its language."""
    return any(one.posterior[run.language] >= SURE_BY_SOUND for one in pieces)
