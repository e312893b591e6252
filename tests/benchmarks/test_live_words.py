"""Kinds of errors of live transcripts."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jiwer")
pytest.importorskip("whisper_normalizer")

from benchmarks.live.runs import Item, Whole
from benchmarks.live.words import Kinds, kinds
from sottovoce.types import Word

ITEM = Item("one", Path("one"), ("en",), "foxes run over tall green grass")


def words(text: str) -> tuple[Word, ...]:
    return tuple(Word(f" {one}", i, i + 1, 1.0) for i, one in enumerate(text.split()))


def whole(text: str) -> Whole:
    return Whole(text, words(text))


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        ("foxes run over tall green grass", Kinds()),
        ("a run over tall green grass", Kinds(other=1, opening=1)),
        ("run over tall green grass", Kinds(missing=1, opening=1)),
        ("foxes run over over tall green grass", Kinds(too_many=1, again=1)),
        ("foxes run over well tall green grass", Kinds(too_many=1)),
        ("foxes run over tall green grass thank you", Kinds(too_many=2, ending=2)),
        ("foxes run over tall green", Kinds(missing=1, ending=1)),
        ("foxes run. Over tall green grass", Kinds(stops=1, capitals=1)),
    ],
)
def test_each_error_has_its_kind_and_place(heard: str, expected: Kinds) -> None:
    assert kinds(ITEM, words(heard), whole(ITEM.text)) == expected


def test_a_stop_that_the_file_has_too_is_not_counted() -> None:
    file = "foxes run. Over tall green grass"
    assert kinds(ITEM, words(file), whole(file)) == Kinds()
