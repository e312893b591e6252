"""Manifests; error counts add up, rates are of whole sets, intervals hold them."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.errors import ManifestError, MissingExtraError, OptionError
from sottovoce.evaluation.manifest import LabelledSpan, read_manifest
from sottovoce.evaluation.scores import (
    ErrorCounts,
    ScoredUtterance,
    ScoreOptions,
    by_span,
    compare,
    count_edits,
    count_errors,
    score,
    split_units,
)

UNITS = st.lists(st.sampled_from("abc"), max_size=8)


def distance(a: list[str], b: list[str]) -> int:
    """Levenshtein distance by its recursion."""
    if not a or not b:
        return len(a) + len(b)
    diagonal = distance(a[1:], b[1:]) + (a[0] != b[0])
    return min(diagonal, distance(a[1:], b) + 1, distance(a, b[1:]) + 1) if diagonal else 0


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=5), st.lists(st.sampled_from("abc"), max_size=5))
def test_alignment_is_the_cheapest(reference: list[str], hypothesis: list[str]) -> None:
    counts = count_edits(reference, hypothesis)
    assert counts.n_errors == distance(reference, hypothesis)
    assert counts.n_reference == len(reference)
    assert counts.n_reference - counts.deletions + counts.insertions == len(hypothesis)


@settings(deadline=None)
@given(UNITS, UNITS)
def test_swapping_the_texts_swaps_deletions_and_insertions(a: list[str], b: list[str]) -> None:
    there, back = count_edits(a, b), count_edits(b, a)
    assert there.n_errors == back.n_errors
    assert there.deletions - there.insertions == back.insertions - back.deletions


def test_units_may_be_anything_even_a_space() -> None:
    assert count_edits([" ", "a"], [" ", "b"]) == ErrorCounts(hits=1, substitutions=1)


@pytest.mark.parametrize(
    ("text", "word", "character", "mixed"),
    [
        ("the cat", ["the", "cat"], list("the cat"), ["the", "cat"]),
        ("你好 世界", ["你好", "世界"], list("你好世界"), list("你好世界")),
        ("我 love 你abc", ["我", "love", "你abc"], list("我love你abc"), ["我", "love", "你", "abc"]),
        ("สวัสดี ok", ["สวัสดี", "ok"], [*"สวัสดี", *"ok"], [*"สวัสดี", "ok"]),
        ("안녕 하세요", ["안녕", "하세요"], list("안녕 하세요"), ["안녕", "하세요"]),
        ("カタカナ ー𠮷", ["カタカナ", "ー𠮷"], list("カタカナー𠮷"), list("カタカナー𠮷")),
        ("", [], [], []),
    ],
)
def test_units(text: str, word: list[str], character: list[str], mixed: list[str]) -> None:
    assert split_units(text, "word") == word
    assert split_units(text, "character") == character
    assert split_units(text, "mixed") == mixed


def test_errors_of_one_utterance_after_normalising() -> None:
    errors = count_errors(ScoredUtterance("The cat sat.", "the CAT sat down", "en"))
    assert errors.word == ErrorCounts(hits=3, insertions=1)
    errors = count_errors(ScoredUtterance("你好,世界", "你号世", "zh"))
    assert errors.mixed == ErrorCounts(hits=2, substitutions=1, deletions=1)
    assert errors.character == errors.mixed
    errors = count_errors(ScoredUtterance("A b", "a b", "en"), "none")
    assert errors.word == ErrorCounts(hits=1, substitutions=1)


SET = [
    ScoredUtterance("one two three four", "one two three four", "en"),
    ScoredUtterance("five six", "five", "en"),
    ScoredUtterance("eins zwei drei", "eins zwo drei vier", "de"),
    ScoredUtterance("hello 你好", "hello 你", ("en", "zh")),
    ScoredUtterance("a", "b"),
]


def test_a_report_adds_up() -> None:
    report = score(SET, ScoreOptions(normalization="plain"))
    assert list(report.by_language) == ["de", "en", "en+zh", "unknown"]
    assert report.by_language["en"].wer.rate == pytest.approx(1 / 6)
    assert report.by_language["de"].wer.counts == ErrorCounts(2, 1, 0, 1)
    assert report.by_language["en+zh"].mer.rate == pytest.approx(1 / 3)
    for unit in ("wer", "cer", "mer"):
        parts = [getattr(rates, unit).counts for rates in report.by_language.values()]
        assert sum(parts, ErrorCounts()) == getattr(report.overall, unit).counts
    assert report.overall.n_utterances == 5
    assert sum(rates.n_utterances for rates in report.by_language.values()) == 5


def test_intervals_hold_the_rate_and_narrow_with_more_utterances() -> None:
    few = score(SET).overall.wer
    many = score(SET * 20).overall.wer
    for interval in (few, many):
        assert interval.low is not None
        assert interval.high is not None
        assert interval.rate is not None
        assert interval.low <= interval.rate <= interval.high
    assert many.high - many.low < 0.5 * (few.high - few.low)  # type: ignore[operator]


def test_the_same_seed_gives_the_same_report() -> None:
    assert score(SET) == score(SET)
    assert score(SET).overall.wer != score(SET, ScoreOptions(seed=1)).overall.wer
    assert score(SET, ScoreOptions(n_resamples=0)).overall.wer.low is None


def test_silence_has_no_rate_but_its_insertions_count() -> None:
    report = score([ScoredUtterance("", "thank you", "en")])
    assert report.overall.wer.rate is None
    assert report.overall.wer.counts == ErrorCounts(insertions=2)
    assert score([]).overall.wer.counts == ErrorCounts()
    both = score([ScoredUtterance("", "thank you", "en"), ScoredUtterance("yes", "yes", "en")])
    assert both.overall.wer.rate == 2.0


def test_a_report_is_json() -> None:
    report = score(SET, ScoreOptions(normalization="plain"))
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert set(document) == {"overall", "by_language", "options"}
    assert document["overall"]["wer"]["n_reference"] == 12
    assert document["options"]["normalization"] == "plain"


def test_without_jiwer_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_jiwer(name: str, *rest: object) -> object:
        if name == "jiwer":
            raise ImportError(name)
        return real_import(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", no_jiwer)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[eval\]'"):
        count_edits(["a"], ["b"])


def test_comparing_a_system_with_itself_finds_nothing() -> None:
    comparison = compare(SET, SET)
    assert (comparison.difference, comparison.low, comparison.high, comparison.probability) == (
        0.0,
        0.0,
        0.0,
        0.0,
    )


def test_a_system_that_is_better_on_every_utterance_is_better_on_every_set() -> None:
    perfect = [ScoredUtterance(u.reference, u.reference, u.language) for u in SET[1:]]
    comparison = compare(SET[1:], perfect, "word")
    assert comparison.probability == 1.0
    assert comparison.low <= comparison.difference <= comparison.high < 0
    back = compare(perfect, SET[1:], "word")
    assert back.difference == -comparison.difference
    assert back.probability == 0.0


def test_comparing_needs_the_same_references_and_resamples() -> None:
    with pytest.raises(OptionError, match="same references"):
        compare(SET, SET[1:])
    with pytest.raises(OptionError, match="n_resamples above 0"):
        compare(SET, SET, options=ScoreOptions(n_resamples=0))
    with pytest.raises(OptionError, match="references with words"):
        compare([ScoredUtterance("", "a")], [ScoredUtterance("", "")])


SPANS = (
    LabelledSpan(0.0, 1.0, "en", "good morning my friend"),
    LabelledSpan(1.0, 2.0, "zh", "没问题"),
    LabelledSpan(2.0, 3.0, "en", "see you"),
)


def test_errors_count_for_the_language_that_was_spoken() -> None:
    shared = by_span(SPANS, "Good morning, my fiend. 没题 see you")
    assert [(utterance.language, utterance.hypothesis) for utterance in shared] == [
        ("en", "good morning my fiend"),
        ("zh", "没 题"),
        ("en", "see you"),
    ]
    scores = score(shared, ScoreOptions(n_resamples=0)).by_language
    assert scores["en"].mer.rate == 1 / 6
    assert scores["zh"].mer.rate == 1 / 3


def test_without_texts_nothing_is_shared_out() -> None:
    assert by_span((*SPANS, LabelledSpan(3.0, 4.0, "de")), "good morning") == []


def write(folder: Path, text: str) -> Path:
    path = folder / "manifest.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_one_language_and_several(tmp_path: Path) -> None:
    lines = (
        '{"id": "a", "file": "a.wav", "language": "en", "text": "hi", "speaker": null}\n\n'
        '{"file": "sub/b.wav", "language": [{"start": 0, "end": 1.5, "language": "en"},'
        ' {"start": 1.5, "end": 3, "language": "de"}]}\n'
        '{"file": "c.wav", "language": ["en", "de"]}\n'
    )
    single, several, untimed = read_manifest(write(tmp_path, lines))
    assert (single.id, single.language, single.text, single.languages) == ("a", "en", "hi", ("en",))
    assert single.path == tmp_path / "a.wav"
    assert (several.id, several.language, several.languages) == ("sub/b.wav", None, ("en", "de"))
    assert several.spans[1].start_s == 1.5
    assert (untimed.language, untimed.spans) == (None, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one"),
        ("nonsense", "line 1: expected JSON, got something else"),
        ('{"file": "a.wav"}\n[]', "line 2: expected an object, got a list"),
        ('{"id": 3}', "line 1: expected a field 'file'"),
        ('{"file": 3}', "line 1: file: expected text, got a whole number"),
        ('{"file": "a", "segments": [{"start": 0}]}', r"segments\[0\]: expected a field 'end'"),
        ('{"file": "a", "language": 3}', "language: expected text or a list or null, got a whole number"),
        ('{"file": "a", "segments": ["en"]}', r"segments\[0\]: expected an object, got text"),
    ],
)
def test_others_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read_manifest(write(tmp_path, text))


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"no\.jsonl"):
        read_manifest(tmp_path / "no.jsonl")
