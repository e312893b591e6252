"""Help, lists and finished transcripts need neither PyTorch nor the hub's client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "numpy", "av", "tiktoken", "starlette", "uvicorn", "anyio", "httpx"}
HELP = ["transcribe", "stream", "ctc", "eval", "bench", "serve"]
SCRIPT = f"""
import sys
from sottovoce.cli.main import run
code = run(sys.argv[1:])
print(code, *sys.modules.keys() & {HEAVY | {"huggingface_hub.file_download"}}, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [["--help"], ["models", "list"], ["models", "download", "--help"], *([word, "--help"] for word in HELP)],
    ids=" ".join,
)
def test_help_and_lists_load_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, *words]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, cwd=tmp_path)
    assert done.stderr == "0\n"
    assert done.stdout


@pytest.mark.parametrize(
    "module", ["sottovoce.cli.options", "sottovoce.cli.documents", "sottovoce.offline.regroup"]
)
def test_options_and_documents_need_no_pytorch(module: str) -> None:
    script = f"import sys, {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


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
