"""OpenAI's client of the second generation, which many programs have: the same tests as the newest one's.

Of the realtime API those that use the client; the others speak to the socket themselves. Of formats that are
text, of names of models, and of parameters that only the server reads, one each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(sys.prefix) / "openai-2"
HERE = Path(__file__).parent
FILES = ("test_openai.py", "test_realtime.py")
BY_THE_CLIENT = "(test_openai.py or client) and not (srt or vtt or gpt or times_are_given or among_which)"


@pytest.mark.long
def test_the_second_generation_of_the_client_works_unchanged() -> None:
    if not (FOLDER / "openai" / "_version.py").exists():
        pytest.skip("openai 2 is not in the environment's folder openai-2: `make test-all` puts it there")
    paths = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    call = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-k",
        BY_THE_CLIENT,
    ]
    code = "import openai; assert openai.__version__.startswith('2.'), openai.__version__"
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    files = [str(HERE / name) for name in FILES]
    done = subprocess.run([*call, *files], env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
