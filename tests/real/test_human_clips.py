"""Which clips choose and which report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness.clips import clips, shown, spread

ROWS = (
    {"id": "split/a", "split": "train", "language": "de", "text": "eins"},
    {"id": "split/b", "split": "test", "language": "de", "text": "zwei"},
    {"id": "plain/0", "split": "dev", "language": "es", "text": "uno"},
    {"id": "plain/1", "split": "dev", "language": "es"},
    {"id": "plain/2", "split": "dev", "language": "es", "text": "tres"},
    {"id": "smoke-multi/jfk", "language": "en", "text": "And so"},
    {"id": "joined/0", "language": [{"language": "es"}, {"language": "de"}], "text": "uno eins"},
    {"id": "joined/1", "language": ["es", "de"]},
    {"id": "joined/2", "language": ["en"], "segments": [{"source_id": "smoke-multi/jfk"}]},
    {"id": "noise/0", "language": None, "human": None},
    {"id": "fsdd-en/0", "split": "train", "language": "en", "text": "zero"},
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    lines = [json.dumps({"file": f"{row['id']}.opus", "human": True, **row}) for row in ROWS]
    (tmp_path / "manifest.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def names(data: Path, part: str, **wish: object) -> list[str]:
    return [clip.name for clip in clips(data, part, **wish)]


def test_a_set_with_a_test_split_reports_on_it(data: Path) -> None:
    assert names(data, "dev", sets=["split"]) == ["split/a"]
    assert names(data, "test", sets=["split"]) == ["split/b"]


def test_a_set_without_one_alternates(data: Path) -> None:
    assert names(data, "dev", sets=["plain"]) == ["plain/0", "plain/2"]
    assert names(data, "test", sets=["plain"]) == ["plain/1"]


def test_what_the_demo_shows_never_chooses(data: Path) -> None:
    assert names(data, "dev", sets=["smoke-multi", "joined"]) == ["joined/0"]
    assert names(data, "test", sets=["smoke-multi", "joined"]) == ["smoke-multi/jfk", "joined/1", "joined/2"]


def test_no_clip_is_in_both_parts_and_noises_and_digits_in_none(data: Path) -> None:
    parts = [set(names(data, part)) for part in ("dev", "test")]
    assert parts[0].isdisjoint(parts[1])
    assert parts[0] | parts[1] == {str(row["id"]) for row in ROWS} - {"noise/0", "fsdd-en/0"}


def test_clips_are_chosen_by_language_and_text(data: Path) -> None:
    assert names(data, "test", language="es") == ["plain/1"]
    assert names(data, "test", language="es", with_text=True) == []
    assert clips(data, "dev", sets=["joined"])[0].languages == ("es", "de")


def test_clips_of_the_project_are_of_one_language(data: Path) -> None:
    assert [clip.name for clip in shown(data)][:2] == ["examples/split/a", "examples/split/b"]
    assert all(len(clip.languages) == 1 for clip in shown(data))


def test_clips_are_spread_over_the_sets(data: Path) -> None:
    chosen = spread([*clips(data, "dev"), *clips(data, "test")], 4)
    assert len({clip.group for clip in chosen}) == 4
    assert len(spread(clips(data, "dev"), 100)) == len(clips(data, "dev"))
