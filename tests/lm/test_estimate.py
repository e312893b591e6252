"""Estimated models equal the equations of Chen and Goodman, worked out word by word, and sum to one."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict

import pytest
import torch

from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.arpa import NgramTable
from sottovoce.lm.estimate import FALLBACK, SPECIAL, count_text, estimate
from sottovoce.lm.trie import build_trie, trie_of

Ngram = tuple[str, ...]


def text(seed: int, n: int = 200) -> list[str]:
    chooser = random.Random(seed)
    words = [*"abcdefghijklmnop", "é", "x\u00a0y"]
    weights = [1 / (place + 1) for place in range(len(words))]
    return [" ".join(chooser.choices(words, weights, k=chooser.randint(1, 9))) for _ in range(n)]


def by_hand(lines: list[str], order: int, least: list[int]) -> tuple[dict[Ngram, float], dict[Ngram, float]]:
    """Probabilities and back-off weights of the n-grams that are kept."""
    raw: list[Counter[Ngram]] = [Counter() for _ in range(order + 1)]
    for line in lines:
        words = ["<s>", *line.replace("\u00a0", "\u00a0").split(" "), "</s>"]
        for length in range(1, order + 1):
            raw[length].update(tuple(words[i : i + length]) for i in range(len(words) - length + 1))
    counts: list[dict[Ngram, int]] = [{}, *map(dict, raw[1:])]
    for length in range(1, order):
        before: dict[Ngram, set[str]] = defaultdict(set)
        for ngram in raw[length + 1]:
            before[ngram[1:]].add(ngram[0])
        for ngram in raw[length]:
            if ngram[0] != "<s>":
                counts[length][ngram] = len(before[ngram])
    counts[1][("<s>",)] = 0
    counts[1][("<unk>",)] = 0
    probabilities: dict[Ngram, float] = {(): 1 / (len(counts[1]) - 1)}
    weights: dict[Ngram, float] = {}
    for length in range(1, order + 1):
        of = Counter(counts[length].values())
        discounts = [0.0]
        share = of[1] / max(of[1] + 2 * of[2], 1)
        discounts += [i - (i + 1) * share * of[i + 1] / max(of[i], 1) for i in (1, 2, 3)]
        if not (of[1] and of[2] and of[3]) or any(not 0 <= d <= i for i, d in enumerate(discounts)):
            discounts = [0.0, *FALLBACK]
        groups: dict[Ngram, list[Ngram]] = defaultdict(list)
        for ngram in counts[length]:
            groups[ngram[:-1]].append(ngram)
        for context, ngrams in groups.items():
            total = sum(counts[length][ngram] for ngram in ngrams)
            kept = [each for each in ngrams if length == 1 or raw[length][each] > least[length - 1]]
            freed = sum(discounts[min(counts[length][each], 3)] for each in kept)
            freed += sum(counts[length][each] for each in ngrams if each not in kept)
            weights[context] = freed / total
            for each in kept:
                own = (counts[length][each] - discounts[min(counts[length][each], 3)]) / total
                probabilities[each] = own + freed / total * probabilities[each[1:]]
        if length == 1:
            probabilities[("<s>",)] = 1.0
    del probabilities[()]
    return probabilities, weights


def rows(table: NgramTable) -> dict[Ngram, tuple[float, float]]:
    return {
        tuple(table.words[word] for word in words): (log10, backoff)
        for ngrams in table.orders
        for words, log10, backoff in zip(
            ngrams.words.tolist(), ngrams.log10.tolist(), ngrams.backoff.tolist(), strict=True
        )
    }


@pytest.mark.parametrize(
    ("order", "prune"), [(1, []), (2, []), (3, []), (4, []), (3, [0, 0, 1]), (4, [0, 1, 2])]
)
def test_models_equal_the_equations(order: int, prune: list[int]) -> None:
    for seed in range(3):
        lines = text(seed)
        words, levels = count_text(lines, order)
        found = rows(estimate(words, levels, prune=prune, fallback=True))
        least = [*prune, *([prune[-1] if prune else 0] * (order - len(prune)))]
        probabilities, weights = by_hand(lines, order, least)
        assert found.keys() == probabilities.keys()
        for ngram, (log10, backoff) in found.items():
            assert log10 == pytest.approx(math.log10(probabilities[ngram]), abs=1e-5)
            is_context = len(ngram) < order and ngram[-1] not in ("</s>", "<unk>")
            assert backoff == pytest.approx(math.log10(weights[ngram]) if is_context else 0.0, abs=1e-5)


@pytest.mark.parametrize("prune", [[], [0, 1, 2]])
def test_the_words_after_every_context_sum_to_one(prune: list[int]) -> None:
    words, levels = count_text(text(5), 3)
    arrays, about = build_trie(estimate(words, levels, prune=prune, fallback=True))
    model = trie_of({name: torch.from_numpy(array) for name, array in arrays.items()}, about)
    unpacked = model.table()
    weights = unpacked.row_weights(torch.arange(len(unpacked.parent)))
    weights[:, model.begin] = -math.inf
    ends = torch.tensor([model.end + 1, model.unknown + 1])  # nothing comes after these
    total = weights.exp().sum(dim=1)
    total[ends] = 1.0
    assert torch.allclose(total, torch.ones(len(total)), atol=1e-4)


@pytest.mark.parametrize("word", SPECIAL)
def test_texts_with_special_words_are_refused(word: str) -> None:
    with pytest.raises(LanguageModelError, match="line 2: expected a text without"):
        count_text(["a b", f"a {word}"], 2)


def test_texts_without_words_are_refused() -> None:
    with pytest.raises(LanguageModelError, match="expected text with words"):
        count_text(["", " \t"], 2)


def test_texts_whose_counts_give_no_discounts_are_refused() -> None:
    words, levels = count_text(["a b", "a c"], 2)
    with pytest.raises(LanguageModelError, match="--discount-fallback"):
        estimate(words, levels)


@pytest.mark.parametrize("prune", [[1], [0, 2, 1], [0, 0, 0, 0]])
def test_impossible_limits_are_refused(prune: list[int]) -> None:
    words, levels = count_text(text(0), 3)
    with pytest.raises(OptionError, match="prune: expected up to 3 numbers"):
        estimate(words, levels, prune=prune)


def test_blanks_separate_words_and_others_belong_to_them() -> None:
    words, _ = count_text(["a\tb\u00a0c \r\n"], 1)
    assert words == [*SPECIAL, "a", "b\u00a0c"]
