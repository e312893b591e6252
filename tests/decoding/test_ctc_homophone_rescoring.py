"""Homophones that a narrow beam left out come back when whole histories are scored."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
import torch

from sottovoce.decoding.ctc.compiled import CompiledSearch
from sottovoce.decoding.ctc.emission_decoder import EmissionDecoder
from sottovoce.decoding.ctc.homophone_rescoring import expand_homophones
from sottovoce.decoding.ctc.prefix_search import PrefixSearch
from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.decoding.ctc.text import Labels
from sottovoce.lm.base import WordHistory
from sottovoce.lm.lexicon import Lexicon
from sottovoce.lm.word_fusion import WordFusion, WordModel
from tests.decoding.engines import engine  # noqa: F401  # every test runs on both
from tests.decoding.enumeration import RandomBigram, emissions, separated_readings
from tests.decoding.enumeration import readings as all_readings

LABELS = Labels.of(["-", "a", "b", "|"], 0)
WORDS = ("ab", "abb", "abe", "b", "bee", "ba")
SPELLINGS = ((1, 2), (1, 2), (1, 2), (2,), (2,), (2, 1))
"""Three words sound like "ab", two like "b"."""
WEIGHT, WORD_SCORE = 0.8, 0.3


class RandomHistories:
    """A `HistoryScorer` that gives every ended history a number of its own, and open ones nothing."""

    def adjustments(self, histories: Sequence[WordHistory], *, final: bool) -> list[float]:
        return [random.Random(str(each.context())).uniform(-9, 9) if final else 0.0 for each in histories]


def fusion(seed: int, separator: int | None) -> WordFusion:
    lexicon = Lexicon(list(zip(WORDS, SPELLINGS, strict=True)), len(LABELS), separator=separator)
    model = WordModel(RandomBigram(len(WORDS), seed), torch.arange(len(WORDS)), WEIGHT)
    return WordFusion(lexicon, [model], word_score=WORD_SCORE, look_ahead=True)


def language_score(model: RandomBigram, said: Sequence[int]) -> float:
    states = [len(WORDS), *said]
    total = sum(float(model.table[before, after]) for before, after in zip(states, said, strict=False))
    total += float(model.finish(torch.tensor(states[-1:])))
    return WEIGHT * total + WORD_SCORE * len(said)


def spelled_path(*tokens: int) -> torch.Tensor:
    """Emissions of which nothing but these labels can be read, each in one frame."""
    log_probs = torch.full((2 * len(tokens), len(LABELS)), -40.0)
    log_probs[range(0, len(log_probs), 2), list(tokens)] = 0.0
    log_probs[1::2, 0] = 0.0
    return log_probs.log_softmax(dim=1)


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


@pytest.mark.parametrize("seed", range(8))
def test_what_a_narrow_beam_left_out_is_chosen_again(seed: int) -> None:
    labels = (1, 2, 3, 2, 3, 1, 2)
    model = RandomBigram(len(WORDS), seed)
    histories = RandomHistories()

    def score(said: Sequence[int]) -> float:
        (value,) = histories.adjustments([WordHistory().with_words(WORDS[word] for word in said)], final=True)
        return language_score(model, said) + value

    truth = max(separated_readings(labels, list(enumerate(SPELLINGS)), 3), key=score)
    found = {}
    for n_readings in (1, 18):
        options = CtcOptions(beam_size=2, n_best=3, n_readings=n_readings)
        scorer = fusion(seed, 3)
        decoder = EmissionDecoder(LABELS, options, scorer=scorer, lexicon=WORDS, history_scorer=histories)
        found[n_readings] = decoder.decode(spelled_path(*labels))[0]
    best = found[18][0]
    assert best.text == " ".join(WORDS[word] for word in truth)
    assert best.score == pytest.approx(score(truth), abs=1e-3)
    assert best.score >= found[1][0].score - 1e-4
    assert len({hypothesis.text for hypothesis in found[18]}) == 3
    assert sum(hypothesis.posterior or 0.0 for hypothesis in found[18]) <= 1 + 1e-6
    every = [score(said) for said in separated_readings(labels, list(enumerate(SPELLINGS)), 3)]
    share = torch.tensor(every).softmax(dim=0).max()
    assert best.posterior == pytest.approx(float(share), abs=1e-3)
    assert [word.word for word in best.words or ()] == best.text.split()


def test_a_stream_that_is_not_settled_chooses_as_the_whole() -> None:
    log_probs = emissions(12, 4, 3)
    options = CtcOptions(beam_size=3, n_best=2, n_readings=4)
    histories = RandomHistories()
    decoder = EmissionDecoder(LABELS, options, scorer=fusion(2, 3), lexicon=WORDS, history_scorer=histories)
    state = decoder.start()
    for begin in range(0, 12, 2):
        decoder.decode_chunk(state, log_probs[begin : begin + 2])
    assert not state.committed[0].symbols
    whole = decoder.decode(log_probs)[0]
    assert [h.text for h in decoder.finish(state)[0]] == [h.text for h in whole]
    assert [h.score for h in decoder.finish(state)[0]] == pytest.approx([h.score for h in whole], abs=1e-3)


def test_batches_choose_as_each_alone() -> None:
    rows = torch.stack([emissions(9, 4, seed) for seed in range(4)])
    lengths = torch.tensor([9, 5, 0, 7])
    options = CtcOptions(beam_size=3, n_best=2, n_readings=4)
    decoder = EmissionDecoder(
        LABELS, options, scorer=fusion(1, 3), lexicon=WORDS, history_scorer=RandomHistories()
    )
    together = decoder.decode(rows, lengths)
    for row, length, several in zip(rows, lengths.tolist(), together, strict=True):
        alone = decoder.decode(row[:length])[0]
        assert [h.text for h in alone] == [h.text for h in several]
        assert [h.score for h in alone] == pytest.approx([h.score for h in several], abs=1e-4)
        for one, other in itertools.pairwise(alone):
            assert one.score >= other.score


@pytest.mark.parametrize("allow_unknown", [False, True])
def test_letters_have_one_reading(allow_unknown: bool) -> None:
    """Words spelled in one way each leave nothing to read again."""
    names = "-abc|"
    words = [(word, tuple(map(names.index, word))) for word in ("a", "ab", "abc", "b", "cab")]
    lexicon = Lexicon(words, len(names), separator=4, allow_unknown=allow_unknown)
    said = [labels for n in range(1, 5) for labels in itertools.product((1, 2, 3, 4), repeat=n)]
    found = expand_homophones(WordFusion(lexicon, word_score=0.5), said, most=8, device=torch.device("cpu"))
    assert max(map(len, found)) == 1
