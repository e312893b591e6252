"""KenLM's binaries of every kind score as the ARPA files that they were made of."""

from __future__ import annotations

import random
import struct
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings

from sottovoce.errors import LanguageModelError
from sottovoce.lm.kenlm import KenlmModel
from sottovoce.lm.ngram import NgramModel, load_ngram
from tests.conftest import Reference
from tests.lm.test_ngram import BINARIES, scores_of_kenlm, sentences
from tests.lm.test_trie import FLOOR, Ngrams, by_hand, files, known_context

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
    found = {each: (log10, min(round(backoff, 6), 0.0) + 0.0) for each, (log10, backoff) in ngrams.items()}
    for length in range(max(map(len, ngrams)) - 1, 1, -1):
        for each in [each for each in found if len(each) == length + 1]:
            for part in (each[:-1], each[1:]):
                found.setdefault(part, (by_hand(found, part[:-1], part[-1]), 0.0))
    return found


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
