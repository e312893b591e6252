"""The live page: its headers, and in a real browser what `browser_page` and `browser_machine` look at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from tests.formats.transcripts import CHROMIUM
from tests.server.servers import ServerThread

AXE = Path(os.environ.get("SOTTOVOCE_AXE", "node_modules/axe-core/axe.min.js"))
"""Of `browser_axe`, from the root of the checkout."""

CASES = (
    ["browser_page.py", "browser_machine.py", "browser_doubt.py"],
    ["browser_captions.py", "browser_editor.py"],
    pytest.param(
        ["browser_axe.py"], marks=pytest.mark.skipif(not AXE.is_file(), reason="no axe-core: SOTTOVOCE_AXE")
    ),
)
"""Files whose tests share a process: it takes longer to start than many of them run."""
WITHIN_S = 600.0
NO_TESTS = 5
"""Of pytest: all tests were left out, as where python-docx is not there."""


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.skipif(find_spec("playwright") is None, reason="playwright is not installed")
@pytest.mark.parametrize("names", CASES, ids=" ".join)
def test_the_page_in_a_browser(names: list[str]) -> None:
    """A crash or a hang there is one failed test here, and nothing of it runs on."""
    folder = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist"]
    process = subprocess.Popen(
        [*command, *(str(folder / name) for name in names)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        cwd=folder.parents[1],
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=WITHIN_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode in (0, NO_TESTS), said[-20_000:]
    if " passed" not in said:
        pytest.skip(said.strip().splitlines()[-2] if "SKIPPED" in said else "nothing ran")


def test_headers_of_the_page_are_strict(server: ServerThread) -> None:
    answer = httpx.get(server.url + "/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    for path in ("/static/../settings.py", "/static/%2e%2e/settings.py", "/static/..%2fsettings.py"):
        assert httpx.get(server.url + path).status_code == 404
