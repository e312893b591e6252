"""Word sequences of given labels, and their scores."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch

from sottovoce.decoding.ctc.compiled import CompiledSearch
from sottovoce.decoding.ctc.homophones import expand_homophones
from sottovoce.decoding.ctc.labels import Labels
from sottovoce.decoding.ctc.prefix_search import PrefixSearch
from sottovoce.lm.fusion import WordFusion, WordModel
from sottovoce.lm.lexicon import Lexicon
from tests.decoding.engines import engine  # noqa: F401  # every test runs on both
from tests.decoding.enumeration import RandomBigram, separated_readings
from tests.decoding.enumeration import readings as all_readings

LABELS = Labels.of(["-", "a", "b", "|"], 0)
WORDS = ("ab", "abb", "abe", "b", "bee", "ba")
SPELLINGS = ((1, 2), (1, 2), (1, 2), (2,), (2,), (2, 1))
"""Three words sound like "ab", two like "b"."""
WEIGHT, WORD_SCORE = 0.8, 0.3


def fusion(seed: int, separator: int | None) -> WordFusion:
    lexicon = Lexicon(list(zip(WORDS, SPELLINGS, strict=True)), len(LABELS), separator=separator)
    model = WordModel(RandomBigram(len(WORDS), seed), torch.arange(len(WORDS)), WEIGHT)
    return WordFusion(lexicon, [model], word_score=WORD_SCORE, look_ahead=True)


def language_score(model: RandomBigram, said: Sequence[int]) -> float:
    states = [len(WORDS), *said]
    total = sum(float(model.table[before, after]) for before, after in zip(states, said, strict=False))
    total += float(model.finish(torch.tensor(states[-1:])))
    return WEIGHT * total + WORD_SCORE * len(said)


@pytest.mark.parametrize("separator", [None, 3])
@pytest.mark.parametrize("seed", range(5))
def test_readings_of_labels_equal_enumeration(seed: int, separator: int | None, engine: str) -> None:  # noqa: F811
    sequences = [(1, 2, 2, 1, 2), (2, 1), (), (1, 1), (2,)]
    if separator is not None:
        sequences = [(1, 2, 3, 2, 3, 1, 2), (2, 3), (), (1, 3), (2,)]
    scorer, model = fusion(seed, separator), RandomBigram(len(WORDS), seed)
    spellings = list(enumerate(SPELLINGS))
    plain = PrefixSearch(len(LABELS), 0, 4, scorer=scorer)
    search = plain if engine == "tensors" else CompiledSearch(plain)
    found = search.readings(sequences, 40, torch.device("cpu"))
    for labels, several in zip(sequences, found, strict=True):
        each = all_readings(labels, spellings)
        if separator is not None:
            each = separated_readings(labels, spellings, separator)
        truth = sorted((language_score(model, words) for words in each), reverse=True)
        assert [one.score for one in several] == pytest.approx(truth[:40], abs=1e-4)
        assert all(tuple(s % 4 for s in one.symbols) == labels for one in several)


@pytest.mark.parametrize("allow_unknown", [False, True])
def test_letters_have_one_reading(allow_unknown: bool) -> None:
    """Words spelled in one way each leave nothing to read again."""
    names = "-abc|"
    words = [(word, tuple(map(names.index, word))) for word in ("a", "ab", "abc", "b", "cab")]
    lexicon = Lexicon(words, len(names), separator=4, allow_unknown=allow_unknown)
    said = [labels for n in range(1, 5) for labels in itertools.product((1, 2, 3, 4), repeat=n)]
    found = expand_homophones(WordFusion(lexicon, word_score=0.5), said, most=8, device=torch.device("cpu"))
    assert max(map(len, found)) == 1
