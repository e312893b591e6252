"""An archive on a local Ray cluster: whatever dies in between, each recording has one row."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from sottovoce.api import Model, load_model
from sottovoce.archive.results import BatchOptions, Item, Row, list_recordings, open_results, write_rows
from sottovoce.cli.main import run
from sottovoce.errors import AudioError, OptionError
from sottovoce.types import Segment, Transcript

ray = pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("ray.data", reason="ray's extra `data` is not installed")
from sottovoce.serving.ray.cluster import (  # noqa: E402
    DIED,
    Actors,
    connect,
    transcribe_on_ray,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
CLIPS = Path(__file__).parents[3] / "examples" / "clips"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    connect(None)
    yield
    ray.shutdown()


class MortalModel:
    """Says the name of a file; "deadly" ends its process, "once" does so at first, "bad" is no recording."""

    name = "mortal"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def transcribe_files(
        self, sources: Iterable[str], **_: object
    ) -> Iterator[tuple[str, Transcript | Exception]]:
        for source in sources:
            name = Path(source).name
            if name == "deadly" or (name == "once" and not (self._folder / "died").exists()):
                (self._folder / "died").touch()
                os._exit(1)
            if name == "bad":
                yield source, AudioError("bad: expected a recording")
            else:
                yield source, Transcript((Segment(0, 0.0, 1.0, name, "en"),), "en", 1.0, self.name)


def mortal(folder: Path) -> Callable[[], Model]:
    return cast("Callable[[], Model]", partial(MortalModel, folder))


def test_an_actor_that_is_killed_in_the_middle_costs_no_row_and_doubles_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sottovoce.serving.ray.cluster.N_RETRIES", 1)  # each is a process that loads PyTorch
    names = [f"clip{i}" for i in range(10)] + ["once", "bad", "deadly"] + [f"clip{i}" for i in range(10, 20)]
    items = [Item(name, str(tmp_path / name)) for name in names]
    with open_results(tmp_path / "out.jsonl") as results:
        rows = list(
            write_rows(
                transcribe_on_ray(items, mortal(tmp_path), BatchOptions(n_together=3), Actors(1, 2)), results
            )
        )
    assert (tmp_path / "died").exists()
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(row["id"] for row in found) == sorted(names)
    assert len(rows) == len(names)
    by_name = {row["id"]: row for row in found}
    assert (by_name["bad"]["error"], by_name["deadly"]["error"]) == ("bad: expected a recording", DIED)
    assert all(row["text"] == row["id"] for row in found if row["error"] is None)


def test_rows_are_those_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "not.wav").write_text("no recording")
    for name in ("en.flac", "de.flac"):
        (tmp_path / name).symlink_to(CLIPS / name)
    assert run(["batch", str(tmp_path), str(tmp_path / "one.jsonl"), "--model", "nano", "-l", "en,de"]) == 1
    assert (
        run(["batch", str(tmp_path), str(tmp_path / "many.jsonl"), "--model", "nano", "-l", "en,de", "--ray"])
        == 1
    )

    def rows(name: str) -> list[Row]:
        lines = (tmp_path / name).read_text(encoding="utf-8").splitlines()
        return sorted((json.loads(line) for line in lines), key=lambda row: str(row["id"]))

    assert rows("one.jsonl") == rows("many.jsonl")
    assert [row["id"] for row in rows("one.jsonl")] == ["de.flac", "en.flac", "not.wav"]
    assert [row["error"] is None for row in rows("one.jsonl")] == [True, True, False]


def test_the_same_command_goes_on_after_a_crash(tmp_path: Path) -> None:
    """What was done stays as it is, half a line is no row, and the rest is done once."""
    recordings, out = tmp_path / "recordings", tmp_path / "out.jsonl"
    recordings.mkdir()
    (recordings / "en.flac").symlink_to(CLIPS / "en.flac")
    command = ["batch", str(recordings), str(out), "--model", "nano", "-l", "en,de"]
    assert run(command) == 0  # alone: its rows are those of a cluster, see above
    done = json.loads(out.read_text(encoding="utf-8"))
    half = json.dumps({**done, "id": "de.flac"})[:40]
    out.write_text(json.dumps({**done, "text": "kept"}) + "\n" + half, encoding="utf-8")
    (recordings / "de.flac").symlink_to(CLIPS / "de.flac")
    assert run([*command, "--ray"]) == 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in rows] == ["en.flac", "de.flac"]
    assert rows[0]["text"] == "kept"
    assert (rows[1]["error"], rows[1]["language"]) == (None, "de")


def test_what_no_recording_could_be_read_with_ends_the_job() -> None:
    items = list_recordings(CLIPS)
    open_nano = partial(load_model, "nano")
    with pytest.raises(OptionError, match="xx"):
        list(transcribe_on_ray(items, open_nano, BatchOptions(language="xx"), Actors()))


@pytest.mark.parametrize("given", [(0, 1), (2, 1)])
def test_actors_are_checked(given: tuple[int, int]) -> None:
    with pytest.raises(OptionError, match="actors"):
        Actors(*given)
