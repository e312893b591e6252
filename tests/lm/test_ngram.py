"""N-gram models equal KenLM, in batches, one by one, and out of the cache; damaged files are refused."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.ctc.options import CtcFusionOptions
from sottovoce.errors import LanguageModelError
from sottovoce.lm import ngram
from sottovoce.lm.kenlm import KenlmModel
from sottovoce.lm.ngram import LEAST_BYTES, NgramModel
from tests.conftest import Reference

BINARIES = Path(__file__).parent / "binaries"
"""KenLM's build_binary made them of small.arpa: see make.sh there."""
SMALL = (BINARIES / "small.arpa").read_text()
LN10 = 2.302585092994046


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.arpa"
    path.write_text(SMALL)
    return path


def sentences(model: NgramModel | KenlmModel, words: list[list[str]]) -> np.ndarray:
    """log10 of whole sentences of one length."""
    states, total = model.start(len(words)), np.zeros(len(words), np.float32)
    for column in zip(*words, strict=True):
        scores, states = model.score(states, np.array(model.ids(column)))
        total += scores
    return (total + model.finish(states)) / LN10


def test_words_are_looked_up_as_they_are_written(small: Path) -> None:
    model = NgramModel.load(small)
    assert model.ids(["a", "A", "b"]) == [model.vocabulary["a"], model.unknown, model.vocabulary["b"]]


def test_a_file_without_unk_gives_unknown_words_kenlms_floor(tmp_path: Path) -> None:
    path = tmp_path / "no_unk.arpa"
    path.write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-1 a\n-0.5 </s>\n\n\\end\\\n")
    assert float(sentences(NgramModel.load(path), [["b"]])[0]) == pytest.approx(-100.5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "data", "not an ARPA file"),
        ("ngram 1=5", "ngram 1=6", "expected 6 1-grams"),
        ("ngram 1=5", "ngram 1=4", "expected 4 1-grams, got more"),
        ("ngram 2=4", "ngram 2=x", "ngram 2=COUNT"),
        ("-0.4\t<s> a\t-0.1", "-0.4\t<s> c\t-0.1", "'c'"),
        ("-0.4\t<s> a", "zero\t<s> a", "'zero'"),
        ("-0.4\t<s> a", "nan\t<s> a", "a log10 number"),
        ("-0.8\tb", "-0.8\ta", "'b'"),
        ("-0.35\ta a\t0.1", "-0.35\ta b\t0.1", "once"),
        ("\\end\\", "", "end of the file"),
        ("\\3-grams:", "\\4-grams:", "3-grams"),
    ],
)
def test_damaged_files_are_refused(small: Path, old: str, new: str, message: str) -> None:
    assert old in SMALL
    small.write_text(SMALL.replace(old, new, 1))
    with pytest.raises(LanguageModelError, match=message.replace("\\", "\\\\")):
        NgramModel.load(small)


def scores_of_kenlm(path: Path, text: Sequence[Sequence[str]]) -> list[float]:
    kenlm = pytest.importorskip("kenlm", reason="KenLM's package is not installed")
    model = kenlm.Model(str(path))
    return [round(model.score(" ".join(words)), 5) for words in text]


LIKE_SMALL = {
    "-inf": [("-99\t<s>", "-inf\t<s>")],
    "-inf within": [("-0.35\ta a", "-inf\ta a")],
    "</s> twice": [("ngram 1=5", "ngram 1=6"), ("\t</s>\n", "\t</s>\n-0.1\t</s>\n")],
    "a word twice": [("ngram 1=5", "ngram 1=6"), ("\n\n\\2-grams:", "\n-0.1\ta\t-3\n\n\\2-grams:")],
    "<unk> twice": [("ngram 1=5", "ngram 1=6"), ("\n\n\\2-grams:", "\n-2\t<unk>\t0\n\n\\2-grams:")],
    "blank lines under titles": [("\\1-grams:\n", "\\1-grams:\n\n \n"), ("\\2-grams:\n", "\\2-grams:\n\n")],
    "blank lines within": [("\n-0.8\tb", "\n\n-0.8\tb")],
    "blank lines between": [("\n\\3-grams:", "\n\n\n\\3-grams:"), ("\\end\\", "\n\n\\end\\\n\n")],
    "CRLF": [("\n", "\r\n")],
    "positive zero": [("\t-0.2\n", "\t0\n"), ("\t-0.1\n", "\t+0.0\n")],
}
"""Files that KenLM reads: what is replaced in `SMALL`."""


@pytest.mark.reference
@pytest.mark.parametrize("name", LIKE_SMALL)
def test_odd_files_score_as_in_kenlm(small: Path, name: str, reference: Reference) -> None:
    text = SMALL
    for old, new in LIKE_SMALL[name]:
        assert old in text
        text = text.replace(old, new)
    small.write_bytes(text.encode())
    spoken = [["a"], ["a", "b", "a", "a"], ["b", "b", "c"], ["c", "a", "a", "b"]]
    ours = [float(sentences(NgramModel.load(small), [words])[0]) for words in spoken]
    assert ours == pytest.approx(reference(lambda: scores_of_kenlm(small, spoken)), abs=1e-4)


@pytest.mark.parametrize(
    ("old", "new"),
    [("\n\n\\2-grams:", "\n\\2-grams:"), ("\n\n\\1-grams:", "\n\\1-grams:"), ("\t", " "), ("\n\n", "\n")],
    ids=["between sections", "after counts", "spaces", "no blank line at all"],
)
def test_files_of_other_programs_score_the_same(small: Path, old: str, new: str) -> None:
    """SRILM reads these."""
    expected = sentences(NgramModel.load(small), [["a", "b", "a"]])
    assert old in SMALL
    small.write_text(SMALL.replace(old, new))
    assert np.array_equal(sentences(NgramModel.load(small), [["a", "b", "a"]]), expected)


def test_a_word_that_stands_twice_is_a_warning(small: Path, caplog: pytest.LogCaptureFixture) -> None:
    for old, new in LIKE_SMALL["a word twice"]:
        small.write_text(small.read_text().replace(old, new))
    NgramModel.load(small)
    assert "small.arpa: unigrams that stand twice, the first counts: 'a'" in caplog.text


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_impossible_n_grams_are_never_found(weight: float, small: Path) -> None:
    """-inf of a bigram forbids it also times 0; -inf of a unigram forbids no bigram."""
    small.write_text(SMALL.replace("-0.4\t<s> a", "-inf\t<s> a").replace("-0.8\tb", "-inf\tb"))
    log_probs = np.log(np.array([[0.01, 0.01, 0.6, 0.38]]))
    decoder = CtcDecoder(
        ["-", "|", "a", "b"],
        lm=small,
        lexicon=[("a", [2]), ("b", [3])],
        fusion=CtcFusionOptions(lm_weight=weight),
    )
    best = decoder.decode(log_probs)[0][0]
    assert best.text != "a"
    assert best.score == best.score  # not NaN


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LanguageModelError, match=r"nothing\.arpa"):
        NgramModel.load(tmp_path / "nothing.arpa")
    broken = tmp_path / "broken.arpa.gz"
    broken.write_bytes(gzip.compress(SMALL.encode())[:40])
    with pytest.raises(LanguageModelError, match=r"broken\.arpa\.gz"):
        NgramModel.load(broken)


def random_sentences(path: Path, n: int, length: int) -> list[list[str]]:
    """Sentences of random words, a part of them made of n-grams of the file, some with unknown words."""
    model = NgramModel.load(path)
    words = [word for word in model.vocabulary if word not in ("<s>", "</s>", "<unk>")]
    rows = [line.split("\t")[1] for line in path.read_text().splitlines() if "\t" in line]
    ngrams = [row.split() for row in rows if " " in row]
    ngrams = [[w for w in ngram if w not in ("<s>", "</s>")] for ngram in ngrams]
    chooser = random.Random(0)
    result: list[list[str]] = []
    while len(result) < n:
        sentence: list[str] = []
        while len(sentence) < length:
            pick = chooser.random()
            sentence += chooser.choice(ngrams) if pick < 0.6 else [chooser.choice(words)]
            sentence += ["unheardof"] if pick > 0.95 else []
        result.append(sentence[:length])
    return result


@pytest.mark.reference
@pytest.mark.shared
@pytest.mark.parametrize("name", ["kenlm-test.arpa", "pyctcdecode-bugs_bunny.arpa", "flashlight-lm.arpa"])
def test_equals_kenlm(shared_dir: Path, name: str, reference: Reference) -> None:
    path = shared_dir / "ctc" / name
    text = random_sentences(path, 500, 9)
    theirs = np.array(reference(lambda: scores_of_kenlm(path, text)))
    assert np.abs(sentences(NgramModel.load(path), text) - theirs).max() < 1e-4


@pytest.mark.shared
def test_known_sentence_of_the_large_model(shared_dir: Path) -> None:
    model = NgramModel.load(shared_dir / "ctc" / "flashlight-lm.arpa")
    states, scores = model.start(1), []
    for word in ("the", "cat", "sat", "on", "the", "mat"):
        score, states = model.score(states, np.array(model.ids([word])))
        scores.append(float(score[0]) / LN10)
    expected = [-1.05971, -4.19448, -3.33383, -2.76726, -1.16237, -4.64589]
    assert scores == pytest.approx(expected, abs=1e-4)
    assert sum(scores) + float(model.finish(states)[0]) / LN10 == pytest.approx(-19.5123, abs=1e-3)


def of_words(a: str, b: str) -> str:
    """An ARPA file of two words."""
    return (
        "\\data\\\nngram 1=5\nngram 2=2\n\n"
        f"\\1-grams:\n-1\t<unk>\n-99\t<s>\t-0.3\n-0.9\t</s>\n-0.6\t{a}\t-0.2\n-0.8\t{b}\n\n"
        f"\\2-grams:\n-0.4\t<s> {a}\n-0.7\t{a} {b}\n\n\\end\\\n"
    )


@pytest.mark.reference
@pytest.mark.parametrize("space", ["\u00a0", "\u0085", "\u2028", "\u3000", "\x1c"])
def test_only_spaces_and_tabs_stand_between_words(space: str, tmp_path: Path, reference: Reference) -> None:
    """Any other white space is part of a word, or all of it, as in KenLM."""
    path, words = tmp_path / "spaced.arpa", [[f"10{space}000", space]]
    path.write_text(of_words(*words[0]), encoding="utf-8")
    ours = sentences(NgramModel.load(path), words)
    assert float(ours[0]) == pytest.approx(-0.4 - 0.7 - 0.9)
    assert reference(lambda: scores_of_kenlm(path, words)) == pytest.approx([float(ours[0])], abs=1e-4)


WITHOUT_UNKNOWN = (
    "\\data\\\nngram 1=3\nngram 2=1\n\n\\1-grams:\n-1 a -0.1\n-0.5 </s>\n-0.2 ü\u00a0b\n\n"
    "\\2-grams:\n-0.3 a a\n\n\\end\\\n"
)
PRUNED = SMALL.replace("ngram 2=4", "ngram 2=3").replace("-0.7\ta b\t-0.25\n", "")
"""The context of a 3-gram is no 2-gram."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ngram, "LEAST_BYTES", 0)
    return tmp_path / "cache" / "ngrams"


@pytest.fixture
def arpa(tmp_path: Path) -> Path:
    path = tmp_path / "words.arpa"
    path.write_text(SMALL)
    return path


def everything(model: NgramModel) -> tuple[object, ...]:
    """Words, and scores and states of every word in every state."""
    states = np.arange(model.starts[-1])
    tokens = np.arange(model.n_tokens)
    scores, after = model.score(states.repeat(len(tokens)), np.tile(tokens, len(states)))
    parts = (scores, after, model.finish(states), model.start(1))
    return dict(model.vocabulary), len(model.records), *(part.tolist() for part in parts)


def forbid_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "read_arpa", None)


@pytest.mark.parametrize("text", [SMALL, WITHOUT_UNKNOWN, PRUNED, SMALL.replace("<unk>", "<UNK>")])
@pytest.mark.parametrize("suffix", [".arpa", ".arpa.gz"])
def test_the_second_time_nothing_is_parsed(
    text: str, suffix: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"some{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    first = everything(NgramModel.load(path))
    assert len(list(cache.iterdir())) == 1
    forbid_parsing(monkeypatch)
    assert everything(NgramModel.load(path)) == first


def test_a_file_that_changed_is_parsed_again(arpa: Path, cache: Path) -> None:
    before = everything(NgramModel.load(arpa))
    status = arpa.stat()
    arpa.write_text(SMALL.replace("-0.8\tb", "-0.7\tb"))  # as long as before
    os.utime(arpa, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    after = everything(NgramModel.load(arpa))
    assert after != before
    assert everything(NgramModel.load(arpa)) == after
    arpa.write_text(SMALL.replace("-0.8\tb", "-0.75\tb"))  # at the same time, and longer
    os.utime(arpa, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert everything(NgramModel.load(arpa)) not in (before, after)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("n_bytes", [0, 3, 40, 400, -1])
def test_a_damaged_entry_is_made_anew(
    n_bytes: int, arpa: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = everything(NgramModel.load(arpa))
    (entry,) = cache.iterdir()
    entry.write_bytes(entry.read_bytes()[:n_bytes])
    assert everything(NgramModel.load(arpa)) == whole
    forbid_parsing(monkeypatch)
    assert everything(NgramModel.load(arpa)) == whole


def test_a_folder_that_cannot_be_written_is_no_error(
    arpa: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = everything(NgramModel.load(arpa))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path / "file"))
    assert everything(NgramModel.load(arpa)) == whole


def test_an_entry_appears_whole_or_not_at_all(
    arpa: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(array: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(np, "ascontiguousarray", interrupted)
    NgramModel.load(arpa)
    assert list(cache.iterdir()) == []


def test_entries_of_files_that_are_gone_are_removed(arpa: Path, tmp_path: Path, cache: Path) -> None:
    NgramModel.load(arpa)
    other = tmp_path / "other.arpa"
    other.write_text(SMALL)
    arpa.unlink()
    NgramModel.load(other)
    assert len(list(cache.iterdir())) == 1


def test_a_file_that_is_gone_is_missed(arpa: Path) -> None:
    NgramModel.load(arpa)
    arpa.unlink()
    with pytest.raises(LanguageModelError, match=r"words\.arpa"):
        NgramModel.load(arpa)


def test_small_files_make_no_entry(arpa: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "LEAST_BYTES", LEAST_BYTES)
    NgramModel.load(arpa)
    assert not cache.exists()
