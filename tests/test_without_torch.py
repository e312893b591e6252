"""What works without PyTorch, in a process that refuses to import it, and which modules a command spares."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CLIPS = Path(__file__).parents[1] / "examples" / "clips"
SCRIPT = """
import sys
from pathlib import Path
sys.modules["torch"] = None
import sottovoce
from sottovoce.audio.io import load_audio
from sottovoce.cli.main import run
clip, out = sys.argv[1:]
common = [clip, "--model", "nano", "--device", "cpu"]
assert run(["transcribe", *common, "-o", out + "/en.json", "--word-timestamps"]) == 0
slow = {"filelock", "http.client", "pickletools", "sottovoce.ctc.search", "ssl"}
assert not slow & sys.modules.keys(), slow & sys.modules.keys()
assert run(["stream", *common, "--jsonl"]) == 0
assert run(["detect-language", *common]) == 0
assert run(["ctc", clip, "--model", "nano"]) == 0
model = sottovoce.load_model("nano")
assert "quiet" in model.transcribe(clip, beam_size=2).text
samples, session = load_audio(clip), model.session("en")
events = [event for at in range(0, len(samples), 8000) for event in session.push(samples[at : at + 8000])]
assert "quiet" in "".join(getattr(event, "text", "") for event in [*events, *session.close()])
import sottovoce.server.app
assert run(["transcribe", *common, "--speakers", "auto"]) != 0
assert run(["transcribe", *common, "--dtype", "float32"]) != 0
"""


def test_files_live_ctc_and_the_server_need_no_pytorch(tmp_path: Path) -> None:
    pytest.importorskip("sottovoce_kernels", reason="sottovoce-kernels is not installed")
    command = [sys.executable, "-c", SCRIPT, str(CLIPS / "en.flac"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the garden is quiet" in (tmp_path / "en.json").read_text().lower()
    errors = [line for line in done.stderr.splitlines() if "needs the package 'torch'" in line]
    assert [line.partition(" needs")[0] for line in errors] == [
        "error: telling speakers apart",
        "error: dtype float32",
    ]
