"""Standard output in an old encoding, closed, full, or with nobody reading."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "zh.flac"
SAY = """
import sys
from sottovoce.cli.main import prepare_standard_streams
prepare_standard_streams()
sys.stdout.write("Żółć 你好 \\U0001f600 \\udcff\\n")
sys.stdout.flush()
"""
HELP = [sys.executable, "-m", "sottovoce", "--help"]


def shell(command: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of shell with arguments "$@"; more: environment."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(
        ["bash", "-c", command, "bash", *arguments], capture_output=True, check=False, env=environment
    )


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_pipe_gets_utf8_whatever_the_locale_says(encoding: str) -> None:
    result = shell('"$@"', sys.executable, "-c", SAY, PYTHONIOENCODING=encoding)
    assert result.stdout.decode("utf-8") == "Żółć 你好 \U0001f600 \\udcff\n", result.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("output", [">&-", ">/dev/full"])
def test_what_cannot_be_written_is_one_line(output: str, unbuffered: str) -> None:
    if output == ">/dev/full" and not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    result = shell(f'"$@" {output}', *HELP, PYTHONUNBUFFERED=unbuffered)
    assert result.returncode == 2
    (line,) = result.stderr.decode().splitlines()
    assert line.startswith("error: standard output: cannot be written (")


def test_a_reader_that_goes_away_is_no_error() -> None:
    result = shell('"$@" | true; echo ${PIPESTATUS[0]}', *HELP)
    assert result.stdout.strip() == b"0"
    assert result.stderr == b""


def test_errors_need_nobody_to_hear_them() -> None:
    for output in ("2>&-", "2>/dev/full" if Path("/dev/full").exists() else "2>/dev/null"):
        result = shell(f'"$@" {output}', sys.executable, "-m", "sottovoce", "transcrib")
        assert (result.returncode, result.stdout, result.stderr) == (2, b"", b"")


@pytest.mark.long
def test_documents_in_files_need_no_standard_output(tmp_path: Path) -> None:
    """A closed descriptor is the next that is opened: no recording may become standard output."""
    command = [sys.executable, "-m", "sottovoce", "transcribe", str(CLIP), "-m", "nano", "-l", "zh"]
    result = shell('"$@" >&- 2>&- <&-', *command, "-o", str(tmp_path))
    assert result.returncode == 0
    assert "公园" in (tmp_path / "zh.txt").read_text(encoding="utf-8")
