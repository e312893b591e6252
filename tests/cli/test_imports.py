"""Help and lists come at once: they import neither PyTorch nor the hub's client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from sottovoce.cli.main import run
code = run(sys.argv[1:])
heavy = [name for name in ("torch", "huggingface_hub.file_download", "httpx", "numpy") if name in sys.modules]
print(code, heavy, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [["--help"], ["models", "--help"], ["models", "list"], ["models", "download", "--help"]],
    ids=" ".join,
)
def test_no_pytorch_for(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == "0 []\n"
    assert done.stdout


def test_the_options_of_models_need_no_pytorch() -> None:
    script = "import sys, sottovoce.cli.options; print('torch' in sys.modules)"
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


@pytest.mark.parametrize("module", ["sottovoce.cli.documents", "sottovoce.offline.regroup"])
def test_documents_need_no_pytorch(module: str) -> None:
    """Whoever has a transcript already need not wait for what makes one."""
    script = f"import sys, {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
