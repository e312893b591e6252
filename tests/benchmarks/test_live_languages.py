"""What the language benchmarks count, without a model: logs of what was heard, lists, joined recordings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("whisper_normalizer")

from benchmarks.harness.clips import Clip
from benchmarks.harness.joined_languages import Joined
from benchmarks.live import language as live_language
from benchmarks.live.changes import CODES, Log, followed, list_of, options_with, scored, updates
from sottovoce.types import SAMPLE_RATE


def logits(code: str) -> list[float]:
    """Sure of a language; no speech is unlikely."""
    found = [-8.0] * (len(CODES) + 1)
    found[CODES.index(code)] = 0.0
    return found


def spoken_log(path: Path) -> Log:
    """Five seconds of English, a pause, five of German; every stretch is sure of what holds most of it."""
    s = SAMPLE_RATE
    edges = [[0, 5 * s, s // 4, 5 * s + s // 2], [6 * s, 11 * s, 6 * s + s // 4, 11 * s + s // 2]]
    spans = [[0.0, 5.0, "en"], [6.0, 11.0, "de"]]
    row = {"recording": "known-0", "kind": "known", "spans": spans, "duration_s": 12.0}
    rows: list[dict[str, object]] = [row | {"utterances": edges}]
    for start in range(0, 12 * s, s // 2):
        for end in range(start + s // 2, min(start + 5 * s, 12 * s) + 1, s // 2):
            code = "en" if (start + end) / 2 < 5.5 * s else "de"
            rows.append({"stretch": "known-0", "start": start, "end": end, "logits": logits(code)})
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return Log(path, lambda: pytest.fail("the log holds all"), list)


def test_a_change_is_followed_from_the_log_alone(tmp_path: Path) -> None:
    log = spoken_log(tmp_path / "log.jsonl")
    changes = followed(log, log.recorded["known-0"], ["en", "de"], options_with([]))
    assert [(one.source, one.target) for one in changes] == [(None, "en"), ("en", "de")]
    assert changes[1].at_s == 6.0
    rows = list(scored(log, options_with([]), ["known"], ["12", "all"]))
    assert [row["F1"] for row in rows] == [1.0] * 4, "twelve and all, known and several"
    assert all(row["wrong time %"] == 0.0 for row in rows)


def test_settings_replace_defaults() -> None:
    options = options_with(["switch.margin=0.6", "probe.hop_s=1", "switch.min_frames=3"])
    assert (options.switch.margin, options.probe.hop_s, options.switch.min_frames) == (0.6, 1.0, 3)


def test_updates_are_at_fixed_samples() -> None:
    assert list(updates(7_000, 25_000, 0.5)) == [8_000, 16_000, 24_000]


def test_a_list_holds_what_is_spoken_and_is_the_same_each_time(tmp_path: Path) -> None:
    one = spoken_log(tmp_path / "log.jsonl").recorded["known-0"]
    assert list_of(one, 12)[:2] == ["en", "de"]
    assert len(set(list_of(one, 12))) == 12
    assert list_of(one, 12) == list_of(one, 12)
    assert list_of(one, None) == list(CODES)


def test_a_joined_recording_ends_in_silence() -> None:
    one = Joined("known-0", "known", (), ((0.5, 2.0, "en"), (2.5, 4.0, "de")))
    assert one.languages == ("en", "de")
    assert one.duration_s == 5.0
    assert np.all(one.audio() == 0.0)


def test_the_first_seconds_of_a_clip_are_scored_on_both_sides() -> None:
    clip = Clip("set/a", Path("a"), ("de",), None, None)
    log = live_language.Log(None)
    for side in (live_language.OURS, live_language.THEIRS):
        for one in live_language.stretches(clip.name, side):
            log.add(one, logits("de") if one.end_s <= 2.0 else [])
    row = live_language.score([clip], ["de", "en"], log, live_language.OURS, 2.0)
    assert (row["n"], row["all"], row["2"]) == (1, 1.0, 1.0)
    assert live_language.score([clip], ["de", "en"], log, live_language.OURS, 3.0)["n"] == 0
