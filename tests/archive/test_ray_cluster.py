"""An archive on a local Ray cluster: whatever dies in between, each recording has one row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from sottovoce.api import Model
from sottovoce.archive.ray_cluster import Replicas
from sottovoce.archive.results import BatchOptions, Item, open_results, write_rows
from sottovoce.cli.main import run
from sottovoce.errors import OptionError
from tests.archive.mortal_model import MortalModel

ray = pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("ray.data", reason="ray's extra `data` is not installed")
from sottovoce.archive.ray_cluster import (  # noqa: E402
    DIED,
    connect,
    transcribe_on_ray,
)

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
CLIPS = Path(__file__).parents[2] / "examples" / "clips"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    connect(None)
    yield
    ray.shutdown()


def mortal(folder: Path) -> Callable[[], Model]:
    return cast("Callable[[], Model]", partial(MortalModel, folder))


def test_an_actor_that_is_killed_in_the_middle_costs_no_row_and_doubles_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sottovoce.archive.ray_cluster.N_RETRIES", 1)  # each is a process that loads PyTorch
    names = [f"clip{i}" for i in range(10)] + ["once", "bad", "deadly"] + [f"clip{i}" for i in range(10, 20)]
    items = [Item(name, str(tmp_path / name)) for name in names]
    with open_results(tmp_path / "out.jsonl") as results:
        rows = list(
            write_rows(
                transcribe_on_ray(items, mortal(tmp_path), BatchOptions(n_together=3), Replicas(1, 2)),
                results,
            )
        )
    assert (tmp_path / "died").exists()
    result = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(row["id"] for row in result) == sorted(names)
    assert len(rows) == len(names)
    by_name = {row["id"]: row for row in result}
    assert (by_name["bad"]["error"], by_name["deadly"]["error"]) == ("bad: expected a recording", DIED)
    assert all(row["text"] == row["id"] for row in result if row["error"] is None)


def test_rows_are_those_of_one_process_also_after_a_crash(tmp_path: Path) -> None:
    """What was done stays as it is, half a line is no row, and the rest is done once."""
    recordings, alone, out = tmp_path / "recordings", tmp_path / "one.jsonl", tmp_path / "many.jsonl"
    recordings.mkdir()
    (recordings / "not.wav").write_text("no recording")
    for name in ("en.flac", "de.flac"):
        (recordings / name).symlink_to(CLIPS / name)
    options = ["--model", "nano", "-l", "en,de"]
    assert run(["batch", str(recordings), str(alone), *options]) == 1
    rows = {row["id"]: row for row in map(json.loads, alone.read_text(encoding="utf-8").splitlines())}
    assert {name: row["error"] is None for name, row in rows.items()} == {
        "de.flac": True,
        "en.flac": True,
        "not.wav": False,
    }
    rows["en.flac"]["text"] = "kept"
    half = json.dumps(rows["de.flac"])[:40]
    out.write_text(json.dumps(rows["en.flac"]) + "\n" + half, encoding="utf-8")
    assert run(["batch", str(recordings), str(out), *options, "--ray"]) == 1
    result = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(result) == 3
    assert {row["id"]: row for row in result} == rows


def test_what_no_recording_could_be_read_with_ends_the_job(tmp_path: Path) -> None:
    items = [Item("clip", str(tmp_path / "clip"))]
    with pytest.raises(OptionError, match="xx"):
        list(transcribe_on_ray(items, mortal(tmp_path), BatchOptions(language="xx"), Replicas()))
