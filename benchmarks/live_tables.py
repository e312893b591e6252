"""Make every table and picture of docs/streaming.md anew, in order.

    python benchmarks/live_tables.py /tmp/live --data ../shared/data
    python benchmarks/live_tables.py /tmp/live --only cost switches

Writes NAME.txt (the table, and its JSON line last) for each into the folder, the clips into its `clips`, the
pictures into --images, and prints the processor time that each took. Without --data what needs human
recordings is left out, and named. One thread each; the whole takes about 15 minutes of processor time.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
READERS = ("{data}/manifest.jsonl#kathleen-en", "{data}/manifest.jsonl#kerstin-de")
NOISES = ("dishes", "pink_noise", "exercise_bike", "running_tap")


@dataclass(frozen=True, slots=True)
class Table:
    """One command. `{clips}`, `{data}`, `{images}` and `{noise}` in its arguments are filled in."""

    name: str
    arguments: tuple[str, ...]

    @property
    def needs_data(self) -> bool:
        return any("{data}" in argument or "{noise}" in argument for argument in self.arguments)


def live(name: str, *arguments: str) -> Table:
    return Table(name, ("streaming.py", *arguments))


TABLES = (
    Table("clips", ("speech_clips.py", "{clips}")),
    Table("probe", ("probe.py", "--repeats", "40")),
    live("language-synthetic", "language", "{clips}/single.jsonl", "--noise", "{noise}"),
    live("language-readers", "language", *READERS, "--split", "test", "--limit", "10", "--noise", "{noise}"),
    live("language-voxlingua", "language", "{data}/manifest.jsonl#voxlingua107", "--limit", "50"),
    live(
        "latency",
        *("latency", "{clips}/single.jsonl", "--limit", "40"),
        *("--picture", "{images}/streaming-latency.png"),
    ),
    live("latency-readers", "latency", *READERS, "--split", "test", "--limit", "6"),
    live("cost", "cost", "{clips}/talk.jsonl", "{clips}/single.jsonl", "--limit", "2"),
    live(
        "cost-tiny", "cost", "{clips}/talk.jsonl", "{clips}/single.jsonl", "--limit", "1", "--as-if", "tiny"
    ),
    live(
        "switches",
        *("switching", "{clips}/mixed.jsonl", "{clips}/phrase.jsonl", "{clips}/word.jsonl", "--limit", "10"),
    ),
    live("switches-human", "switching", "{data}/manifest.jsonl#codeswitch-concat"),
    live("false-switches-readers", "single", *READERS, "--split", "test"),
    live("false-switches-jfk", "single", "{data}/manifest.jsonl#smoke-multi/jfk"),
    live("false-switches-long", "single", "{clips}/long.jsonl"),
    live("hour", "long", "--long-s", "3600", "--picture", "{images}/streaming-hour.png"),
)


def filled(table: Table, given: argparse.Namespace) -> list[str]:
    """The arguments of a table's command."""
    folders = {"clips": given.folder / "clips", "data": given.data, "images": given.images}
    found: list[str] = []
    for argument in table.arguments:
        if argument == "{noise}":
            found += noises(given.data)
        else:
            found.append(argument.format(**folders))
    return found


def noises(data: Path) -> list[str]:
    """One file of each kind of noise that is there."""
    folder = data / "noise-rir"
    found = [next(iter(sorted(folder.glob(f"*{kind}*"))), None) for kind in NOISES]
    return [str(path) for path in found if path is not None]


def make(table: Table, given: argparse.Namespace) -> None:
    """Run one command; its output goes into NAME.txt."""
    script, *arguments = filled(table, given)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began, spent = time.monotonic(), _children_s()
    with (given.folder / f"{table.name}.txt").open("w", encoding="utf-8") as out:
        command = [sys.executable, str(HERE / script), *arguments]
        done = subprocess.run(command, stdout=out, env=environment, check=False)
    said = "done" if done.returncode == 0 else f"failed ({done.returncode})"
    seconds = f"{_children_s() - spent:.0f} s of processor time, {time.monotonic() - began:.0f} s in all"
    print(f"{table.name}: {said}, {seconds}", flush=True)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    names = [table.name for table in TABLES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, help="folder with manifest.jsonl of human recordings")
    parser.add_argument("--images", type=Path, default=HERE.parent / "docs" / "images")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for table in TABLES:
        if table.name not in given.only:
            continue
        if table.needs_data and given.data is None:
            print(f"{table.name}: left out, it needs --data")
        else:
            make(table, given)


if __name__ == "__main__":
    main()
