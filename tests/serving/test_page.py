"""The live page: its headers, and in a real browser what `browser_page` and `browser_machine` look at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from sottovoce.serving.server import ServerThread
from tests.serving.browser_page import CHROMIUM

CASES = [
    Path(__file__).with_name(name)
    for name in (
        "browser_page.py",
        "browser_machine.py",
        "browser_captions.py",
        "browser_editor.py",
        "browser_axe.py",
    )
]
WITHIN_S = 600.0


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_in_a_browser() -> None:
    """A crash or a hang there is one failed test here, and nothing of it runs on."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    process = subprocess.Popen(
        [*command, *map(str, CASES)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        cwd=CASES[0].parents[2],
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=WITHIN_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, said[-20_000:]


def test_headers_of_the_page_are_strict(server: ServerThread) -> None:
    answer = httpx.get(server.url + "/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    for path in ("/static/../settings.py", "/static/%2e%2e/settings.py", "/static/..%2fsettings.py"):
        assert httpx.get(server.url + path).status_code == 404
