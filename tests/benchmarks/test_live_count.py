"""Counting on live runs: units with their times, latencies, loops, and what is kept of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.live.counts import errors, is_long, is_loop, n_first, pairs, summary, timed_units, timing
from benchmarks.live.runs import Item, Live, Log, Setting, Whole, built, options_from, run_from
from sottovoce.evaluation.language_scores import FoundSwitch
from sottovoce.evaluation.live_run import LiveRun
from sottovoce.evaluation.wer import ErrorCounts
from sottovoce.streaming.options import StreamOptions
from sottovoce.types import Word

pytest.importorskip("jiwer")
pytest.importorskip("whisper_normalizer")


def words(text: str, start: float = 0.0, length: float = 0.5) -> list[Word]:
    """Words one after the other, all of one length."""
    parts = text.split()
    return [
        Word(f" {part}", start + i * length, start + (i + 1) * length, 1.0) for i, part in enumerate(parts)
    ]


def heard(said: Sequence[Word], delays_s: Sequence[float], duration_s: float = 10.0) -> LiveRun:
    delays = tuple(delays_s)
    return LiveRun(tuple(said), delays, delays, None, (), duration_s, compute_s=2.0, cpu_s=1.0)


def test_a_word_of_characters_shares_its_time_among_them() -> None:
    units = timed_units([Word("你好。", 1.0, 2.0, 1.0), Word(" OK", 2.0, 2.4, 1.0)], "zh")
    assert [(one.text, one.at) for one in units] == [("你", 0), ("好", 0), ("ok", 1)]
    assert [one.start_s for one in units] == [1.0, 1.5, 2.0]
    assert [one.end_s for one in units] == [1.5, 2.0, 2.4]


def test_words_are_paired_where_both_transcripts_have_them() -> None:
    both = pairs(timed_units(words("Hello, big world!"), "en"), timed_units(words("hello my world"), "en"))
    assert [(one.text, other.text) for one, other in both] == [("hello", "hello"), ("world", "world")]


def test_latency_runs_from_the_files_end_and_the_own_from_the_programs() -> None:
    run = heard(words("one two three", start=0.2), [1.0, 1.5, 2.0])
    found = timing(run, Whole("", tuple(words("one too three"))), "de")
    assert found.latencies_s == pytest.approx([0.5, 0.5])
    assert found.own_latencies_s == pytest.approx([0.3, 0.3, 0.3])
    assert found.starts_s == pytest.approx([0.2, 0.2])
    assert found.ends_s == pytest.approx([0.2, 0.2])


def test_half_as_many_words_again_are_too_long() -> None:
    assert is_long(ErrorCounts(hits=6, insertions=3))
    assert not is_long(ErrorCounts(hits=7, insertions=3))
    assert not is_long(ErrorCounts(hits=2, insertions=2))
    assert not is_long(ErrorCounts(hits=4, deletions=4, insertions=7))


@pytest.mark.parametrize(
    ("heard", "loops"),
    [
        ("Who I'd dog on you all, shake again.", False),
        ("Why, doggone you all, shake again, shake again, shake again.", True),
        ("Why, why, why, why, why, doggone you all, shake again.", True),
        ("Why, doggone you all, shake.", False),
    ],
)
def test_what_is_too_long_is_a_loop_where_it_says_the_same_again(heard: str, loops: bool) -> None:
    """Six words misheard as nine, as "I'd" counts as two, were taken for one."""
    item = Item("a", Path("a"), ("en",), "Why, doggone you all, shake again.")
    assert is_loop(item, heard) is loops


def test_the_first_update_is_all_that_came_with_the_first_word() -> None:
    assert n_first(heard(words("a b c"), [1.0, 1.0, 1.5])) == 2


def test_a_summary_counts_over_all_recordings() -> None:
    items = [
        Item("a", Path("a"), ("en",), "red green blue white"),
        Item("b", Path("b"), ("de",), "eins zwei"),
    ]
    wholes = [Whole(item.text, tuple(words(item.text))) for item in items]
    lives = [
        Live(heard(words("red green blew white"), [1.5, 2.0, 2.5, 10.0]), 1000),
        Live(heard(words("eins zwei", length=0.03), [1.0, 1.0]), 2000),
    ]
    found = summary(items, lives, wholes)
    assert found.n_units == 6
    assert found.rate == pytest.approx(1 / 6)
    assert found.beside.difference == pytest.approx(1 / 6)
    assert found.latency_s == pytest.approx(1.0)  # of 1.0, 1.0, 8.0, 0.5 and 0.0
    assert found.at_end == pytest.approx(1 / 6)
    assert found.first_words == pytest.approx(1.5)
    assert found.cpu == pytest.approx(0.1)
    assert found.frames == pytest.approx(3.0)
    assert found.short == pytest.approx(2 / 6)


def test_frames_that_nobody_counted_are_not_known() -> None:
    item = Item("a", Path("a"), ("en",), "one")
    found = summary([item], [Live(heard(words("one"), [1.0]))], [Whole("one", tuple(words("one")))])
    assert found.frames is None


def test_errors_of_scripts_without_spaces_are_of_characters() -> None:
    assert errors(Item("a", Path("a"), ("zh",), "你好吗"), "你好").n_errors == 1


def test_words_in_brackets_were_heard() -> None:
    assert errors(Item("a", Path("a"), ("es",), "La vida. Casi."), "La vida (casi.)").n_errors == 0


def test_remarks_were_not_said() -> None:
    found = errors(Item("a", Path("a"), ("kk", "ru"), "сө-[false_start] иә"), "сө иә")
    assert (found.n_reference, found.n_errors) == (2, 0)


def test_the_log_gives_back_what_was_kept(tmp_path: Path) -> None:
    run = LiveRun((Word(" a", 0.0, 1.0, 1.0, "en"),), (1.5,), (1.6,), "en", (SWITCH,), 2.0, 0.5, 0.4)
    key = Setting(stream={"frame_threshold": 10}, label="x").key
    Log(tmp_path / "log").add(key, "clip", asdict(run) | {"encoder_frames": 7})
    again = Log(tmp_path / "log").get(key, "clip")
    assert again is not None
    assert run_from(again) == run
    assert Log(tmp_path / "log").get(Setting(label="x").key, "clip") is None


SWITCH = FoundSwitch(1.0, 2.0, "en", "de")


def test_a_setting_is_kept_under_all_of_its_options() -> None:
    asked = json.loads(Setting(stream={"chunk_s": 1.2}, session={"vad": False}, label="x").key)
    assert asked["stream"] == {"chunk_s": 1.2}
    assert asked["session"] == {"vad": False}
    assert asked["label"] == "x"


def test_options_within_options_are_built() -> None:
    asked = options_from(["commit.far_frames=30", 'encoder={"tail_s": 5, "anchors": [3]}', "chunk_s=1"])
    found = built(StreamOptions, asked)
    assert (found.commit.far_frames, found.commit.n_agreeing) == (30, 2)
    assert found.encoder is not None
    assert (found.encoder.tail_s, found.encoder.anchors) == (5, (3,))
    assert found.chunk_s == 1


def test_options_are_json_or_text() -> None:
    assert options_from(["a=1", "b=null", "c=some words", "d=false"]) == {
        "a": 1,
        "b": None,
        "c": "some words",
        "d": False,
    }
    assert options_from(["a.b=1", "a.c.d=[2]"]) == {"a": {"b": 1, "c": {"d": [2]}}}
    with pytest.raises(ValueError, match="expected name=value"):
        options_from(["a"])
