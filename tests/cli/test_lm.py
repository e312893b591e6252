"""`sottovoce lm`: estimated and converted models serve as --lm; errors in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sottovoce.cli.main import run
from sottovoce.ctc import CtcDecoder
from sottovoce.lm.ngram import NgramModel
from tests.cli.conftest import Call
from tests.ctc.enumeration import emissions
from tests.lm.test_estimate import counted, text, written
from tests.lm.test_ngram import BINARIES, sentences

pytestmark = pytest.mark.usefixtures("kernels")
SAID = [list("abcab"), list("xabde")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(text(0)), encoding="utf-8")
    (tmp_path / "more.txt").write_text("\n".join(text(1)), encoding="utf-8")
    return tmp_path


def test_estimated_models_are_the_same_in_every_format(folder: Path, call: Call) -> None:
    options = ["--order", "3", "--discount-fallback", "--prune", "0,0,1"]
    for name in ("lm.arpa", "lm.arpa.gz", "lm.trie"):
        said = call("lm", "estimate", "text.txt", "more.txt", *options, "-o", name)
        assert said.out.startswith(f"{name}: 21 1-grams, ")
    assert run(["lm", "build", "lm.arpa.gz", "-o", "exact.trie", "--bits", "32"]) == 0
    assert run(["lm", "build", "lm.arpa", "-o", "small.trie"]) == 0
    exact = sentences(NgramModel.load("lm.arpa"), SAID)
    assert np.allclose(sentences(NgramModel.load("lm.arpa.gz"), SAID), exact)
    assert np.array_equal(sentences(NgramModel.load("exact.trie"), SAID), exact)
    for name in ("lm.trie", "small.trie"):
        assert np.allclose(sentences(NgramModel.load(name), SAID), exact, atol=0.01)


def test_counts_give_the_model_of_the_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--order", "3", "--discount-fallback"]
    written(folder / "counts.gz", counted(text(0), 4))
    assert run(["lm", "estimate", "text.txt", *options, "-o", "text.trie"]) == 0
    assert run(["lm", "estimate", "--counts", "counts.gz", *options, "-o", "counts.trie"]) == 0
    expected = sentences(NgramModel.load("text.trie"), SAID)
    assert np.allclose(sentences(NgramModel.load("counts.trie"), SAID), expected, atol=0.01)
    capsys.readouterr()
    assert run(["lm", "estimate", "--counts", "counts.gz", *options[2:], "-o", "counts.arpa"]) == 0
    assert " 4-grams; " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("estimate text.txt --discount-fallback", "1,368 words: about 0.0 GB of memory"),
        ("estimate --counts counts --discount-fallback", "891 n-grams: about 0.0 GB of memory"),
        (f"build {BINARIES}/small.arpa", "n-grams: about 0.0 GB"),
        (f"build {BINARIES}/trie.bin", "n-grams: about 0.0 GB"),
    ],
)
def test_the_memory_is_told_where_more_is_asked_for(
    arguments: str, message: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(folder / "counts", counted(text(0), 3))
    for options, n_told in (["-v"], 1), ([], 0):
        caplog.clear()
        assert run(["lm", *arguments.split(), "-o", "lm.trie", *options]) == 0
        assert [message in each.getMessage() for each in caplog.records] == [True] * n_told


@pytest.mark.parametrize("kind", ["trie", "trie-both"])
def test_kenlm_tries_are_converted(kind: str, folder: Path) -> None:
    assert run(["lm", "build", str(BINARIES / f"{kind}.bin"), "-o", "lm.trie"]) == 0
    labels, log_probs = ["-", "a", "b", " "], emissions(7, 4, seed=2)
    result = [
        CtcDecoder(labels, lm=lm, n_best=4).decode(log_probs)[0]
        for lm in (BINARIES / "small.arpa", folder / "lm.trie")
    ]
    assert [each.text for each in result[0]] == [each.text for each in result[1]]
    assert [each.score for each in result[0]] == pytest.approx([each.score for each in result[1]], abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("estimate text.txt -o lm.bin", "-o: expected a name in .trie, .arpa, .arpa.gz, got 'lm.bin'"),
        ("estimate none.txt -o lm.trie", "none.txt: expected a text"),
        ("estimate text.txt -o lm.trie --prune 0,x", "--prune: expected whole numbers separated by commas"),
        ("estimate text.txt -o lm.trie --prune 1", "prune: expected up to 3 numbers that rise from 0"),
        ("estimate --counts text.txt -o lm.trie", "text.txt, line 1: expected a count above 0, got '' after"),
        ("estimate text.txt special.txt -o lm.trie", "special.txt, line 2: expected a text without"),
        ("build made.trie -o lm.trie", "made.trie: expected an ARPA file or a KenLM binary, got a .trie"),
        ("build text.txt -o lm.trie", "expected a line \\data\\, got none: not an ARPA file"),
        (f"build {BINARIES}/probing.bin -o lm.trie", "a probing table, which can be searched but not listed"),
        ("estimate text.txt --discount-fallback -o text.txt/lm.trie", "cannot be written"),
    ],
)
def test_errors(arguments: str, message: str, folder: Path, call: Call) -> None:
    Path("special.txt").write_text("a b\na <s>\n")
    assert run(["lm", "build", str(BINARIES / "small.arpa"), "-o", "made.trie"]) == 0
    errors = call("lm", *arguments.split(), code=2).err.strip()
    assert message in errors
    assert "\n" not in errors
