"""Code in a process of its own that has the library loaded already.

An interpreter that begins anew takes three times as long. What the code forgets to import is missed all the
same.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path


@cache
def _processes() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sottovoce.api", "sottovoce.audio.io"])
    return context


def start_command(words: Sequence[str], said: Path, *, first: str = "") -> BaseProcess:
    """Start a call of `sottovoce`. said: the file that gets what it prints. first: code to run before."""
    return _start(f"{first}\nfrom sottovoce.cli.main import main; main({[*words]!r})", Path.cwd(), said)


def _start(code: str, folder: Path, said: Path) -> BaseProcess:
    process = _processes().Process(target=_run, args=(code, folder, said))
    process.start()
    return process


def run_code(code: str, folder: Path, said: Path) -> int | None:
    """Run code in a folder; returns the exit code. said: the file that gets what it prints."""
    process = _start(code, folder, said)
    process.join()
    return process.exitcode


def _run(code: str, folder: Path, said: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    written = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    exec(compile(code, "code", "exec"), {"__name__": "__main__"})
