"""Scores of whole word histories in a search: those of a `HistoryScorer` in the place of earlier ones.

A stream holds the histories of its beams as nodes of a tree whose root moves on with what is committed, so
that nothing here grows with what was said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from sottovoce.decoding.ctc.state import NEVER, PrefixState
from sottovoce.decoding.ctc.text import SpelledWord, Speller
from sottovoce.lm.base import HistoryScorer, HistoryWord, WordHistory


class HistoryAdjuster:
    """Lets a scorer of whole histories replace what states hold of it."""

    def __init__(self, scorer: HistoryScorer, speller: Speller) -> None:
        self._scorer = scorer
        self._speller = speller

    def adjust(self, state: PrefixState, rows: Tensor) -> None:
        """Replace the scores of the words of all beams of rows (B,) bool."""
        places = ((state.acoustic > NEVER) & rows[:, None]).nonzero().tolist()
        if not places:
            return
        histories = [
            self._history(state, row, self._speller.finished_words(self._open(state, row, symbols)))
            for (row, _), symbols in zip(places, histories_of(state, places), strict=True)
        ]
        values = self._scorer.adjustments(histories, final=False)
        new = state.adjustment.clone()
        new[tuple(torch.tensor(places).t())] = torch.tensor(values, device=new.device)
        state.lm = state.lm - state.adjustment + new
        state.adjustment = new
        living: dict[int, list[WordHistory]] = {}
        for (row, _), history in zip(places, histories, strict=True):
            living.setdefault(row, []).append(history)
        for row, of_row in living.items():
            state.committed[row].mark_scored(of_row)

    def final_scores(self, state: PrefixState, scores: Tensor, beams: Tensor, marks: Tensor) -> Tensor:
        """Return final scores (B, E) of endings with what whole sentences are scored.

        beams: (E,) of the endings. marks: (B, E) of the words that they complete.
        """
        alive = (scores > NEVER).nonzero().tolist()
        symbols = histories_of(state, [(b, int(beams[i])) for b, i in alive])
        histories = [
            self._history(state, b, self._speller.words(self._open(state, b, row), int(marks[b, i])))
            for row, (b, i) in zip(symbols, alive, strict=True)
        ]
        values = self._scorer.adjustments(histories, final=True)
        scores = scores - state.adjustment.gather(1, beams.expand(len(scores), -1))
        for (b, i), value in zip(alive, values, strict=True):
            scores[b, i] += value
        return scores

    def _open(self, state: PrefixState, row: int, symbols: Sequence[int]) -> list[int]:
        """Symbols from the beginning of the first word that is not committed."""
        return [*state.committed[row].open_symbols(), *symbols]

    def _history(self, state: PrefixState, row: int, newer: Iterable[SpelledWord]) -> WordHistory:
        words = (HistoryWord(word.text, word.in_lexicon) for word in newer)
        return state.committed[row].history().after(words)


def histories_of(state: PrefixState, places: Iterable[Sequence[int]]) -> list[list[int]]:
    """Read the symbols of beams, given as (utterance, beam)."""
    symbols, lengths = state.symbols.cpu().numpy(), state.length.tolist()
    return [symbols[b, k, 1 : lengths[b][k] + 1].tolist() for b, k in places]
