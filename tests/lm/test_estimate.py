"""Estimated models equal the equations of Chen and Goodman, worked out word by word."""

from __future__ import annotations

import gzip
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.arpa import (
    FALLBACK,
    SPECIAL,
    NgramTable,
    count_text,
    estimate,
    numbered_lines,
    read_counts,
)

Ngram = tuple[str, ...]


def text(seed: int, n: int = 200) -> list[str]:
    chooser = random.Random(seed)
    words = [*"abcdefghijklmnop", "é", "x\u00a0y"]
    weights = [1 / (place + 1) for place in range(len(words))]
    return [" ".join(chooser.choices(words, weights, k=chooser.randint(1, 9))) for _ in range(n)]


def numbered(lines: Iterable[str]) -> Iterator[tuple[Path, int, str]]:
    return ((Path("text"), number, line) for number, line in enumerate(lines, start=1))


def counted(lines: list[str], order: int) -> list[Counter[Ngram]]:
    raw: list[Counter[Ngram]] = [Counter() for _ in range(order + 1)]
    for line in lines:
        words = ["<s>", *line.split(" "), "</s>"]
        for length in range(1, order + 1):
            raw[length].update(tuple(words[i : i + length]) for i in range(len(words) - length + 1))
    return raw


def by_hand(lines: list[str], order: int, least: list[int]) -> tuple[dict[Ngram, float], dict[Ngram, float]]:
    """Probabilities and back-off weights of the n-grams that are kept."""
    raw = counted(lines, order)
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
                owned = (counts[length][each] - discounts[min(counts[length][each], 3)]) / total
                probabilities[each] = owned + freed / total * probabilities[each[1:]]
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
        words, levels = count_text(numbered(lines), order)
        result = rows(estimate(words, levels, prune=prune, fallback=True))
        least = [*prune, *([prune[-1] if prune else 0] * (order - len(prune)))]
        probabilities, weights = by_hand(lines, order, least)
        assert result.keys() == probabilities.keys()
        for ngram, (log10, backoff) in result.items():
            assert log10 == pytest.approx(math.log10(probabilities[ngram]), abs=1e-5)
            is_context = len(ngram) < order and ngram[-1] not in ("</s>", "<unk>")
            assert backoff == pytest.approx(math.log10(weights[ngram]) if is_context else 0.0, abs=1e-5)


@pytest.mark.parametrize("word", SPECIAL)
def test_texts_with_special_words_are_refused(word: str) -> None:
    with pytest.raises(LanguageModelError, match=r"text, line 2: expected a text without"):
        count_text(numbered(["a b", f"a {word}"]), 2)


def test_texts_without_words_are_refused() -> None:
    with pytest.raises(LanguageModelError, match="expected text with words"):
        count_text(numbered(["", " \t"]), 2)


def test_texts_whose_counts_give_no_discounts_are_refused() -> None:
    words, levels = count_text(numbered(["a b", "a c"]), 2)
    with pytest.raises(LanguageModelError, match="--discount-fallback"):
        estimate(words, levels)


@pytest.mark.parametrize("prune", [[1], [0, 2, 1], [0, 0, 0, 0]])
def test_impossible_limits_are_refused(prune: list[int]) -> None:
    words, levels = count_text(numbered(text(0)), 3)
    with pytest.raises(OptionError, match="prune: expected up to 3 numbers"):
        estimate(words, levels, prune=prune)


def test_blanks_separate_words_and_others_belong_to_them() -> None:
    words, _ = count_text(numbered(["a\tb\u00a0c \r\n"]), 1)
    assert words == [*SPECIAL, "a", "b\u00a0c"]


def written(path: Path, levels: list[Counter[Ngram]]) -> Path:
    lines = [f"{' '.join(ngram)}\t{count}\n" for level in levels for ngram, count in level.items()]
    random.Random(0).shuffle(lines)
    content = "".join(lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(("order", "prune"), [(1, []), (3, []), (4, [0, 1, 2])])
def test_counts_of_a_text_give_the_model_of_the_text(order: int, prune: list[int], tmp_path: Path) -> None:
    lines = text(0)
    expected = rows(estimate(*count_text(numbered(lines), order), prune=prune, fallback=True))
    whole = written(tmp_path / "all.txt", counted(lines, order))
    longer = written(tmp_path / "longer.gz", counted(lines, order + 2))
    halves = [
        written(tmp_path / f"{part}.txt", counted(lines[part::2], order)) for part in range(2)
    ]  # counts add up
    for words, levels in (read_counts([whole]), read_counts([longer], order), read_counts(halves)):
        result = rows(estimate(words, levels, prune=prune, fallback=True))
        assert result.keys() == expected.keys()
        for ngram, values in expected.items():
            assert result[ngram] == pytest.approx(values, abs=1e-6)


def test_missing_orders_are_those_within_the_longest_ngrams(tmp_path: Path) -> None:
    lines = [line for line in text(0) if line.count(" ")]  # a shorter sentence has no n-gram of order 4
    expected = rows(estimate(*count_text(numbered(lines), 4), fallback=True))
    raw = counted(lines, 4)
    for levels in (raw[4:], [raw[4], raw[2]], [raw[1], raw[4]]):
        result = rows(estimate(*read_counts([written(tmp_path / "counts", levels)]), fallback=True))
        assert result.keys() == expected.keys()
        for ngram, values in expected.items():
            assert result[ngram] == pytest.approx(values, abs=1e-6)


def test_absolute_values_of_a_few_counts(tmp_path: Path) -> None:
    """Without marks of sentences, as in lists of the web: "a b" three times, "a c" and "b c" once.

    One word was seen before b, two before c, none before a, which counts as one; the discounts are 0.5, 1
    and 1.5. 2.0 of the four are left to a uniform distribution over a, b, c, </s> and <unk>.
    """
    path = tmp_path / "counts"
    path.write_text("a b\t2\na c\t1\nb c\t1\na b\t1\n")
    result = rows(estimate(*read_counts([path]), fallback=True))
    chances = {ngram: 10**log10 for ngram, (log10, _) in result.items()}
    assert chances == pytest.approx(
        {
            ("<unk>",): 0.1,
            ("<s>",): 1.0,
            ("</s>",): 0.1,
            ("a",): (1 - 0.5) / 4 + 0.1,
            ("b",): (1 - 0.5) / 4 + 0.1,
            ("c",): (2 - 1) / 4 + 0.1,
            ("a", "b"): (3 - 1.5) / 4 + 0.5 * 0.225,
            ("a", "c"): (1 - 0.5) / 4 + 0.5 * 0.35,
            ("b", "c"): 0.5 + 0.5 * 0.35,
        }
    )
    assert 10 ** result["a",][1] == pytest.approx((1.5 + 0.5) / 4)
    assert 10 ** result["b",][1] == pytest.approx(0.5)


def test_the_marks_of_web_1t_are_those_of_sentences(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    path.write_text("<S> a\t12345678901\na <UNK>\t5\n<UNK> </S>\t5\n")
    words, (unigrams, bigrams) = read_counts([path])
    assert words == [*SPECIAL, "a"]
    assert unigrams.counts.tolist() == [5, 12345678901, 5, 12345678901]
    assert sorted(bigrams.counts.tolist()) == [5, 5, 12345678901]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a b", "line 3: expected a count above 0, got '' after 'a b'"),
        ("a b\t0", "line 3: expected a count above 0, got '0' after 'a b'"),
        ("a b\t1.5", "line 3: expected a count above 0, got '1.5'"),
        ("a b\t1999\t7\t3", r"line 3: expected a count above 0, got '1999\\t7\\t3'"),
        ("a <s>\t1", "line 3: expected up to 10 words, <s> first and </s> last, got 'a <s>'"),
        ("a b c d e f g h i j k\t1", "line 3: expected up to 10 words"),
    ],
)
def test_other_lines_are_refused(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "counts"
    path.write_text(f"a\t1\n\n{line}\n")
    with pytest.raises(LanguageModelError, match=f"counts, {message}"):
        read_counts([path])


def test_no_counts_or_too_short_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    path.write_text("\n")
    with pytest.raises(LanguageModelError, match="expected lines of words, a tab and a count, got none"):
        read_counts([path])
    path.write_text("a b\t1\n")
    with pytest.raises(OptionError, match="at most the 2 words of the longest n-grams, got 3"):
        read_counts([path], 3)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    content = bytearray(gzip.compress(b"a b c\n" * 1000))
    content[12:20] = b"\xff" * 8
    path.write_bytes(content)
    with pytest.raises(LanguageModelError, match=r"text\.gz: expected a text, got "):
        list(numbered_lines([path]))
