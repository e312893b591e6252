"""Help, lists and finished transcripts need neither PyTorch nor the hub's client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "numpy", "av", "tiktoken", "starlette", "uvicorn", "anyio", "httpx"}
HELP = [[word, "--help"] for word in ("transcribe", "stream", "ctc", "eval", "bench", "serve")]
SCRIPT = f"""
import sys
from sottovoce.cli.main import run
for words in {[["--help"], ["models", "list"], ["models", "download", "--help"], *HELP]}:
    code = run(words)
    loaded = sys.modules.keys() & {HEAVY | {"huggingface_hub.file_download"}}
    if code or loaded:
        print(*words, code, loaded, file=sys.stderr)
import sottovoce.cli.options, sottovoce.cli.documents, sottovoce.offline.regroup
assert "torch" not in sys.modules
"""


def test_help_lists_options_and_documents_load_nothing_heavy(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=str,
)
def test_threads_spin_briefly_while_they_wait_unless_told_otherwise(
    given: dict[str, str], expected: str
) -> None:
    script = (
        "import atexit, os, sys; from sottovoce.cli.main import main; "
        "atexit.register(lambda: print(os.environ.get('GOMP_SPINCOUNT'), file=sys.stderr)); "
        "main(['--version'])"
    )
    waiting = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in waiting} | given
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == f"{expected}\n"
