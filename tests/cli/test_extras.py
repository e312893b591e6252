"""A command that needs a package that is not there says which extra to install, before any work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.fresh_process import run_code

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
CALLS = [
    ("plot {clip} -m nowhere -o {tmp}/talk.png", "matplotlib", "plot"),
    ("eval switching {tmp}/list.jsonl --model nowhere --plots {tmp}", "matplotlib", "plot"),
    ("eval wer {tmp}/list.jsonl --model nano", "whisper_normalizer", "eval"),
    ("eval wer {tmp}/list.jsonl --model nano", "jiwer", "eval"),
    ("stream --mic -m nano", "sounddevice", "mic"),
    ("transcribe {clip} -m nano --grammar {tmp}/a.gbnf", "llguidance", "grammar"),
    ("transcribe {clip} -m nano --speakers auto --speaker-engine pyannote", "pyannote.audio", "pyannote"),
    ("batch {clips} {tmp}/out.parquet -m nano", "pyarrow", "parquet"),
    ("batch {clips} {tmp}/out.jsonl -m nano --ray", "ray", "ray"),
    ("serve -m nano --port 0", "uvicorn", "serve"),
    ("serve -m nano --port 0", "starlette", "serve"),
    ("ctc {tmp}/e.npy --labels {tmp}/labels.txt --neural-lm {tmp}", "transformers", "neural-lm"),
]


WITHOUT = """
import sys
from sottovoce.cli.main import run
for package, words in {calls!r}:
    assert package not in sys.modules, package
    sys.modules[package] = None
    print("code", run(words), flush=True)
    del sys.modules[package]
"""
"""Calls in a process in which a package is as if it were not installed; none before has imported it."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "e.npy", np.log(np.full((5, 3), 1 / 3, np.float32)))
    (tmp_path / "labels.txt").write_text("_\na\nb\n")
    (tmp_path / "lm.bin").write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0" + bytes(64))
    (tmp_path / "a.gbnf").write_text('root ::= "a"')
    row = f'{{"id": "a", "file": "{CLIP.as_posix()}", "duration": 3.0, "language": "en", "text": "a"}}\n'
    (tmp_path / "list.jsonl").write_text(row)
    return tmp_path


def test_the_extra_is_named_in_one_line(folder: Path) -> None:
    calls = [
        (package, call.format(clip=CLIP, clips=CLIP.parent, tmp=folder).split()) for call, package, _ in CALLS
    ]
    assert run_code(WITHOUT.format(calls=calls), Path.cwd(), folder / "said") == 0
    lines = (folder / "said").read_text().splitlines()
    assert lines[1::2] == ["code 2"] * len(CALLS), lines
    for (call, _, extra), line in zip(CALLS, lines[::2], strict=True):
        assert line.startswith("error: "), call
        assert f"[{extra}]'" in line.partition(": pip install ")[2], call
