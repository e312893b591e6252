"""Tries and KenLM's binaries answer as the definition of back-off does, unpacked and read in place."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Mapping
from copy import copy
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.errors import LanguageModelError
from sottovoce.lm import arpa, ngram
from sottovoce.lm.arpa import read_arpa, write_arpa
from sottovoce.lm.kenlm import KenlmModel
from sottovoce.lm.ngram import NgramModel, build_trie, load_ngram, write_trie
from tests.conftest import Reference
from tests.lm.test_ngram import BINARIES, scores_of_kenlm, sentences

pytest.importorskip("sottovoce_kernels.trie", reason="sottovoce-kernels is not installed")

Ngram = tuple[str, ...]
Ngrams = Mapping[Ngram, tuple[float, float]]
"""log10 probabilities and back-offs."""
WORDS = ("<s>", "</s>", "a", "b", "ü", "d\u00a0e")
FLOOR = -100.0


@st.composite
def files(draw: st.DrawFn) -> Ngrams:
    """N-grams of any order up to 4, also such whose contexts or endings are no n-grams."""
    order = draw(st.integers(1, 4))
    unknown = draw(st.sampled_from([(), ("<unk>",), ("<UNK>",)]))
    words = draw(st.permutations([*WORDS, *unknown]))
    probabilities = st.one_of(st.floats(-5, -0.01), st.just(-math.inf), st.just(-0.5), st.just(0.0))
    backoffs = st.one_of(st.floats(-2, 0.5), st.just(0.0))
    result = {(word,): (draw(probabilities), draw(backoffs)) for word in words}
    for length in range(2, order + 1):
        ngrams = st.tuples(*[st.sampled_from(words)] * length)
        for ngram_ in draw(st.lists(ngrams, max_size=12, min_size=1, unique=True)):
            result[ngram_] = (draw(probabilities), draw(backoffs) if length < order else 0.0)
    return result


def text_of(ngrams: Ngrams) -> str:
    order = max(map(len, ngrams))
    by_order = [[each for each in ngrams if len(each) == length] for length in range(1, order + 1)]
    lines = ["\\data\\", *(f"ngram {n}={len(each)}" for n, each in enumerate(by_order, start=1))]
    for n, each in enumerate(by_order, start=1):
        lines.append(f"\\{n}-grams:")
        for words in each:
            log10, backoff = ngrams[words]
            lines.append(f"{log10}\t{' '.join(words)}" + (f"\t{backoff}" if backoff else ""))
    return "\n".join([*lines, "\\end\\", ""])


def by_hand(ngrams: Ngrams, context: Ngram, word: str) -> float:
    """log10 of a word after a context, by the definition of back-off."""
    if (*context, word) in ngrams:
        return ngrams[(*context, word)][0]
    if not context:
        return FLOOR
    return ngrams.get(context, (0.0, 0.0))[1] + by_hand(ngrams, context[1:], word)


def known_context(ngrams: Ngrams, context: Ngram) -> Ngram:
    """The part of a context that n-grams begin with or are: more cannot change a score."""
    order = max(map(len, ngrams))
    context = context[max(len(context) - order + 1, 0) :]
    begun = {each[:n] for each in ngrams for n in range(1, len(each))} | set(ngrams)
    while context and context not in begun:
        context = context[1:]
    return context


def without_kernels(model: NgramModel) -> NgramModel:
    plain = copy(model)
    plain.__dict__["native"] = None
    return plain


def compare(model: NgramModel, ngrams: Ngrams, words: list[str], tolerance: float) -> None:
    """Walk every sequence of three words, in every way to look up, and compare each step."""
    plain = without_kernels(model)
    steps = list(product(range(len(words)), repeat=3))
    tokens = np.array(steps)
    ways = [plain.score, model.score]
    states = [np.zeros(len(steps), np.int64) for _ in ways]
    for column in range(3):
        named = [tuple(words[token] for token in row[: column + 1]) for row in steps]
        wanted = [by_hand(ngrams, known_context(ngrams, each[:-1]), each[-1]) for each in named]
        for way, follow in enumerate(ways):
            result, states[way] = follow(states[way], tokens[:, column])
            for score, expected in zip(result.tolist(), wanted, strict=True):
                assert score == pytest.approx(expected * math.log(10), abs=tolerance, rel=1e-5)
        assert np.array_equal(states[0], states[1])
    nodes = np.arange(model.starts[-1])
    rows, _ = model.score(nodes)
    pairs = nodes.repeat(model.n_tokens), np.tile(np.arange(model.n_tokens), len(nodes))
    scores, after = model.score(*pairs)
    assert np.allclose(rows.flatten(), scores, atol=1e-5)
    table = model.table()
    assert np.array_equal(table.row_weights(nodes), rows)
    arcs, targets = table.follow(*pairs)
    assert np.array_equal(targets, after)
    assert np.allclose(arcs, scores, atol=1e-5)
    bounds = model.automaton().root_weights
    assert (rows.max(axis=0) <= bounds + 1e-4).all()


@settings(max_examples=60, deadline=None)
@given(files(), st.sampled_from([8, 32]))
def test_every_look_up_equals_the_definition(ngrams: Ngrams, bits: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "some.arpa"
        path.write_text(text_of(ngrams), encoding="utf-8")
        table = read_arpa(path)
        arrays, about = build_trie(table, bits=bits)
        write_trie(path.with_suffix(".trie"), arrays, about)
        model = NgramModel.load(path.with_suffix(".trie"))
        words = list(table.words) + ([] if {"<unk>", "<UNK>"} & set(table.words) else ["<unk>"])
        assert list(model.vocabulary)[: len(words)] == words
        compare(model, ngrams, words, 1e-4)


def random_table(seed: int, sizes: tuple[int, ...]) -> arpa.NgramTable:
    """A complete model: contexts and endings of all n-grams are n-grams."""
    random = np.random.default_rng(seed)
    words = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(sizes[0] - 3))]
    rows = np.arange(sizes[0])[:, None]
    orders = []
    for order, size in enumerate(sizes, start=1):
        if order > 1:
            pairs = rows[random.integers(0, len(rows), size)], random.zipf(1.3, size) % sizes[0]
            rows = np.unique(np.column_stack(pairs), axis=0)
        orders.append(
            arpa.Ngrams(
                random.permutation(rows).astype(np.int32),
                -random.gamma(2.0, 1.0, len(rows)).astype(np.float32),
                -random.gamma(1.0, 0.3, len(rows)).astype(np.float32),
            )
        )
    unigrams = arpa.Ngrams(np.arange(sizes[0], dtype=np.int32)[:, None], orders[0].log10, orders[0].backoff)
    return arpa.NgramTable(words, (unigrams, *orders[1:]))


def made(table: arpa.NgramTable, bits: int = 32) -> NgramModel:
    arrays, about = build_trie(table, bits=bits)
    return NgramModel(arrays, about)


def test_large_tables_are_sorted_in_parts_and_from_files(monkeypatch: pytest.MonkeyPatch) -> None:
    table = random_table(0, (60, 800, 2000, 1500))
    whole, _ = build_trie(table)
    monkeypatch.setattr(ngram, "SORTED_AT_ONCE", 100)
    monkeypatch.setattr(arpa, "_BLOCK", 64)
    monkeypatch.setattr(ngram, "_SAMPLE", 50)
    monkeypatch.setattr(arpa, "_IN_MEMORY_BYTES", 0)
    parts, _ = build_trie(table)
    assert whole.keys() == parts.keys()
    for name, array in whole.items():
        assert np.array_equal(array, parts[name]), name


def test_eight_bits_cost_little(tmp_path: Path) -> None:
    table = random_table(1, (60, 1800, 9000))
    exact, small = made(table), made(table, bits=8)
    random = np.random.default_rng(0)
    states = other = random.integers(exact.starts[-1], size=500)
    for _ in range(6):
        tokens = random.integers(exact.n_tokens, size=500)
        result, states = exact.score(states, tokens)
        rounded, other = small.score(other, tokens)
        assert np.array_equal(states, other)
        assert 0 < np.abs(result - rounded).mean() < 0.02
        assert np.sqrt(np.square(result - rounded).mean()) < 0.05
    sizes = [sum(array.nbytes for array in build_trie(table, bits=bits)[0].values()) for bits in (8, 32)]
    assert sizes[0] < 0.6 * sizes[1]


def test_n_grams_that_stand_twice_are_refused() -> None:
    table = random_table(2, (10, 30))
    words = table.orders[1].words.copy()
    words[3] = words[7]
    twice = arpa.Ngrams(words, table.orders[1].log10, table.orders[1].backoff)
    with pytest.raises(LanguageModelError, match="expected each 2-gram once"):
        build_trie(arpa.NgramTable(table.words, (table.orders[0], twice)))


@pytest.mark.parametrize("suffix", [".arpa", ".arpa.gz"])
def test_arpa_files_are_read_as_they_were_written(suffix: str, tmp_path: Path) -> None:
    table = random_table(3, (40, 200, 500))
    path = tmp_path / f"some{suffix}"
    write_arpa(path, table)
    read = read_arpa(path)
    assert read.words == table.words
    for ours, theirs in zip(read.orders, table.orders, strict=True):
        assert np.array_equal(ours.words, theirs.words)
        assert np.allclose(ours.log10, theirs.log10, rtol=1e-6)
    assert np.allclose(read.orders[1].backoff, table.orders[1].backoff, rtol=1e-6)
    assert not read.orders[2].backoff.any()


TRIES = ["trie", "trie-quantized", "trie-array", "trie-both"]
NEEDS_KERNELS = pytest.mark.skipif(
    find_spec("sottovoce_kernels") is None or find_spec("sottovoce_kernels.kenlm") is None,
    reason="the native kernels are not installed, or too old",
)
KINDS = [pytest.param("probing", marks=NEEDS_KERNELS), *TRIES]
MULTIPLIERS = (8978948897894561157, 17894857484156487943)


def write_probing(path: Path, ngrams: Ngrams, free: int = 0) -> None:
    """Write a binary with probing tables, as `build_binary probing` does. free: key of free buckets."""
    order = max(map(len, ngrams))
    words = ["<unk>", *(each[0] for each in ngrams if len(each) == 1 and each[0] not in ("<unk>", "<UNK>"))]
    ids = {word: place for place, word in enumerate(words)} | {"<UNK>": 0}
    counts = [len(words), *(sum(len(each) == n for each in ngrams) for n in range(2, order + 1))]
    magic = b"mmap lm http://kheafield.com/code format version 5\n"
    header = struct.pack("<56s3f3IQ", magic, 0.0, 1.0, -0.5, 1, 2**32 - 1, 0, 1)
    header += struct.pack("<B3xfI?3xI", order, 1.5, 0, True, 0) + struct.pack(f"<{order}Q", *counts)
    header += bytes(-len(header) % 8) + bytes(8 + 12 * max(counts[0] + 1, int(1.5 * counts[0])))
    values = [(FLOOR, 0.0)] * (counts[0] + 1)
    for each, weights in ngrams.items():
        if len(each) == 1:
            values[ids[each[0]]] = weights
    tables = [b"".join(struct.pack("<ff", *pair) for pair in values)]
    for n in range(2, order + 1):
        entry = "<Qf" if n == order else "<Qff"
        empty = struct.pack(entry, free, *[0.0] * (len(entry) - 2))
        table = [empty] * max(counts[n - 1] + 1, int(1.5 * counts[n - 1]))
        for each, weights in ngrams.items():
            if len(each) != n:
                continue
            key = ids[each[-1]]
            for word in reversed(each[:-1]):
                key = (key * MULTIPLIERS[0] ^ (1 + ids[word]) * MULTIPLIERS[1]) % 2**64
            place = key % len(table)
            while table[place] != empty:
                place = (place + 1) % len(table)
            table[place] = struct.pack(entry, key, *weights[: 1 if n == order else 2])
        tables.append(b"".join(table))
    path.write_bytes(header + b"".join(tables) + "".join(f"{word}\0" for word in words).encode())


def complete(ngrams: Ngrams) -> Ngrams:
    """Add missing contexts and endings with the scores of backing off, as `build_binary` does.

    Back-offs are at most 0, so that no such score is above it: KenLM stores no sign.
    """
    result = {each: (log10, min(round(backoff, 6), 0.0) + 0.0) for each, (log10, backoff) in ngrams.items()}
    for length in range(max(map(len, ngrams)) - 1, 1, -1):
        for each in [each for each in result if len(each) == length + 1]:
            for part in (each[:-1], each[1:]):
                result.setdefault(part, (by_hand(result, part[:-1], part[-1]), 0.0))
    return result


@NEEDS_KERNELS
def test_a_table_without_a_free_bucket_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "full.bin"
    write_probing(path, {("a",): (-1.0, -0.5), ("b",): (-2.0, 0.0), ("a", "b"): (-0.25, 0.0)}, free=1)
    with pytest.raises(LanguageModelError, match="a damaged one"):
        KenlmModel(path)


@NEEDS_KERNELS
@settings(max_examples=40, deadline=None)
@given(files())
def test_every_look_up_of_a_probing_table_equals_the_definition(ngrams: Ngrams) -> None:
    if max(map(len, ngrams)) == 1:
        return  # KenLM has none
    ngrams = complete(ngrams)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "some.bin"
        write_probing(path, ngrams)
        model = load_ngram(path)
    assert isinstance(model, KenlmModel)
    words = [word for word in model.vocabulary if word != "<unk>"]
    for seed in range(20):
        context: tuple[str, ...] = ()
        state = model.null_context(1)
        for word in random.Random(seed).choices(words, k=6):
            score, state = model.score(state, np.array(model.ids([word])))
            expected = by_hand(ngrams, known_context(ngrams, context), word) * 2.302585
            assert score[0] == pytest.approx(expected, rel=1e-5, abs=1e-4)
            context = (*context, word)


@pytest.mark.parametrize("kind", KINDS)
def test_binaries_score_as_their_arpa_file(kind: str) -> None:
    ours, theirs = NgramModel.load(BINARIES / "small.arpa"), load_ngram(BINARIES / f"{kind}.bin")
    assert isinstance(theirs, KenlmModel if kind == "probing" else NgramModel)
    assert set(theirs.vocabulary) == set(ours.vocabulary)
    text = [random.Random(i).choices(["a", "b", "zebra"], k=6) for i in range(200)]
    assert np.allclose(sentences(ours, text), sentences(theirs, text), atol=1e-4)
    assert theirs.score(theirs.start(1))[0].shape == (1, theirs.n_tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_binaries_are_refused(kind: str, tmp_path: Path) -> None:
    binary = (BINARIES / f"{kind}.bin").read_bytes()
    cut = tmp_path / "cut.bin"
    for n_bytes in (60, 100, len(binary) // 2, len(binary) - 40, len(binary) - 12, len(binary) - 1):
        cut.write_bytes(binary[:n_bytes])
        with pytest.raises(LanguageModelError, match=r"cut\.bin: expected a KenLM binary with its words"):
            load_ngram(cut)
    cut.write_bytes(binary.replace(b"version 5", b"version 4"))
    with pytest.raises(LanguageModelError, match="another version"):
        load_ngram(cut)


def test_probing_tables_cannot_be_listed() -> None:
    with pytest.raises(LanguageModelError, match="a probing table, which can be searched but not listed"):
        NgramModel.load(BINARIES / "probing.bin")


@pytest.mark.reference
@pytest.mark.parametrize("kind", KINDS)
def test_binaries_equal_kenlm(kind: str, reference: Reference) -> None:
    model = load_ngram(BINARIES / f"{kind}.bin")
    assert model is not None
    text = [random.Random(i).choices(["a", "b", "zebra"], k=6) for i in range(50)]
    theirs = np.array(reference(lambda: scores_of_kenlm(BINARIES / f"{kind}.bin", text)))
    assert np.allclose(sentences(model, text), theirs, atol=1e-4)
