"""Parsed ARPA files in the cache: the same model, made anew when anything is not as it was."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from sottovoce.errors import LanguageModelError
from sottovoce.lm import ngram
from sottovoce.lm.ngram import LEAST_BYTES, NgramModel
from tests.lm.test_ngram import SMALL

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
