"""Languages of the pieces of speech in a recording, smoothed in both directions (Viterbi).

A piece is speech between two pauses. Evidence counts with its duration, and less between languages that
sound alike; a change costs `CHANGE_COST` nats.

Sound decides long pieces. A second or two next to a change is sometimes detected as a language that occurs
nowhere else, or as a similar one (Polish as Ukrainian), above all in noise. The text then decides:
P(language, text | audio) = P(language | audio) P(text | language, audio).
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
"""A piece is encoded separately if the masked probe gives its expected language less than CLEAR among all
languages: on development recordings, 98 % of the pieces in another language and 63 % of those in a
monolingual recording. The limit falls by a step after each window without another language, to LEAST_CLEAR
(92 and 45 %), and returns to CLEAR after one with another.
"""
LEAST_HINT_NATS, MOST_HINT_NATS = 3.0, 9.0
"""Log-likelihood ratio (nats) for which a hint is verified, initially and at most: of 40 multilingual
development recordings the strongest of a window has at least 4.7, of 24 monolingual ones most have less
than 3.
"""
REFUTED_NATS, REST_NATS = 1.0, 0.25
"""Increase after a window with refuted hints, and decrease with each window: of an hour in one language,
at most every fourth window is verified.
"""
LEAST_SURPRISAL, MOST_SURPRISAL = 0.45, 1.2
"""Mean surprisal of a text (nats a token) above which its language is verified, initially and at most; it
rises by a step after each refutation and falls by half a step with each window.
"""
SURPRISAL_STEP = 0.1


@dataclass(frozen=True, slots=True)
class AskingLimits:
    """Adaptive limits beyond which languages are verified.

    clear: probability of a piece's expected language, in a multilingual recording. hint_nats:
    log-likelihood ratio of a piece, in a monolingual one. surprisal: of a text, in nats a token.
    """

    clear: float = CLEAR
    hint_nats: float = LEAST_HINT_NATS
    surprisal: float = LEAST_SURPRISAL

    def in_next_window(self) -> AskingLimits:
        return replace(self, surprisal=max(LEAST_SURPRISAL, self.surprisal - SURPRISAL_STEP / 2))

    def rested(self) -> AskingLimits:
        return replace(self, hint_nats=max(LEAST_HINT_NATS, self.hint_nats - REST_NATS))

    def after_hints(self) -> AskingLimits:
        return replace(self, hint_nats=min(MOST_HINT_NATS, self.hint_nats + REFUTED_NATS))

    def after_pieces(self, *, finds_another: bool) -> AskingLimits:
        return replace(self, clear=CLEAR if finds_another else max(LEAST_CLEAR, self.clear - CLEAR_STEP))

    def after_text(self) -> AskingLimits:
        return replace(self, surprisal=min(MOST_SURPRISAL, self.surprisal + SURPRISAL_STEP))


GROUPS = (
    *("az tr tk", "kk ba tt uz", "fa tg ps", "hi ur pa sd", "hi mr ne sa", "bn as"),
    *("da no nn sv fo", "is fo", "nl af", "de lb yi", "et fi", "lv lt"),
    *("hr sr bs sl mk bg", "cs sk", "ru uk be", "pl be"),
    *("es gl", "pt gl", "es ca", "ca oc", "fr oc", "it la", "fr ht", "it mt"),
    *("id ms jw su", "zh yue", "th lo", "te kn", "ml ta", "mi haw", "hy ka"),
)
"""Languages that sound alike, as codes; a language may be in several groups."""
SHARE = 0.15
"""Least share of a language's probability that its neighbours get: detecting one in speech of the other is
weak evidence of a change.
"""


def neighbour_shares(codes: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return shares (L, L) of the column language's probability that the row language has at least.

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
"""Seconds of a piece whose evidence has weight 1, and the largest weight of longer ones."""
FLOOR = 1e-3
"""Least probability of a language, so that one piece cannot rule it out."""
CHANGE_COST = 3.0
"""Cost of a change of language in nats. It and the constants above were chosen on 20 recordings joined
from development clips, where 1 to 3 nats, 1 to 3 s and weights of 1 to 3 find 0.88 to 0.92 of the changes
(F1).
"""
PAUSE_NATS = 0.1
"""Discount on a change per second of pause, which decides between equal places."""
PAUSE_S = 0.02

SEVERAL_NATS = 9.0
"""Log-likelihood ratio of all clear pieces of a window that shows several languages."""
CLEAR_NATS, CLEAR_S, CLEAR_PROBABILITY = 5.0, 1.0, 0.75
"""A clear piece has this log-likelihood ratio, duration and probability."""
LIKELY_NATS = 3.0
"""Log-likelihood ratio of one piece at which the whole window is probed."""
UNDERSTOOD, WHOLE_S = 0.75, 4.0
"""Mean probability of the pieces of a window (weighted by seconds up to WHOLE_S) from which they count
together: a model detects a language that it hardly knows as many.
"""
SURE_S, SURE_PROBABILITY, UNDERSTOOD_WITH_SURE = 2.0, 0.95, 0.6
"""One piece this long and this certain suffices alone if the window has mean probability
UNDERSTOOD_WITH_SURE. Chosen, with those above, on multilingual development recordings and on monolingual
ones, many in languages that base hardly knows.
"""


@dataclass(frozen=True, slots=True, eq=False)
class PieceEvidence:
    """Evidence for the language of one piece of speech.

    posterior: (L,) over the allowed languages. no_speech: probability of silence. shares: (L, L), of
    `neighbour_shares`; None: no smoothing. text: (L,) weighted log-likelihoods of the text, or None.
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
        posterior = self.posterior if self.shares is None else (self.shares * self.posterior).max(axis=1)
        weighed: npt.NDArray[np.float64] = self.weight * np.log(np.maximum(posterior, FLOOR))
        return weighed if self.text is None else weighed + self.text


@dataclass(frozen=True, slots=True)
class PieceRun:
    """Pieces [first, end) in one language, an index of the allowed ones."""

    first: int
    end: int
    language: int


def language_runs(
    pieces: Sequence[PieceEvidence], pauses_s: Sequence[float], *, before: int | None = None
) -> list[PieceRun]:
    """Return the runs of at least one piece; neighbouring runs differ.

    pauses_s: seconds before each piece. before: the language before the first piece; None: unknown.
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
    """Return the log-likelihood ratio of two languages over pieces, in nats."""
    return float(sum(piece.log_evidence[language] - piece.log_evidence[other] for piece in pieces))


def hint_nats(piece: PieceEvidence, expected: int) -> float:
    """Return the log-likelihood ratio of a piece's likeliest language against the expected one; 0 if they
    are the same.
    """
    likeliest = int(piece.posterior.argmax())
    return 0.0 if likeliest == expected else gain([piece], likeliest, expected)


def is_likely(piece: PieceEvidence, expected: int) -> bool:
    """Return whether a piece is likely in another language, so that its neighbours are probed."""
    is_sure = piece.duration_s >= CLEAR_S and piece.sureness >= CLEAR_PROBABILITY
    return is_sure and hint_nats(piece, expected) >= LIKELY_NATS


def are_several(pieces: Sequence[PieceEvidence], pauses_s: Sequence[float], expected: int) -> bool:
    """Return whether the pieces of a window show that the recording is multilingual.

    pauses_s: seconds before each piece; similar languages without a pause between count as one.
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


def sides_of(moments: Sequence[int], first: int, end: int, length: int) -> list[tuple[int, int]]:
    """Return the stretches [start, end) before each moment, then those after, within [first, end).

    length: of a stretch, at most.
    """
    before = [(max(first, at - length), at) for at in moments]
    return before + [(at, min(end, at + length)) for at in moments]


def surest_border(moments: Sequence[int], probed: Sequence[ProbedLanguage], source: int, target: int) -> int:
    """Return the moment that best separates two languages.

    probed: the stretches of `sides_of` the moments. source, target: indices of the languages.
    """
    here, there = (
        np.log([max(float(one.probabilities[place]), FLOOR) for one in side])
        for side, place in ((probed[: len(moments)], source), (probed[len(moments) :], target))
    )
    nats = here + there
    nats[0] += BORDER_NATS
    return moments[int(nats.argmax())]


SURE_BY_SOUND = 0.9
"""Probability from which sound decides the language of a piece."""
LEAST_TEXT_S, MOST_TEXT_S = 0.8, 8.0
"""Seconds of a run whose text is decoded: shorter ones have none, longer ones are clear by sound."""
TEXT_WEIGHT = 0.25
"""Weight of a nat of text against one of sound: tokens are not independent, models are overconfident, and
translations are fluent. On 535 s of noisy development recordings, 3.8 s are in a wrong language with 0.25
and 0.5, and 8.5 s without text; on 648 s without noise in eight languages 30.5, 32.3 and 30.3 s (F1 of
changes 0.88, 0.89 and 0.88).
"""
CANDIDATE_PROBABILITY = 0.1
"""Probability by sound from which a language without evidence in neighbouring runs is tried."""
UNKNOWN_NATS = 3.0
"""Penalty of a language that is not certain in any neighbouring run: a short hallucination is probable
too.
"""


def uncertain_runs(
    pieces: Sequence[PieceEvidence],
    runs: Sequence[PieceRun],
    *,
    before: int | None = None,
    english: int | None = None,
) -> list[tuple[PieceRun, tuple[int, ...]]]:
    """Return the uncertain runs, each with at least two candidate languages.

    Candidates are the run's language, those of the neighbours, and likely ones by sound.

    runs: of `language_runs`. before: the language before the first piece, or None. english: index of the
    language that a model translates into; its text is no evidence unless sound supports it. None: not
    allowed.
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
    """Return the text's contribution (L,) to the evidence of a run, in nats, at most 0.

    nats: log-probabilities of its text by language; other languages get the minimum.
    """
    certain = {run.language for run in runs if is_sure(pieces[run.first : run.end], run)} | {before}
    evidence = np.full(len(pieces[0].posterior), TEXT_WEIGHT * min(nats.values()) - UNKNOWN_NATS)
    for place, value in nats.items():
        evidence[place] = TEXT_WEIGHT * value - (0.0 if place in certain else UNKNOWN_NATS)
    added: npt.NDArray[np.float64] = evidence - evidence.max()
    return added


def likelier_nats(piece: PieceEvidence, text: Mapping[int, float], expected: int) -> dict[int, float]:
    """Return the log-likelihood ratio of sound and text of each other language against the expected one.

    text: log-probabilities of the text by language, including the expected one.
    """
    sound = piece.log_evidence
    return {
        place: float(sound[place] - sound[expected] + TEXT_WEIGHT * (value - text[expected]))
        for place, value in text.items()
        if place != expected
    }


def is_sure(pieces: Sequence[PieceEvidence], run: PieceRun) -> bool:
    return any(one.posterior[run.language] >= SURE_BY_SOUND for one in pieces)
