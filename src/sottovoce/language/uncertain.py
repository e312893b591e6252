"""Runs of speech whose language sound alone does not settle, and what their text says of it.

Evidence of sound decides over long pieces; a second or two beside a change of language is heard wrongly now
and then, in noise above all: as a language that is spoken nowhere else, or as a neighbour (Polish as
Ukrainian). Text in a wrong language is improbable as a whole:
P(language, text | audio) = P(language | audio) P(text | language, audio).
Not known here: how texts are found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sottovoce.language.follow import PieceEvidence, PieceRun

SURE = 0.9
"""Probability from which the language of a piece is settled by sound."""
LEAST_S, MOST_S = 0.8, 8.0
"""Seconds of a run whose text is asked: a shorter one has none, a longer one is heard well enough."""
TEXT_WEIGHT = 0.25
"""How much a nat of text counts beside one of sound: tokens are not independent, and a model is surer of them
than it is right; what it translates it writes fluently. By default 3.8 of 535 s of development recordings in
noise are in a wrong language with 0.25 and with 0.5, 8.5 without text; of 648 s in eight languages without
noise 30.5, 32.3 and 30.3 (F1 of changes 0.88, 0.89 and 0.88)."""
CANDIDATE_PROBABILITY = 0.1
"""Probability by sound from which a language that is spoken nowhere around is asked too."""
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
    own, those around, and what it may be heard as; more than one.

    runs: languages of the pieces, as of `language_runs`. before: the language that is spoken before the first
        piece; None: nothing is known of it. english: the place of the language that a model translates into,
        fluently, so that its text shows nothing where it is not heard; None: it is not among them.
    """
    found = []
    for at, run in enumerate(runs):
        own = pieces[run.first : run.end]
        left = runs[at - 1].language if at else before
        right = runs[at + 1].language if at + 1 < len(runs) else None
        languages = dict.fromkeys(place for place in (run.language, left, right) if place is not None)
        is_short = LEAST_S <= sum(one.duration_s for one in own) <= MOST_S
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
    """Tell whether one of the pieces of a run is surely in its language."""
    return any(one.posterior[run.language] >= SURE for one in pieces)
