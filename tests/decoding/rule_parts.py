"""Searches, scorers and states that the comparisons of `test_ctc_rules.py` share."""

from __future__ import annotations

import torch

from sottovoce.decoding.ctc.compiled import CompiledSearch
from sottovoce.decoding.ctc.prefix_search import PrefixSearch
from sottovoce.lm.fusion import ShallowFusion, WordFusion, WordModel
from sottovoce.lm.lexicon import Lexicon
from tests.decoding.enumeration import RandomBigram, emissions

V, BLANK, SEPARATOR = 5, 0, 4
WORDS = [("ab", (1, 2)), ("abc", (1, 2, 3)), ("b", (2,)), ("bee", (2,)), ("cc", (3, 3))]


def fusion(separator: int | None, *, unknown: bool = False) -> WordFusion:
    lexicon = Lexicon(WORDS, V, separator=separator, allow_unknown=unknown)
    n_words = len(lexicon.words)
    return WordFusion(
        lexicon,
        [WordModel(RandomBigram(n_words, 2), torch.arange(n_words), 0.7)],
        word_score=0.2,
        unknown_score=-0.9,
        look_ahead=True,
        tokens=ShallowFusion([RandomBigram(V, 3)], [0.4]),
    )


def searches(scorer: WordFusion | None, beam_size: int = 8) -> tuple[PrefixSearch, CompiledSearch]:
    plain = PrefixSearch(V, BLANK, beam_size, scorer=scorer)
    return plain, CompiledSearch(plain)


def reached(scorer: WordFusion) -> torch.Tensor:
    """States (N, s) that a search comes to."""
    plain, _ = searches(scorer)
    state = plain.start(3, torch.device("cpu"))
    frames = torch.stack([emissions(7, V, seed) for seed in range(3)])
    plain.run(state, frames, torch.tensor([7, 7, 7]), 7)
    found = state.scores[state.is_alive]
    assert len(found) > 8
    return found
